"""What solves a task: end states that are right, and what the customer must be told.

Hidden from the policy, and from the record of what the episode did: it is the verifier that brings
the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from pydantic import Field

from agentgym.envs.supportdesk import service
from agentgym.envs.supportdesk.store import Store
from agentgym.types import Record

Ground: TypeAlias = Literal[
    "shipped",
    "return_window",
    "final_sale",
    "other_customer",
    "price_match",
    "not_late",
    "balance",
    "stock",
]
"""Why something is refused."""
TransferReason: TypeAlias = Literal["suspected fraud", "lost parcel", "product safety"]


class Write(Record):
    """One change of the database, by the tool that makes it."""

    tool: str
    arguments: dict[str, Any]


class Told(Record):
    """One thing the customer must be told."""

    amount: int | None = None
    """Cents."""
    day: str | None = None
    """A date, as YYYY-MM-DD."""
    refusal: Ground | None = None
    """That something is refused, and why."""


class Reference(Record):
    """The solution of a task."""

    customer_id: str
    """Who is to be identified."""
    outcomes: tuple[tuple[Write, ...], ...] = Field(default=((),), min_length=1)
    """Each a set of changes that is right; `()` is none at all."""
    told: tuple[Told, ...] = ()
    look_up: tuple[str, ...] = ()
    """Orders without a look at which nobody can know the answer."""
    transfer: TransferReason | None = None
    """Why a human must take over; None: they mustn't."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the shop must be left as it is."""
        return self.outcomes == ((),)


APPLY: dict[str, Callable[..., Any]] = {
    "cancel_order": service.cancel,
    "change_shipping_address": service.change_address,
    "change_payment_method": service.change_payment,
    "change_items": service.change_items,
    "return_items": service.return_items,
    "exchange_items": service.exchange_items,
    "issue_store_credit": service.store_credit,
}
"""What a `Write` does, by its tool; the arguments are those of the operation."""


def apply(store: Store, writes: tuple[Write, ...]) -> None:
    """Make changes, as a perfect agent would have made them."""
    for write in writes:
        APPLY[write.tool](store, **write.arguments)
