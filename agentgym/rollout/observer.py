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
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentgym.client import Endpoint, public_url
from agentgym.rollout.backend import Backend
from agentgym.rollout.limits import Limits
from agentgym.rollout.progress import Dropping, Noting, Progress, Ticking
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
from agentgym.threads import abandoned
from agentgym.trace import Trace
from agentgym.types import Usage

TICK_S = 1.0
"""Between two looks at a run, seconds."""


@dataclass
class _WatchedLoop:
    watch: LoopWatch
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
        self._runs = 0
        self._began_s = 0.0
        self._elapsed_s = 0.0

    # --- a progress ---------------------------------------------------------------------------

    def begin(self, total: int | None, *, again: int = 0) -> None:
        """A run starts; see `Progress`.

        Args:
            total: Episodes to come, if known.
            again: Of these, how many an earlier run was asked for already.
        """
        self._tally.begin(None if total is None else total - again)
        self._shown.begin(total)

    def turn(self, tokens: int) -> None:
        """The policy has answered; see `Progress`."""
        self._tally.turn(tokens)
        self._shown.turn(tokens)

    def finish(self, trace: Trace) -> None:
        """An episode is over; see `Progress`."""
        self._tally.finish(trace)
        self._shown.finish(trace)

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """An episode was cancelled; see `Dropping`."""
        self._tally.drop(usage)
        if isinstance(self._shown, Dropping):
            self._shown.drop(usage)

    def note(self, text: str) -> None:
        """A remark to show; see `Noting`."""
        if isinstance(self._shown, Noting):
            self._shown.note(text)

    def end(self) -> None:
        """A run is over; see `Progress`."""
        self._shown.end()

    # --- watching -----------------------------------------------------------------------------

    @asynccontextmanager
    async def watching(self, backend: Backend) -> AsyncIterator[None]:
        """Look at the run about once a second, while the block is open."""
        self._enter(backend)
        try:
            async with asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick(backend))
                try:
                    yield
                finally:
                    ticker.cancel()
        finally:
            self._leave()

    def _enter(self, backend: Backend) -> None:
        if backend is not self._backend:
            self._backend = backend
            self._window.forget()
        if not self._runs:
            self._began_s = self._clock()
            self._stuck.begin()
        self._runs += 1
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _WatchedLoop(
                LoopWatch(self._lags, blocked_after_s=self._blocked_after_s, clock=self._clock)
            )
            self._loops[loop].watch.start()
        self._loops[loop].runs += 1
        self._window.add(self._sample())

    def _leave(self) -> None:
        self._runs -= 1
        if not self._runs:
            self._elapsed_s += self._clock() - self._began_s
        loop = asyncio.get_running_loop()
        self._loops[loop].runs -= 1
        if not self._loops[loop].runs:
            self._loops.pop(loop).watch.stop()

    async def _tick(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            in_flight = backend.in_flight()
            if self._stages is None:
                self._seen.look(in_flight, self._clock())
            self._window.add(self._sample())
            self._stuck.look((self._tally.turns, self._tally.finished), in_flight)
            if isinstance(self._shown, Ticking):
                self._shown.tick(in_flight)

    # --- the status ---------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        """What the engine is doing; any thread may ask."""
        tally, now = self._tally, self._sample()
        in_flight = () if self._backend is None else self._backend.in_flight()
        running_s = self._clock() - self._began_s if self._runs else 0.0
        return EngineStatus(
            runs=self._runs,
            elapsed_s=self._elapsed_s + running_s,
            episodes=tally.episodes(),
            in_flight=len(in_flight),
            waiting=waits(in_flight),
            oldest=oldest(in_flight),
            stages=self._stage_status(now),
            slots_id=None if self._stages is None else f"{id(self._stages.run):x}",
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
    def _stages(self) -> Stages | None:
        """The backend's slots, where they are in this process."""
        return getattr(self._backend, "stages", None)

    @property
    def _figures(self) -> Sequence[StageFigures]:
        """The stages', as well as they are known."""
        if self._stages is not None:
            return figures_of(self._stages)
        return () if self._backend is None else self._seen.stages

    @property
    def _overdue_s(self) -> float:
        return max((loop.watch.overdue_s for loop in tuple(self._loops.values())), default=0.0)

    def _sample(self) -> Sample:
        tally = self._tally
        busy_s = {str(each.name): each.busy_s for each in self._figures}
        return Sample(self._clock(), tally.tokens, tally.turns, tally.finished, busy_s)

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
        if self._stages is None:
            return None
        admission = self._stages.admission
        return AdmissionStatus(
            places=admission.places, taken=admission.taken, waiting=admission.waiting
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
