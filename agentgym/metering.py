"""What model calls cost, charged to whatever they were made for.

A judge may ask three models twice each and fail in the end; a simulator may be called from inside a
tool. Handing usage back through every one of these layers would lose it wherever one raises. So
the client that pays calls `charge`, and whoever wants to know opens a meter around the work. Meters
nest, each sees everything spent inside it, and tasks started inside one inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
