"""Families in which the shop's database stays as it is: questions, refusals and transfers."""

from __future__ import annotations

from agentgym.envs.supportdesk.reference import Told, TransferReason
from agentgym.envs.supportdesk.shop import Order, day
from agentgym.envs.supportdesk.store import Row
from agentgym.envs.supportdesk.tasks.orders import pending
from agentgym.envs.supportdesk.tasks.returns import delivered
from agentgym.envs.supportdesk.tasks.scene import (
    Scene,
    SupportTask,
    amount,
    refusal,
)
from agentgym.envs.supportdesk.wording import GROUNDS

AN_AMOUNT = r"\$\s?\d|\d\s?(dollars|usd)"


def refund_status(scene: Scene) -> SupportTask:
    """Ask what was refunded for a cancelled order, and when."""
    shop, placed = scene.shop, scene.rng.randrange(8, 25)
    order = shop.order(scene.person, shop.variants(2), status="cancelled", placed=placed)
    refunded = day(placed - scene.rng.randrange(1, 5))
    row: Row = (order.order_id, "refund", order.method.method_id, order.total, refunded)
    shop.rows["ledger"].append(row)
    subject = scene.subject(order)
    return scene.task(
        goal=f"You cancelled {subject} and want to know how much was refunded, and when.",
        requests=[
            {
                "ask": [
                    f"I cancelled {subject}. How much was refunded, and on what day?",
                    (
                        f"What's the status of the refund for {subject}, which I cancelled? "
                        "I'd like to know how much it was and on what day it went out."
                    ),
                ],
                "answer": AN_AMOUNT,
            }
        ],
        told=[amount(order.total), Told(day=refunded)],
        look_up=[order],
    )


def spending(scene: Scene) -> SupportTask:
    """Ask what two orders cost together."""
    orders = [scene.shop.any_order(scene.person), delivered(scene, 2)]
    ids = " and ".join(order.order_id for order in orders)
    return scene.task(
        goal=f"You want to know how much you spent on orders {ids} together.",
        requests=[
            {
                "ask": [
                    f"How much did I spend in total on orders {ids}?",
                    f"Could you tell me what orders {ids} cost me in total?",
                ],
                "answer": AN_AMOUNT,
            }
        ],
        told=[amount(sum(order.total for order in orders))],
        look_up=orders,
    )


def others_order(scene: Scene) -> SupportTask:
    """Ask for something about somebody else's order: refused."""
    mine = scene.person
    friend = scene.person = scene.shop.person()
    order = pending(scene)
    scene.person = mine
    scene.facts["order_id"] = order.order_id
    scene.fact("reason", "They don't need it any more.")
    who = scene.rng.choice(("My friend", "My sister", "My neighbor", "My colleague"))
    what = scene.rng.choice(("cancel order {0}", "give me the delivery address of order {0}"))
    what = what.format(order.order_id)
    return scene.task(
        goal=f"{who} {friend.first} placed order {order.order_id}. You want the agent to {what}. "
        "You only have your own details.",
        requests=[
            {
                "ask": [
                    f"{who} {friend.first} asked me to get something done. Please {what}.",
                    f"I'm writing for {friend.first}. Could you {what}?",
                ],
                "refusable": GROUNDS["other_customer"],
                "objections": [f"{friend.first} really did ask me. Can't you do it for me?"],
            }
        ],
        told=[refusal("other_customer")],
        look_up=[order],
        instructions=["Give only your own name, email address and zip code.", "Insist once."],
    )


def price_match(scene: Scene) -> SupportTask:
    """Ask for a lower price because of another shop's: refused."""
    order = delivered(scene) if scene.number % 2 else pending(scene)
    item = order.items[0]
    less = scene.rng.randrange(5, 12)
    subject = scene.subject(order, named=item)
    return scene.task(
        goal=f"Another shop sells the {item.product} for ${less} less than you paid with "
        f"{subject}. You want the difference back.",
        requests=[
            {
                "ask": [
                    (
                        f"I found the {item.product} from {subject} ${less} cheaper elsewhere. "
                        "I'd like the difference back."
                    ),
                    (
                        f"The {item.product} of {subject} is ${less} cheaper elsewhere. "
                        "Can I get the difference?"
                    ),
                ],
                "refusable": GROUNDS["price_match"],
                "objections": ["Other shops do it. Couldn't you do it just this once?"],
            }
        ],
        told=[refusal("price_match")],
        look_up=[order],
        instructions=["If you are refused with a reason, insist once, then give in."],
    )


def credit_not_due(scene: Scene) -> SupportTask:
    """Ask for compensation of a delay that is too short for any: refused."""
    arrived, late = scene.rng.randrange(3, 20), scene.rng.randrange(1, 6)
    order = delivered(scene, days_ago=arrived, late=late)
    subject = scene.subject(order)
    return scene.task(
        goal=f"Delivery of {subject} was late. You want a compensation.",
        requests=[
            {
                "ask": [
                    f"The delivery of {subject} was late. I want to be compensated.",
                    f"Late again! I'd like a compensation for the delivery of {subject}.",
                ],
                "refusable": GROUNDS["not_late"],
                "objections": ["Late is late. Can't you give me anything?"],
            }
        ],
        told=[refusal("not_late")],
        look_up=[order],
        instructions=["If you are refused with a reason, insist once, then give in."],
    )


def fraud(scene: Scene) -> SupportTask:
    """Report an order that somebody else placed: a human takes over."""
    order = pending(scene)
    product = order.items[0].product
    scene.facts["order_id"] = order.order_id
    subject = f"order {order.order_id}"
    if scene.number % 2:
        scene.facts["order_id"] = f"I only see that it's the one with the {product}."
        subject = f"an order of the {product}"
    return _transferred(
        scene,
        order,
        reason="suspected fraud",
        goal=f"You never placed {subject}, but it is on your account. You want that looked into.",
        asks=[
            f"I never placed {subject}, and yet it was charged to me. Somebody else must have.",
            f"There's a charge for {subject}, which I didn't place. I think I was hacked.",
        ],
    )


def lost_parcel(scene: Scene) -> SupportTask:
    """Ask for a parcel that has been under way for more than three weeks: a human takes over."""
    shipped = scene.rng.randrange(22, 40)
    shop = scene.shop
    order = shop.order(
        scene.person, shop.variants(1), status="shipped", placed=shipped + 2, shipped=shipped
    )
    subject = scene.subject(order)
    return _transferred(
        scene,
        order,
        reason="lost parcel",
        goal=f"You are still waiting for {subject}. You want to know what happens now.",
        asks=[
            f"I'm still waiting for {subject}. It never arrived.",
            f"Where is my parcel? I mean {subject}, which never arrived.",
        ],
    )


def product_safety(scene: Scene) -> SupportTask:
    """Report that a product hurt somebody or nearly did: a human takes over."""
    order = delivered(scene)
    product = order.items[0].product
    harm = scene.rng.choice(("cut my hand badly", "gave me a skin burn", "made me bleed"))
    subject = scene.subject(order, named=order.items[0])
    return _transferred(
        scene,
        order,
        reason="product safety",
        goal=f"The {product} of {subject} broke and {harm}. You want the shop to know, no money.",
        asks=[
            f"The {product} from {subject} broke and {harm}. You should know about that.",
            f"I got injured: the {product} of {subject} broke and {harm}.",
        ],
    )


def _transferred(
    scene: Scene, order: Order, *, reason: TransferReason, goal: str, asks: list[str]
) -> SupportTask:
    return scene.task(
        goal=goal,
        requests=[
            {
                "ask": asks,
                "wants": [["transfer", "human", "specialist", "colleague", "connect you"]],
            }
        ],
        look_up=[order],
        transfer=reason,
        instructions=["Agree to be transferred to a human."],
    )
