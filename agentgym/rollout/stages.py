"""INIT, RUN, EVAL: three stages, each with its own slots.

A slow stage fills only its own slots. Time spent waiting for a slot is nobody's: clocks start when
the slot is taken. No queue grows without end: the places of `Admission` bound who waits for INIT
and RUN, and while too many wait for EVAL none of them is given out. Whoever has one is held up by
no later stage, so everybody who waits is served in the end. Each stage counts who is in it and how
long its slots were held, from which `status` and the metrics read queue depths and occupancy.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType

from agentgym.errors import ConfigError
from agentgym.rollout.limits import Limits
from agentgym.trace import Stage


class Places:
    """A semaphore, first come first served, whose size may change while places are taken.

    Args:
        size: Places at once; where it shrinks, those taken beyond it are not given out again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a place."""
        self._serve()  # whoever was cancelled at the head of the line holds nobody up
        if self.taken < self.size and not self._waiters:
            self.taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # it came together with the cancellation
                self.release()
            raise

    def release(self) -> None:
        """Give a place back."""
        self.taken -= 1
        self._serve()

    def resize(self, size: int) -> None:
        """Have so many places from now on."""
        self.size = size
        self._serve()

    def _serve(self) -> None:
        while self._waiters and (self._waiters[0].done() or self.taken < self.size):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)


class StageSlots:
    """The slots of one stage, first come first served.

    Args:
        name: The stage, as it is called in traces.
        slots: Episodes in it at once; a group that is judged together is in one slot.
        backlog: Waiting episodes at which the stage counts as full; None: never.
    """

    def __init__(self, name: Stage, *, slots: int, backlog: int | None = None) -> None:
        self.name = name
        self.backlog = backlog
        self.active = 0
        """Episodes that hold a slot."""
        self.waiting = 0
        """Episodes that wait for one."""
        self.entered = 0
        """Episodes that have been given one so far."""
        self._places = Places(slots)
        self._wanting_room: list[asyncio.Future[None]] = []
        # Seconds held by those that left, how many are inside, the sum of when they began; in one
        # tuple, since the metrics are read from another thread.
        self._held = (0.0, 0, 0.0)

    @property
    def slots(self) -> int:
        """Episodes that may be in it at once."""
        return self._places.size

    def resize(self, slots: int) -> None:
        """Have so many slots from now on; nobody is put out."""
        self._places.resize(slots)

    def slot(self, stage_s: dict[str, float], *, episodes: int = 1) -> Slot:
        """A slot to hold; the seconds it was held are noted.

        Args:
            stage_s: Gets the seconds under the stage's name; those of several stays add up.
            episodes: How many wait for it together.
        """
        return Slot(self, stage_s, episodes)

    @property
    def is_full(self) -> bool:
        """Whether so many wait that no further episode should begin."""
        return self.backlog is not None and self.waiting >= self.backlog

    async def room(self) -> None:
        """Wait until the stage is not full."""
        while self.is_full:
            wanting = asyncio.get_running_loop().create_future()
            self._wanting_room.append(wanting)
            try:
                await wanting
            finally:
                if wanting in self._wanting_room:
                    self._wanting_room.remove(wanting)

    async def take(self, episodes: int) -> float:
        """Wait for a slot; returns when it was taken, on `time.perf_counter`."""
        self.waiting += episodes
        try:
            await self._places.acquire()
        finally:
            self.waiting -= episodes
            if self._wanting_room and not self.is_full:
                wanting, self._wanting_room = self._wanting_room, []
                for future in wanting:
                    if not future.done():
                        future.set_result(None)
        return self._enter()

    def give_back(self, started: float) -> float:
        """Free a slot that was taken then; returns the seconds it was held."""
        seconds = self._leave(started)
        self._places.release()
        return seconds

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


class Slot:
    """One slot of a stage, held inside `async with`; it is given back once, whoever does it first.

    Args:
        stage: Whose.
        stage_s: Gets the seconds.
        episodes: How many wait for it together.
    """

    def __init__(self, stage: StageSlots, stage_s: dict[str, float], episodes: int) -> None:
        self._stage = stage
        self._stage_s = stage_s
        self._episodes = episodes
        self._started: float | None = None

    async def __aenter__(self) -> Slot:
        self._started = await self._stage.take(self._episodes)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Free the slot, if it is held: also for somebody who will never do it."""
        if self._started is None:
            return
        started, self._started = self._started, None
        name = self._stage.name
        self._stage_s[name] = self._stage_s.get(name, 0.0) + self._stage.give_back(started)


class Admission:
    """Places for episodes begun and not through with their turns; bounds the live environments.

    Args:
        places: Episodes at once.
        last: The stage that comes after them; while it is full, nobody is admitted.
    """

    def __init__(self, places: int, last: StageSlots | None = None) -> None:
        self._last = last
        self.waiting = 0
        """Requests that have been taken up and wait for a place."""
        self._places = Places(places)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def places(self) -> int:
        """Episodes at once."""
        return self._places.size

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._places.taken

    def resize(self, places: int) -> None:
        """Have so many places from now on; nobody is put out."""
        self._places.resize(places)

    async def acquire(self) -> None:
        """Wait for a place.

        Raises:
            ConfigError: If episodes of another event loop have places.
        """
        self._stay_on_loop()
        self.waiting += 1
        try:
            while True:
                if self._last is not None:
                    await self._last.room()
                await self._places.acquire()
                if self._last is None or not self._last.is_full:
                    return
                self._places.release()  # it has filled up meanwhile
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """Give a place back."""
        self._places.release()

    def _stay_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed() and (self.taken or self.waiting):
            raise ConfigError(
                "stages: their slots are in use on another event loop, and waiting for one would "
                "never end; run the engines that share them on one loop, or let them all use "
                "run_blocking"
            )
        self._loop = loop


class Stages:
    """The three stages of an engine on one event loop; several engines on it may share them."""

    def __init__(self, limits: Limits) -> None:
        self.init = StageSlots("init", slots=limits.init_concurrency)
        self.run = StageSlots("run", slots=limits.concurrency)
        self.eval = StageSlots("eval", slots=limits.eval_concurrency, backlog=limits.backlog)
        self.admission = Admission(limits.init_concurrency + limits.concurrency, self.eval)

    def resize(self, limits: Limits) -> None:
        """Take on the slots of other limits; nobody is put out."""
        self.init.resize(limits.init_concurrency)
        self.run.resize(limits.concurrency)
        self.eval.resize(limits.eval_concurrency)
        self.eval.backlog = limits.backlog
        self.admission.resize(limits.init_concurrency + limits.concurrency)
