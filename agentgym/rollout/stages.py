"""INIT, RUN, EVAL: three stages, each with its own slots.

A slow stage fills only its own slots. Time spent waiting for a slot is nobody's: clocks start when
the slot is taken. Each stage counts who is in it and how long its slots were held, from which
`status` and the metrics read queue depths and occupancy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentgym.rollout.limits import Limits
from agentgym.trace import Stage


class StageSlots:
    """The slots of one stage, first come first served.

    Args:
        name: The stage, as it is called in traces.
        slots: Episodes in it at once.
    """

    def __init__(self, name: Stage, *, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.active = 0
        """Episodes that hold a slot."""
        self.waiting = 0
        """Episodes that wait for one."""
        self.entered = 0
        """Episodes that have been given one so far."""
        self._semaphore = asyncio.Semaphore(slots)
        # Seconds held by those that left, how many are inside, the sum of when they began; in one
        # tuple, since the metrics are read from another thread.
        self._held = (0.0, 0, 0.0)

    @asynccontextmanager
    async def slot(self, stage_s: dict[str, float]) -> AsyncIterator[None]:
        """Hold a slot, and note the seconds it was held; it is given back whatever happens."""
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        started = self._enter()
        try:
            yield
        finally:
            stage_s[self.name] = self._leave(started)
            self._semaphore.release()

    def _enter(self) -> float:
        started = time.perf_counter()
        self.active += 1
        self.entered += 1
        held_s, inside, began = self._held
        self._held = (held_s, inside + 1, began + started)
        return started

    def _leave(self, started: float) -> float:
        seconds = time.perf_counter() - started
        self.active -= 1
        held_s, inside, began = self._held
        began = began - started if inside > 1 else 0.0  # so that no rounding piles up
        self._held = (held_s + seconds, inside - 1, began)
        return seconds

    @property
    def mean_s(self) -> float | None:
        """Seconds an episode held its slot, over those that have left; None if none has."""
        left = self.entered - self.active
        return self._held[0] / left if left else None

    @property
    def busy_s(self) -> float:
        """Slot-seconds used so far, by those that are inside, too."""
        held_s, inside, began = self._held
        return held_s + inside * time.perf_counter() - began


class Admission:
    """Places for episodes begun and not through with their turns; bounds the live environments.

    Args:
        places: Episodes at once.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.waiting = 0
        """Requests that have been taken up and wait for a place."""
        self._semaphore = asyncio.Semaphore(places)

    async def acquire(self) -> None:
        """Wait for a place."""
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.taken += 1

    def release(self) -> None:
        """Give a place back."""
        self.taken -= 1
        self._semaphore.release()


class Stages:
    """The three stages of an engine on one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.init = StageSlots("init", slots=limits.init_concurrency)
        self.run = StageSlots("run", slots=limits.concurrency)
        self.eval = StageSlots("eval", slots=limits.eval_concurrency)
        self.admission = Admission(limits.init_concurrency + limits.concurrency)
