"""One service's slots, shared fairly by the clients that want them.

Each job asks for one place at a time. A place that becomes free goes to the client that holds the
fewest, so a client with ten thousand episodes and one with ten both move on, whoever came first. A
client may also be bounded by its quota, and a job by its own limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from agentgym.rollout.limits import Limits
from agentgym.rollout.stages import Admission, Stages


@dataclass(eq=False)
class _Waiter:
    seat: FairAdmission
    ready: asyncio.Future[None]


class SharedStages:
    """The stages of a service, on one event loop.

    Args:
        limits: How many episodes at once in each stage.
    """

    def __init__(self, limits: Limits) -> None:
        self.stages = Stages(limits)
        self.places = self.stages.admission.places
        self.taken: Counter[str] = Counter()
        """Places held, by client."""
        self._waiters: list[_Waiter] = []

    def for_job(self, caller: str, *, quota: int | None, limits: Limits) -> Stages:
        """The stages as one client's engine sees them.

        Args:
            caller: The client.
            quota: Places for it at most, all its engines together.
            limits: The engine's own; its places are as many as they would give it alone.
        """
        own = limits.init_concurrency + limits.concurrency
        return _CallersStages(self.stages, FairAdmission(self, caller, quota=quota, places=own))

    def hand_out(self) -> None:
        """Give free places to those who wait, the client with the fewest first."""
        while self.taken.total() < self.places:
            self._waiters = [waiter for waiter in self._waiters if not waiter.ready.done()]
            able = [waiter for waiter in self._waiters if waiter.seat.has_room]
            if not able:
                return
            chosen = min(able, key=lambda waiter: self.taken[waiter.seat.caller])
            self._waiters.remove(chosen)
            self.taken[chosen.seat.caller] += 1
            chosen.seat.held += 1
            chosen.ready.set_result(None)

    async def wait(self, seat: FairAdmission) -> None:
        """Wait for a place, which then is held."""
        waiter = _Waiter(seat, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self.hand_out()
        try:
            await waiter.ready
        except asyncio.CancelledError:
            if waiter.ready.done() and not waiter.ready.cancelled():  # was given one just now
                self.give_back(seat)
            raise

    def give_back(self, seat: FairAdmission) -> None:
        """A place is free again."""
        self.taken[seat.caller] -= 1
        seat.held -= 1
        self.hand_out()


class FairAdmission(Admission):
    """One engine's way to the shared places.

    Args:
        shared: The places.
        caller: Whose engine it is.
        quota: The client's places at most.
        places: The engine's places at most.
    """

    def __init__(
        self, shared: SharedStages, caller: str, *, quota: int | None, places: int
    ) -> None:
        super().__init__(min(places, shared.places), shared.stages.eval)
        self.caller = caller
        self.held = 0
        """Its places in use."""
        self._shared = shared
        self._quota = quota

    @property
    def taken(self) -> int:
        """Its places in use."""
        return self.held

    @property
    def has_room(self) -> bool:
        """Whether client and engine may have one more."""
        by_client = self._shared.taken[self.caller]
        return self.held < self.places and (self._quota is None or by_client < self._quota)

    async def acquire(self) -> None:
        """Wait for a place, and for the judges to keep up; see `Admission`."""
        self.waiting += 1
        judging = self._shared.stages.eval
        try:
            while True:
                await judging.room()
                await self._shared.wait(self)
                if not judging.is_full:
                    return
                self.release()  # it has filled up meanwhile
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """Give a place back."""
        self._shared.give_back(self)


class _CallersStages(Stages):
    """The shared slots, behind an admission of one's own."""

    def __init__(self, shared: Stages, admission: FairAdmission) -> None:
        self.init, self.run, self.eval = shared.init, shared.run, shared.eval
        self.admission = admission
