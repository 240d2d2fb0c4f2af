"""What model calls cost, charged to whatever they were made for.

A judge may ask three models twice each and fail in the end; a simulator may be called from inside a
tool. Handing usage back through every one of these layers would lose it wherever one raises. So
the client that pays calls `charge`, and whoever wants to know opens a meter around the work. Meters
nest, each sees everything spent inside it, and tasks started inside one inherit it.

A bill comes too late for a budget. Whoever has one opens a purse as well, and a client that knows
what a request can cost at most asks it before each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from agentgym.types import Usage


class Meter:
    """Tokens and dollars by role."""

    def __init__(self) -> None:
        self.by_role: dict[str, Usage] = {}
        self.refused: dict[str, str] = {}
        """Roles whose endpoint will answer no further call, with what it said."""

    def add(self, role: str, usage: Usage) -> None:
        """Add what a call cost."""
        known = self.by_role.get(role)
        self.by_role[role] = usage if known is None else known + usage


def add_by_role(total: dict[str, Usage], spent: Mapping[str, Usage]) -> None:
    """Add to a total by role what something else cost."""
    for role, usage in spent.items():
        total[role] = total[role] + usage if role in total else usage


def sum_by_role(*parts: Mapping[str, Usage]) -> dict[str, Usage]:
    """What several things cost together, by role."""
    total: dict[str, Usage] = {}
    for part in parts:
        add_by_role(total, part)
    return total


_open: ContextVar[tuple[Meter, ...]] = ContextVar("agentgym_meters", default=())


@contextmanager
def metered(meter: Meter) -> Iterator[Meter]:
    """Count on `meter`, too, everything charged inside the block."""
    token = _open.set((*_open.get(), meter))
    try:
        yield meter
    finally:
        _open.reset(token)


def charge(role: str, usage: Usage) -> None:
    """Tell every open meter what a call cost; clients call it once per call, failed ones too.

    Args:
        role: The endpoint's role.
        usage: All attempts of the call together.
    """
    for meter in _open.get():
        meter.add(role, usage)


def report_refusal(role: str, reason: str) -> None:
    """Tell every open meter that an endpoint refuses its caller for good.

    A judge or a simulator turns this into a masked episode, as any failure; whoever plays thousands
    must know that the next one will fare no better.

    Args:
        role: The endpoint's role.
        reason: Wrong key, no credit or budget used up, in the client's words.
    """
    for meter in _open.get():
        meter.refused[role] = reason


class Purse(Protocol):
    """A budget out of which all requests made inside a block are paid, whichever client's."""

    async def hold(self, role: str, *, tokens: float, usd: float | None) -> Any:
        """Set aside the most that one request can take, as soon as there is so much.

        Args:
            role: The endpoint's role.
            tokens: Input and output together; infinite where the output has no limit.
            usd: None where the endpoint has no prices.

        Returns:
            What `let_go` takes.

        Raises:
            BudgetExceeded: If the request might overrun the budget.
        """

    def let_go(self, held: Any, *, tokens: float, usd: float) -> None:
        """The request is over, and this is what it took; the rest is there for others."""


_purse: ContextVar[Purse | None] = ContextVar("agentgym_purse", default=None)


@contextmanager
def paid_from(purse: Purse | None) -> Iterator[None]:
    """Pay every request made inside the block out of a purse; None is none."""
    token = _purse.set(purse)
    try:
        yield
    finally:
        _purse.reset(token)


def open_purse() -> Purse | None:
    """What requests are to be paid from; None where nobody minds."""
    return _purse.get()
