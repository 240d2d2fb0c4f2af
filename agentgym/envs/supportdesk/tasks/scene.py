"""What a family's generator works with: one customer, their orders, and what they say.

A generator sets up orders and ends with `Scene.task`, which is the only place where scenario and
reference are put together, so that no family can forget an identity, a look-up or an amount.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.supportdesk.reference import Ground, Reference, Told, TransferReason, Write
from agentgym.envs.supportdesk.shop import Item, Method, Order, Person, Shop, Variant
from agentgym.simulator import Scenario

PERSONAS = (
    "You are polite and to the point.",
    "You are friendly and a little chatty.",
    "You are in a hurry and write short messages.",
    "You are annoyed, but civil.",
    "You are careful and want to know what happens.",
)
RULES = (
    "Give personal details, order numbers and preferences only when you are asked for them.",
    "Agree to a change only if the agent says exactly what will be done, and it is what you want.",
    "Leave once everything you came for is done or definitely refused.",
)


@dataclass(frozen=True)
class SupportTask:
    """A generated task."""

    number: int
    """Position in its family."""
    family: str
    scenario: Scenario
    reference: Reference


def write(tool: str, **arguments: Any) -> Write:
    """A change that is right."""
    return Write(tool=tool, arguments=arguments)


def amount(cents: int) -> Told:
    """An amount the customer must be told."""
    return Told(amount=cents)


def refusal(ground: Ground) -> Told:
    """A refusal the customer must be told, with its reason."""
    return Told(refusal=ground)


@dataclass
class Scene:
    """One task while it is made."""

    shop: Shop
    family: str
    number: int
    person: Person
    facts: dict[str, str] = field(default_factory=dict)
    cues: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reluctant: dict[str, str] = field(default_factory=dict)

    @property
    def rng(self) -> random.Random:
        """The shop's generator."""
        return self.shop.rng

    def subject(self, order: Order, *, named: Item | None = None) -> str:
        """How the customer speaks of an order in their request, and what they know of its number.

        A third names it at once, a third when asked, and a third doesn't know it and can only say
        what was in it.

        Args:
            order: The order.
            named: The item of it that the request names anyway.
        """
        item = named or order.items[0]
        knows = self.number % 3
        if knows == 2:
            self.facts["order_id"] = (
                f"I don't have the order number, but it's the one with the {item.product}."
            )
            return "an order of mine" if named else f"my order with the {item.product}"
        self.facts["order_id"] = order.order_id
        return f"order {order.order_id}" if knows == 0 else "an order I placed with you"

    def fact(self, name: str, value: str, *cues: str) -> None:
        """Something more that the customer tells when asked."""
        self.facts[name] = value
        self.cues[name] = cues

    def pay_into(self, order: Order, method: Method) -> str:
        """How the customer names a payment method of theirs."""
        if method.kind == "credit_card":
            brand = method.label.split()[0]
            return f"my {brand}" if brand.endswith("card") else f"my {brand} card"
        return "my gift card" if method.kind == "gift_card" else "my PayPal account"

    def task(
        self,
        *,
        goal: str,
        requests: Sequence[dict[str, Any]],
        outcomes: Sequence[Sequence[Write]] = ((),),
        told: Sequence[Told] = (),
        look_up: Sequence[Order] = (),
        transfer: TransferReason | None = None,
        instructions: Sequence[str] = (),
    ) -> SupportTask:
        """Put the task together.

        Args:
            goal: For a user played by a model: "You want …".
            requests: For a scripted user; see `agentgym.simulators.user_script.Request`.
            outcomes: See `Reference`, like the next three.
            told: What the customer must be told.
            look_up: Orders that must have been looked at.
            transfer: Why a human must take over.
            instructions: How the user reacts, for a model.
        """
        person = self.person
        facts = {
            "email": person.email,
            "name": person.name,
            "zip": person.zip,
            **self.facts,
        }
        script: dict[str, Any] = {"requests": list(requests), "cues": self.cues}
        if self.reluctant:
            script["reluctant"] = self.reluctant
        return SupportTask(
            number=self.number,
            family=self.family,
            scenario=Scenario(
                goal=_to_them(goal),
                persona=self.rng.choice(PERSONAS),
                facts=facts,
                instructions=(*instructions, *RULES),
                script=script,
            ),
            reference=Reference(
                customer_id=person.customer_id,
                outcomes=tuple(tuple(each) for each in outcomes),
                told=tuple(told),
                look_up=tuple(order.order_id for order in look_up),
                transfer=transfer,
            ),
        )


def _to_them(goal: str) -> str:
    """A goal with what the customer would say of themselves turned to the second person."""
    goal = goal.replace("an order I placed with you", "an order you placed")
    goal = goal.replace("of mine", "of yours").replace("My ", "Your ")
    return re.sub(r"\bme\b", "you", re.sub(r"\bmy\b", "your", goal))


def proposal(order: Order, *actions: str) -> list[list[str]]:
    """Words a right proposal names: the order, and one for the action."""
    return [[order.order_id], list(actions)]


def names(variant: Variant, instead_of: Variant) -> list[list[str]]:
    """Words that tell a variant from another: its id, or the values that differ."""
    return [[variant.variant_id, value] for value in variant.differs_from(instead_of)]
