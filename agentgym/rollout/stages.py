"""INIT, RUN, EVAL: three stages, each with its own slots.

A slow stage fills only its own slots. Time spent waiting for a slot is nobody's: clocks start when
the slot is taken.
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
        self.active = 0
        self._semaphore = asyncio.Semaphore(slots)

    @asynccontextmanager
    async def slot(self, stage_s: dict[str, float]) -> AsyncIterator[None]:
        """Hold a slot, and note the seconds it was held; it is given back whatever happens."""
        async with self._semaphore:
            self.active += 1
            started = time.perf_counter()
            try:
                yield
            finally:
                self.active -= 1
                stage_s[self.name] = time.perf_counter() - started


class Stages:
    """The three stages of an engine on one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.init = StageSlots("init", slots=limits.init_concurrency)
        self.run = StageSlots("run", slots=limits.concurrency)
        self.eval = StageSlots("eval", slots=limits.eval_concurrency)
        self.admission = asyncio.Semaphore(limits.init_concurrency + limits.concurrency)
        """Episodes begun and not through with their turns; bounds the live environments."""
