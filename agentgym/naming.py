"""Which episode the running code works for, by a name that is the same in every run.

A session id tells episodes apart while they run, and is new each time. A recording must find an
episode again in another run, whatever the order in which episodes advance, and through layers that
know nothing of episodes (a judge, a tool that calls a model). So whoever plays episodes names them,
and whoever records asks for the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_name: ContextVar[str | None] = ContextVar("agentgym_episode", default=None)


@contextmanager
def episode_named(name: str) -> Iterator[None]:
    """Say which episode the block works for; tasks and threads started inside inherit it.

    Args:
        name: Follows from what was asked for (task, seed, sample) and from nothing else.
    """
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def episode_name() -> str | None:
    """The episode that the running code works for; None outside of any."""
    return _name.get()
