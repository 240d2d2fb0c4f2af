"""Watches an engine: counts, shows the progress, notices that nothing moves, tells the status.

An engine makes one, hands it to its episodes as their progress, and holds `watching(backend)` open
while a run goes on:

    observer = Observer(progress_for(progress), client=client, stuck_after_s=60)
    async with observer.watching(backend):
        ...  # play
    observer.status().text()
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentgym.client import Endpoint, public_url
from agentgym.rollout.backend import Backend
from agentgym.rollout.limits import Limits
from agentgym.rollout.progress import Dropping, NoProgress, Noting, Progress, Ticking
from agentgym.rollout.stage_figures import SeenStages, StageFigures, figures_of
from agentgym.rollout.stages import Stages
from agentgym.rollout.status import (
    AdmissionStatus,
    EngineStatus,
    StageStatus,
    oldest,
    replicas_text,
    waits,
)
from agentgym.rollout.tally import LagSamples, Sample, Tally, Window
from agentgym.rollout.watch import LoopWatch, StuckWatch
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.threads import abandoned
from agentgym.trace import Trace
from agentgym.types import Usage

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""Between two looks at a run, seconds."""


@dataclass
class _WatchedLoop:
    watch: LoopWatch
    backend: Backend
    runs: int = 0


class Observer:
    """Counts what an engine does; a `Progress`, which passes everything on to the one shown.

    Args:
        shown: The progress that people see.
        client: The policy; one that has a `status()` is asked for its replicas.
        limits: The engine's, for a backend that keeps its slots elsewhere.
        stuck_after_s: Seconds without any move after which a warning says where the episodes are;
            None for none.
        blocked_after_s: Seconds after which a blocked event loop is told on; None for never.
        clock: Seconds, as `Whereabouts.since` counts them.
    """

    def __init__(
        self,
        shown: Progress,
        *,
        client: object = None,
        limits: Limits | None = None,
        stuck_after_s: float | None = 60.0,
        blocked_after_s: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shown = shown
        self._client = client
        self._clock = clock
        self._tally = Tally()
        self._window = Window()
        self._lags = LagSamples()
        self._stuck = StuckWatch(stuck_after_s, policy=self._policy, clock=clock)
        self._blocked_after_s = blocked_after_s
        self._loops: dict[asyncio.AbstractEventLoop, _WatchedLoop] = {}
        self._seen = SeenStages(limits or Limits(), self._tally)
        self._backend: Backend | None = None
        self._lock = threading.Lock()  # runs begin and end on any event loop
        self._runs = 0
        # Seconds of the runs that are over, and when the one going on began; in one tuple, since
        # the metrics are read from another thread.
        self._time: tuple[float, float | None] = (0.0, None)

    # --- a progress ---------------------------------------------------------------------------

    def begin(self, total: int | None, *, again: int = 0) -> None:
        """A run starts; see `Progress`.

        Args:
            total: Episodes to come, if known.
            again: Of these, how many an earlier run was asked for already.
        """
        self._tally.begin(None if total is None else total - again)
        self._show(self._shown.begin, total)

    def turn(self, tokens: int) -> None:
        """The policy has answered; see `Progress`."""
        self._tally.turn(tokens)
        self._show(self._shown.turn, tokens)

    def finish(self, trace: Trace) -> None:
        """An episode is over; see `Progress`."""
        self._tally.finish(trace)
        self._show(self._shown.finish, trace)

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """An episode was cancelled; see `Dropping`."""
        self._tally.drop(usage)
        if isinstance(self._shown, Dropping):
            self._show(self._shown.drop, usage)

    def note(self, text: str) -> None:
        """A remark to show; see `Noting`."""
        if isinstance(self._shown, Noting):
            self._show(self._shown.note, text)

    def end(self) -> None:
        """A run is over; see `Progress`."""
        self._show(self._shown.end)

    def _show(self, tell: Callable[..., None], *what: Any) -> None:
        """Tell the progress that is shown; a terminal or pipe that is gone costs only that."""
        try:
            tell(*what)
        except OSError as error:
            self._shown = NoProgress()
            logger.warning("the progress is shown no longer: %s", error)

    # --- watching -----------------------------------------------------------------------------

    @asynccontextmanager
    async def watching(
        self, backend: Backend, *, held_up: Callable[[], bool] = bool
    ) -> AsyncIterator[None]:
        """Look at the run about once a second, while the block is open.

        Args:
            backend: Plays it.
            held_up: Whether nothing more begins until somebody takes traces. Whoever waits for
                siblings that can't begin isn't stuck.
        """
        self._enter(backend)
        try:
            async with asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick(held_up))
                try:
                    yield
                finally:
                    ticker.cancel()
        finally:
            self._leave()

    def _enter(self, backend: Backend) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._runs:
                self._time = (self._time[0], self._clock())
                self._stuck.begin()
            self._runs += 1
            if loop not in self._loops:
                watch = LoopWatch(
                    self._lags, blocked_after_s=self._blocked_after_s, clock=self._clock
                )
                watch.start()
                self._loops[loop] = _WatchedLoop(watch, backend)
            self._loops[loop].runs += 1
            self._window.add(self._sample())

    def _leave(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._runs -= 1
            if not self._runs:
                self._time = (self._elapsed_s, None)
            self._loops[loop].runs -= 1
            if not self._loops[loop].runs:
                watched = self._loops.pop(loop)
                watched.watch.stop()
                self._backend = watched.backend

    async def _tick(self, held_up: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            in_flight = self._in_flight()
            if not self._stages:
                self._seen.look(in_flight, self._clock())
            self._window.add(self._sample())
            for_siblings = held_up() and all(each.waiting == "siblings" for each in in_flight)
            counters = (self._tally.turns, self._tally.finished)
            self._stuck.look(counters, () if for_siblings else in_flight)
            if isinstance(self._shown, Ticking):
                self._show(self._shown.tick, in_flight)

    # --- the status ---------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        """What the engine is doing; any thread may ask."""
        tally, now = self._tally, self._sample()
        in_flight = self._in_flight()
        return EngineStatus(
            runs=self._runs,
            elapsed_s=self._elapsed_s,
            episodes=tally.episodes(),
            in_flight=len(in_flight),
            waiting=waits(in_flight),
            oldest=oldest(in_flight),
            stages=self._stage_status(now),
            slots_id=now.slots_id,
            admission=self._admission_status(),
            turns=tally.turns,
            tokens=tally.tokens,
            rates=self._window.rates(now),
            usage=dict(tally.usage),
            dropped_usage=dict(tally.dropped_usage),
            loop_lag=self._lags.lag(overdue_s=self._overdue_s),
            replicas=self._replicas(),
            abandoned_threads=abandoned(),
            histograms=tally.histograms(),
        )

    @property
    def _elapsed_s(self) -> float:
        over_s, began_s = self._time
        return over_s if began_s is None else over_s + self._clock() - began_s

    @property
    def _backends(self) -> Sequence[Backend]:
        """Those of the event loops on which a run goes on; the last one while there is none."""
        live = {id(loop.backend): loop.backend for loop in tuple(self._loops.values())}
        last = () if self._backend is None else (self._backend,)
        return tuple(live.values()) or last

    def _in_flight(self) -> Sequence[Whereabouts]:
        """All episodes begun and not over."""
        return [where for backend in self._backends for where in backend.in_flight()]

    @property
    def _stages(self) -> Sequence[Stages]:
        """The backends' slots, where they are in this process."""
        found = [getattr(backend, "stages", None) for backend in self._backends]
        return [stages for stages in found if stages is not None]

    @property
    def _figures(self) -> Sequence[StageFigures]:
        """The stages', as well as they are known."""
        if stages := self._stages:
            return figures_of(stages)
        return () if self._backend is None else self._seen.stages

    @property
    def _overdue_s(self) -> float:
        return max((loop.watch.overdue_s for loop in tuple(self._loops.values())), default=0.0)

    def _sample(self) -> Sample:
        tally = self._tally
        busy_s = {str(each.name): each.busy_s for each in self._figures}
        return Sample(
            self._clock(),
            tally.tokens,
            tally.turns,
            tally.finished,
            busy_s,
            "+".join(f"{id(stages.run):x}" for stages in self._stages) or None,
        )

    def _stage_status(self, now: Sample) -> tuple[StageStatus, ...]:
        return tuple(
            StageStatus(
                name=each.name,
                slots=each.slots,
                active=each.active,
                waiting=each.waiting,
                entered=each.entered,
                mean_s=each.mean_s,
                occupancy=self._window.occupancy(each.name, each.slots, now),
            )
            for each in self._figures
        )

    def _admission_status(self) -> AdmissionStatus | None:
        found = [stages.admission for stages in self._stages]
        if not found:
            return None
        return AdmissionStatus(
            places=sum(admission.places for admission in found),
            taken=sum(admission.taken for admission in found),
            waiting=sum(admission.waiting for admission in found),
        )

    def _replicas(self) -> tuple[dict[str, Any], ...]:
        """What a client of several replicas tells of each."""
        from agentgym.clients.replicas import ReplicaStatus

        ask = getattr(self._client, "status", None)
        told = ask() if callable(ask) else ()
        if not isinstance(told, tuple):  # of some other client, about something else
            return ()
        return tuple(r.model_dump(mode="json") for r in told if isinstance(r, ReplicaStatus))

    def _policy(self) -> str:
        """What the policy is, and which of its servers answer."""
        replicas, endpoint = self._replicas(), getattr(self._client, "endpoint", None)
        if replicas or not isinstance(endpoint, Endpoint):
            return replicas_text(replicas)
        return f"the policy is {endpoint.model} at {public_url(endpoint.base_url)}"
