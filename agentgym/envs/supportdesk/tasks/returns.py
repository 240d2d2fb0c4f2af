"""Families about delivered orders: returns, exchanges, wrong items, and those refused."""

from __future__ import annotations

from typing import Any

from agentgym.envs.supportdesk.reference import Write
from agentgym.envs.supportdesk.shop import Item, Method, Order, Variant
from agentgym.envs.supportdesk.tasks.orders import CHANGE_WORDS, VARIANT_CUES
from agentgym.envs.supportdesk.tasks.scene import (
    Scene,
    SupportTask,
    amount,
    names,
    proposal,
    refusal,
    write,
)
from agentgym.envs.supportdesk.wording import GROUNDS, ORIGINAL_METHOD

RETURN_WORDS = ("return", "refund", "send back", "take back")
REFUND_CUES = (
    "refund to",
    "refunded to",
    "the refund",
    "your refund",
    "money",
    "refund",
    "reimburse",
)
GOT_CUES = ("receive", "received", "got", "get", "arrived", "arrive", "wrong", "sent", "came")
PAY_CUES = ("payment", "pay", "charge", "difference", "method", "card")


def delivered(
    scene: Scene,
    items: int = 1,
    *,
    days_ago: int | None = None,
    late: int | None = None,
    **more: Any,
) -> Order:
    """An order that arrived, by default recently enough to be returned.

    Args:
        scene: The task.
        items: How many items it has.
        days_ago: When it arrived.
        late: How many days after the promised one that was; None: before it.
        more: See `Shop.order`.
    """
    arrived = scene.rng.randrange(2, 28) if days_ago is None else days_ago
    placed = arrived + 5
    if late is not None:
        placed += late
        more["promised"] = arrived + late
    return scene.shop.order(
        scene.person,
        scene.shop.variants(items),
        status="delivered",
        placed=placed,
        shipped=arrived + 3,
        delivered=arrived,
        **more,
    )


def _returned(order: Order, items: list[Item], method: Method) -> list[Write]:
    return [
        write(
            "return_items",
            order_id=order.order_id,
            item_ids=[item.item_id for item in items],
            method_id=method.method_id,
        )
    ]


def _method_words(order: Order, methods: list[Method]) -> list[str]:
    """What one of the methods may be called, for this order."""
    words = [word for method in methods for word in method.words]
    return [*words, *ORIGINAL_METHOD] if order.method in methods else words


def return_order(scene: Scene) -> SupportTask:
    """Return everything; the refund goes where the customer wants, or either way."""
    order = delivered(scene, scene.rng.choice((1, 1, 2)))
    card, gift_card = order.method, scene.person.gift_card
    choices = [[card], [gift_card], [card, gift_card]][scene.rng.randrange(3)]
    if len(choices) == 1:
        words = scene.pay_into(order, choices[0])
        scene.fact("refund_to", f"Please refund it to {words}.", *REFUND_CUES)
    else:
        scene.fact("refund_to", "I don't mind where the refund goes.", *REFUND_CUES)
    subject = scene.subject(order)
    wants = [*proposal(order, *RETURN_WORDS), _method_words(order, choices)]
    return scene.task(
        goal=f"You want to return everything in {subject}.",
        requests=[
            {
                "ask": [
                    f"I'd like to return everything in {subject}.",
                    f"I want to send back all of {subject}.",
                ],
                "wants": wants,
                "correction": [f"Not like that. {scene.facts['refund_to']}"],
            }
        ],
        outcomes=[_returned(order, list(order.items), method) for method in choices],
        told=[amount(order.total)],
        look_up=[order],
    )


def partial_return(scene: Scene) -> SupportTask:
    """Return one item of several."""
    order = delivered(scene, 3)
    item = scene.rng.choice(order.items)
    words = scene.pay_into(order, order.method)
    scene.fact("refund_to", f"Please refund it to {words}.", *REFUND_CUES)
    subject = scene.subject(order, named=item)
    others = [other.product for other in order.items if other is not item]
    return scene.task(
        goal=f"You want to return only the {item.product} of {subject}, and keep the rest.",
        requests=[
            {
                "ask": [
                    f"I'd like to return the {item.product} from {subject}, but keep the rest.",
                    f"Can I send back just the {item.product} of {subject}?",
                ],
                "wants": [
                    *proposal(order, *RETURN_WORDS),
                    [item.product],
                    _method_words(order, [order.method]),
                ],
                "rejects": others,
                "correction": [f"No, only the {item.product}, and the money back on {words}."],
            }
        ],
        outcomes=[_returned(order, [item], order.method)],
        told=[amount(item.price)],
        look_up=[order],
    )


def return_late(scene: Scene) -> SupportTask:
    """Ask to return something after the window: refused."""
    order = delivered(scene, days_ago=scene.rng.randrange(31, 75))
    return _refused_return(
        scene,
        order,
        ground="return_window",
        objection="It's only a little late. Can't you make an exception?",
    )


def final_sale(scene: Scene) -> SupportTask:
    """Ask to return something bought as final sale: refused."""
    order = delivered(scene, final_sale=[0])
    return _refused_return(
        scene, order, ground="final_sale", objection="Nobody told me. Can't you take it anyway?"
    )


def _refused_return(scene: Scene, order: Order, *, ground: Any, objection: str) -> SupportTask:
    item = order.items[0]
    scene.fact("refund_to", "Please refund it to my card.", *REFUND_CUES)
    subject = scene.subject(order, named=item)
    return scene.task(
        goal=f"You want to return the {item.product} of {subject}.",
        requests=[
            {
                "ask": [
                    f"I want to return the {item.product} of {subject}.",
                    f"I'd like to send back the {item.product} from {subject}.",
                ],
                "wants": proposal(order, *RETURN_WORDS),
                "refusable": GROUNDS[ground],
                "objections": [objection],
            }
        ],
        told=[refusal(ground)],
        look_up=[order],
        instructions=["If you are refused with a reason, insist once, then give in."],
    )


def _exchanged(order: Order, item: Item, variant: Variant, method: Method) -> list[Write]:
    return [
        write(
            "exchange_items",
            order_id=order.order_id,
            item_ids=[item.item_id],
            variant_ids=[variant.variant_id],
            method_id=method.method_id,
        )
    ]


def _exchange_wants(order: Order, item: Item, wanted: Variant, method: Method) -> list[list[str]]:
    wants = [*proposal(order, *CHANGE_WORDS), *names(wanted, item.variant)]
    return [*wants, _method_words(order, [method])] if wanted.price != item.price else wants


def exchange(scene: Scene) -> SupportTask:
    """Exchange an item for another variant, which may cost more or less."""
    order = delivered(scene, scene.rng.choice((1, 2)))
    item = order.items[0]
    wanted = scene.shop.sibling(item.variant)
    method = scene.rng.choice((scene.person.card, scene.person.paypal))
    value = wanted.unlike(item.variant)
    words = scene.pay_into(order, method)
    scene.fact("variant", f"I'd like {value}.", *VARIANT_CUES, *wanted.options)
    scene.fact("payment", f"Use {words} for any difference.", *PAY_CUES)
    subject = scene.subject(order, named=item)
    change = f"for {value}" if scene.rng.random() < 0.5 else "for another version"
    difference = abs(wanted.price - item.price)
    return scene.task(
        goal=f"You want the {item.product} of {subject} exchanged for {value}, and any price "
        f"difference settled with {words}.",
        requests=[
            {
                "ask": [
                    f"I'd like to exchange the {item.product} of {subject} {change}.",
                    f"Can I exchange the {item.product} from {subject} {change}?",
                ],
                "wants": _exchange_wants(order, item, wanted, method),
                "correction": [f"No, I'd like {value}, and {words} for any difference."],
            }
        ],
        outcomes=[_exchanged(order, item, wanted, method)],
        told=[amount(difference)] if difference else [],
        look_up=[order],
    )


def out_of_stock(scene: Scene) -> SupportTask:
    """Ask for a variant that is out of stock, then take another."""
    order = delivered(scene)
    item = order.items[0]
    wanted = scene.shop.sibling(item.variant, in_stock=False)
    second = scene.shop.sibling(item.variant)
    card = scene.person.card
    first, other = (v.unlike(item.variant) for v in (wanted, second))
    words = scene.pay_into(order, card)
    scene.fact("payment", f"Use {words} for any difference.", *PAY_CUES)
    scene.fact("variant", f"I'd like {first}.", *wanted.options)
    subject = scene.subject(order, named=item)
    difference = abs(second.price - item.price)
    return scene.task(
        goal=f"You want the {item.product} of {subject} exchanged for {first}; if that can't be "
        f"had, for {other}. Any price difference goes to {words}.",
        requests=[
            {
                "ask": [
                    f"I'd like to exchange the {item.product} of {subject} for {first}.",
                    f"Please exchange the {item.product} from {subject} for {first}.",
                ],
                "refusable": GROUNDS["stock"],
                "fallback": {
                    "ask": [
                        f"Then I'd like {other} instead, and the rest like the one I have.",
                        f"Too bad. I'd take {other}, then, otherwise like mine.",
                    ],
                    "wants": _exchange_wants(order, item, second, card),
                    "correction": [f"No, I'd like {other}, and {words} for any difference."],
                },
            }
        ],
        outcomes=[_exchanged(order, item, second, card)],
        told=[refusal("stock"), *([amount(difference)] if difference else [])],
        look_up=[order],
        instructions=[f"If {first} is out of stock, ask for {other}."],
    )


def wrong_item(scene: Scene) -> SupportTask:
    """Another variant was packed than ordered: exchanged whatever the window or a final sale."""
    shop, late = scene.shop, scene.number % 2 == 1
    variant = shop.variants(1)[0]
    packed = shop.sibling(variant)
    arrived = scene.rng.randrange(31, 50) if late else scene.rng.randrange(2, 28)
    order = shop.order(
        scene.person,
        [variant],
        status="delivered",
        placed=arrived + 5,
        shipped=arrived + 3,
        delivered=arrived,
        final_sale=[] if late else [0],
        packed={0: packed},
    )
    item = order.items[0]
    subject = scene.subject(order, named=item)
    got = packed.unlike(variant)
    scene.fact("problem", f"I got {got}.", *GOT_CUES)
    return scene.task(
        goal=f"You got the wrong {item.product} in {subject} ({got}). You want the right one.",
        requests=[
            {
                "ask": [
                    f"You sent me the wrong {item.product} in {subject}. I want the right one.",
                    f"I received the wrong {item.product} with {subject}. Please put it right.",
                ],
                "wants": proposal(order, *CHANGE_WORDS, "send"),
                "rejects": ["refund"],
                "correction": [f"No, I'd just like to have the {item.product} that I ordered."],
            }
        ],
        outcomes=[_exchanged(order, item, variant, order.method)],
        look_up=[order],
        instructions=["You want no refund, only the item that you ordered."],
    )
