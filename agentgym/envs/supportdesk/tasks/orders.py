"""Families about orders that haven't left the warehouse, and one about one that has."""

from __future__ import annotations

from agentgym.envs.supportdesk.catalogue import CITIES
from agentgym.envs.supportdesk.shop import Order
from agentgym.envs.supportdesk.tasks.scene import (
    Scene,
    SupportTask,
    amount,
    names,
    proposal,
    refusal,
    write,
)
from agentgym.envs.supportdesk.wording import GROUNDS, PAYMENT_WORDS

REASONS = {
    "no longer needed": "I don't need it any more.",
    "ordered by mistake": "I ordered it by mistake.",
}
"""Reasons for which an order is cancelled, as customers put them."""
CHANGE_WORDS = ("change", "changing", "switch", "swap", "replac", "exchang", "modif", "updat")
VARIANT_CUES = (
    *("variant", "version", "option", "instead", "prefer", "change it to", "exchange it for"),
    *("which one", "which would you", "which do you", "which you"),
)


def pending(scene: Scene, items: int = 1) -> Order:
    """A fresh order of the customer's that can still be changed."""
    variants = scene.shop.variants(items)
    return scene.shop.order(
        scene.person, variants, status="pending", placed=scene.rng.randrange(0, 3)
    )


def give_reason(scene: Scene) -> str:
    """Choose why the customer cancels."""
    reason = scene.rng.choice(list(REASONS))
    scene.fact("reason", REASONS[reason], "no longer need", "by mistake", "need it")
    return reason


def new_address(scene: Scene) -> dict[str, str]:
    """Choose where the customer wants a parcel sent, in a city of its own."""
    city, state, start = scene.rng.choice(
        [place for place in CITIES if place[0] != scene.person.city]
    )
    address = {
        "street": scene.shop.street(),
        "city": city,
        "state": state,
        "zip_code": f"{start}{scene.rng.randrange(10, 100)}",
    }
    line = f"{address['street']}, {city}, {state} {address['zip_code']}"
    scene.fact(
        "new_address", f"The new address is {line}.", "new address", "address", "ship", "deliver to"
    )
    return address


def cancel(scene: Scene) -> SupportTask:
    """Cancel an order that can be cancelled."""
    order = pending(scene, scene.rng.choice((1, 2)))
    reason = give_reason(scene)
    subject = scene.subject(order)
    return scene.task(
        goal=f"You want to cancel {subject}.",
        requests=[
            {
                "ask": [f"I'd like to cancel {subject}.", f"Please cancel {subject} for me."],
                "wants": proposal(order, "cancel"),
            }
        ],
        outcomes=[[write("cancel_order", order_id=order.order_id, reason=reason)]],
        told=[amount(order.total)],
        look_up=[order],
    )


def cancel_shipped(scene: Scene) -> SupportTask:
    """Ask to cancel an order that is on its way: refused."""
    shipped = scene.rng.randrange(1, 5)
    order = scene.shop.order(
        scene.person,
        scene.shop.variants(1),
        status="shipped",
        placed=shipped + 2,
        shipped=shipped,
    )
    give_reason(scene)
    subject = scene.subject(order)
    return scene.task(
        goal=f"You want to cancel {subject}, although it may have been shipped.",
        requests=[
            {
                "ask": [f"Please cancel {subject}.", f"I want to cancel {subject}."],
                "wants": proposal(order, "cancel"),
                "refusable": GROUNDS["shipped"],
                "objections": ["Can't you stop the parcel? I really don't want it any more."],
            }
        ],
        told=[refusal("shipped")],
        look_up=[order],
        instructions=["If you are told that it was shipped already, insist once, then give in."],
    )


def change_address(scene: Scene) -> SupportTask:
    """Send a pending order elsewhere."""
    order = pending(scene)
    address = new_address(scene)
    subject = scene.subject(order)
    return scene.task(
        goal=f"You want {subject} to go to another address.",
        requests=[
            {
                "ask": [
                    f"I moved and need {subject} sent to my new address.",
                    f"Please change the shipping address of {subject}.",
                ],
                "wants": [*proposal(order, "address", "ship"), *address_words(address)],
                "correction": [f"That's not right. {scene.facts['new_address']}"],
            }
        ],
        outcomes=[[write("change_shipping_address", order_id=order.order_id, **address)]],
        look_up=[order],
    )


def address_words(address: dict[str, str]) -> list[list[str]]:
    """What a proposal must name of an address."""
    house, _, street = address["street"].partition(" ")
    return [[f"{house} {street.split()[0]}"], [address["zip_code"]]]


def change_item(scene: Scene) -> SupportTask:
    """Swap an item of a pending order for another variant."""
    order = pending(scene, scene.rng.choice((1, 2)))
    item = order.items[0]
    wanted = scene.shop.sibling(item.variant)
    subject = scene.subject(order, named=item)
    value = wanted.unlike(item.variant)
    scene.fact("variant", f"I'd like {value}.", *VARIANT_CUES, *wanted.options)
    named = scene.rng.random() < 0.5
    change = f"to {value}" if named else "to another version"
    difference = wanted.price - item.price
    return scene.task(
        goal=f"You want the {item.product} in {subject} changed to {value}.",
        requests=[
            {
                "ask": [
                    f"Could you change the {item.product} in {subject} {change}?",
                    f"I'd like to switch the {item.product} in {subject} {change}.",
                ],
                "wants": [*proposal(order, *CHANGE_WORDS), *names(wanted, item.variant)],
                "correction": [f"No, I'd like the {item.product} as {value}."],
            }
        ],
        outcomes=[
            [
                write(
                    "change_items",
                    order_id=order.order_id,
                    item_ids=[item.item_id],
                    variant_ids=[wanted.variant_id],
                )
            ]
        ],
        told=[amount(abs(difference))] if difference else [],
        look_up=[order],
    )


def change_payment(scene: Scene) -> SupportTask:
    """Charge a pending order to another payment method."""
    order = pending(scene)
    method = scene.person.paypal
    if scene.number % 2:
        scene.person = scene.shop.person(gift_balance=100_000)
        order = pending(scene)
        method = scene.person.gift_card
    subject = scene.subject(order)
    words = scene.pay_into(order, method)
    scene.fact("payment", f"I'd like to use {words}.", "payment", "pay", "charge", "method", "card")
    return scene.task(
        goal=f"You want to pay for {subject} with {words} instead of your card.",
        requests=[
            {
                "ask": [
                    f"I'd like to change how I pay for {subject}.",
                    f"Can I use a different payment method for {subject}?",
                ],
                "wants": [*proposal(order, *PAYMENT_WORDS), list(method.words)],
                "correction": [f"No, please use {words}."],
            }
        ],
        outcomes=[
            [
                write(
                    "change_payment_method",
                    order_id=order.order_id,
                    method_id=method.method_id,
                )
            ]
        ],
        told=[amount(order.total)],
        look_up=[order],
    )


def gift_card_balance(scene: Scene) -> SupportTask:
    """Ask to pay with a gift card that doesn't cover the order, then with PayPal."""
    person = scene.person = scene.shop.person(gift_balance=scene.rng.randrange(100, 1000))
    order = pending(scene, 2)
    subject = scene.subject(order)
    return scene.task(
        goal=f"You want to pay for {subject} with your gift card, or else with PayPal.",
        requests=[
            {
                "ask": [
                    f"Please charge {subject} to my gift card instead of my credit card.",
                    f"I'd like to pay for {subject} with my gift card.",
                ],
                "refusable": GROUNDS["balance"],
                "fallback": {
                    "ask": [
                        "Then please use my PayPal account instead.",
                        "I see. In that case, take my PayPal account.",
                    ],
                    "wants": [*proposal(order, *PAYMENT_WORDS), ["paypal"]],
                    "correction": ["No, please use my PayPal account."],
                },
            }
        ],
        outcomes=[
            [
                write(
                    "change_payment_method",
                    order_id=order.order_id,
                    method_id=person.paypal.method_id,
                )
            ]
        ],
        told=[refusal("balance"), amount(order.total)],
        look_up=[order],
        instructions=["If the gift card doesn't cover it, ask for PayPal instead."],
    )
