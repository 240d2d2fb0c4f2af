"""Families with a twist in the conversation: changed minds, two wishes, namesakes, delays."""

from __future__ import annotations

from agentgym.envs.supportdesk.tasks.orders import (
    address_words,
    give_reason,
    new_address,
    pending,
)
from agentgym.envs.supportdesk.tasks.returns import delivered
from agentgym.envs.supportdesk.tasks.scene import (
    Scene,
    SupportTask,
    amount,
    proposal,
    write,
)

LATE_CREDIT = 1500
"""Cents of store credit for an order that came more than five days late."""


def changed_mind(scene: Scene) -> SupportTask:
    """Ask to cancel, and at the last moment have the parcel sent elsewhere instead."""
    order = pending(scene)
    give_reason(scene)
    address = new_address(scene)
    subject = scene.subject(order)
    line = scene.facts["new_address"]
    return scene.task(
        goal=f"You first want to cancel {subject}. When the agent asks you to confirm, you change "
        f"your mind: keep it, but have it sent to another address.",
        requests=[
            {
                "ask": [f"I'd like to cancel {subject}.", f"Please cancel {subject}."],
                "wants": proposal(order, "cancel"),
                "change": {
                    "ask": [
                        "Wait, I changed my mind: keep the order, but send it to a new address.",
                        (
                            "Hold on. Don't stop the order after all. Could you change its "
                            "shipping address instead?"
                        ),
                    ],
                    "wants": [*proposal(order, "address", "ship"), *address_words(address)],
                    "correction": [f"That's not right. {line}"],
                },
            }
        ],
        outcomes=[[write("change_shipping_address", order_id=order.order_id, **address)]],
        look_up=[order],
        instructions=["Change your mind once, at the first request to confirm, and never back."],
    )


def two_requests(scene: Scene) -> SupportTask:
    """Cancel one order and then readdress another."""
    first, second = pending(scene), pending(scene)
    reason = give_reason(scene)
    address = new_address(scene)
    scene.facts["order_id"] = first.order_id
    ids = first.order_id, second.order_id
    return scene.task(
        goal=f"You want to cancel order {ids[0]}, and once that is done, to change the shipping "
        f"address of order {ids[1]}.",
        requests=[
            {
                "ask": [f"Please cancel order {ids[0]}.", f"I'd like to cancel order {ids[0]}."],
                "wants": proposal(first, "cancel"),
                "rejects": [ids[1]],
                "correction": [f"One after the other, please: first cancel order {ids[0]}."],
            },
            {
                "ask": [
                    f"Please change the shipping address of order {ids[1]}.",
                    f"I also need order {ids[1]} sent to a new address.",
                ],
                "wants": [*proposal(second, "address", "ship"), *address_words(address)],
                "correction": [f"That's not right. {scene.facts['new_address']}"],
            },
        ],
        outcomes=[
            [
                write("cancel_order", order_id=ids[0], reason=reason),
                write("change_shipping_address", order_id=ids[1], **address),
            ]
        ],
        told=[amount(first.total)],
        look_up=[first, second],
        instructions=["Come with the second request only when the first is done."],
    )


def namesake(scene: Scene) -> SupportTask:
    """Be one of two customers of the same name and zip code."""
    scene.person = scene.shop.person(like=scene.person)
    order = pending(scene)
    reason = give_reason(scene)
    subject = scene.subject(order)
    scene.reluctant["email"] = (
        f"I don't know which email address I used. My name is {scene.person.name}, "
        f"zip code {scene.person.zip}."
    )
    return scene.task(
        goal=f"You want to cancel {subject}.",
        requests=[
            {
                "ask": [f"I need to cancel {subject}.", f"Could you cancel {subject} for me?"],
                "wants": proposal(order, "cancel"),
            }
        ],
        outcomes=[[write("cancel_order", order_id=order.order_id, reason=reason)]],
        told=[amount(order.total)],
        look_up=[order],
        instructions=[
            (
                "At first give your name and zip code, and your email address only if that isn't "
                "enough to find you."
            )
        ],
    )


def late_credit(scene: Scene) -> SupportTask:
    """Ask for compensation of a long delay: store credit."""
    arrived, late = scene.rng.randrange(2, 20), scene.rng.randrange(6, 15)
    order = delivered(scene, days_ago=arrived, late=late)
    subject = scene.subject(order)
    return scene.task(
        goal=f"Delivery of {subject} was very late. You want a compensation.",
        requests=[
            {
                "ask": [
                    f"The delivery of {subject} was late. I want to be compensated.",
                    f"I'd like a compensation for the late delivery of {subject}.",
                ],
                "wants": proposal(order, "credit"),
                "correction": ["I'd take store credit for the delay."],
            }
        ],
        outcomes=[[write("issue_store_credit", order_id=order.order_id, amount_cents=LATE_CREDIT)]],
        told=[amount(LATE_CREDIT)],
        look_up=[order],
        instructions=["Take what the agent offers, if it is store credit."],
    )
