"""Episodes in this process: one event loop, three stages, environments that are reused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentgym.judge import Scoring
from agentgym.rollout.backend import Played
from agentgym.rollout.episode import EpisodeRun
from agentgym.rollout.groups import Groups, Seat
from agentgym.rollout.judging import Judged, judge_together
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.source import EnvSource
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.types import Episode


class LocalBackend:
    """Plays episodes on the running event loop.

    Args:
        source: Makes the environments.
        setting: What the episodes share.
        stages: Slots; given where several engines share them.
    """

    def __init__(self, source: EnvSource, setting: Setting, stages: Stages | None = None) -> None:
        self.setting = setting
        self.stages = stages or Stages(setting.limits)
        self.pool = EnvPool(source)
        self.playing: set[LocalPlaying] = set()

    def batch(self, tasks: asyncio.TaskGroup) -> LocalBatch:
        """See `Backend`."""
        return LocalBatch(self, tasks)

    def in_flight(self) -> Sequence[Whereabouts]:
        """See `Backend`."""
        return [playing.whereabouts for playing in tuple(self.playing)]  # any thread may ask

    async def aclose(self) -> None:
        """Close the environments that are kept for reuse."""
        await self.pool.aclose()


class LocalBatch:
    """The episodes of one run; see `Batch`."""

    def __init__(self, backend: LocalBackend, tasks: asyncio.TaskGroup) -> None:
        self._backend = backend
        self._groups = Groups(tasks, self._judge)

    async def admit(self) -> None:
        """Wait for room."""
        await self._backend.stages.admission.acquire()

    def begin(self, request: EpisodeRequest) -> LocalPlaying:
        """Give the episode its place."""
        backend = self._backend
        run = EpisodeRun(request, backend.setting, backend.stages, backend.pool)
        playing = LocalPlaying(backend, run, self._groups.enter(request, run.seed))
        backend.playing.add(playing)
        return playing

    def no_more(self) -> None:
        """Let groups wait for nobody else."""
        self._groups.no_more()

    async def _judge(
        self, episodes: Sequence[Episode], scoring: Scoring, name: str
    ) -> list[Judged]:
        backend = self._backend
        return await judge_together(backend.stages, backend.setting, episodes, scoring, name)


class LocalPlaying:
    """One episode; see `Playing`."""

    def __init__(self, backend: LocalBackend, run: EpisodeRun, seat: Seat | None) -> None:
        self._backend = backend
        self._run = run
        self._seat = seat

    @property
    def whereabouts(self) -> Whereabouts:
        """Where it is."""
        return self._run.whereabouts

    async def play(self) -> Played:
        """Play it to the end."""
        run = self._run
        try:
            try:
                await run.roll_out()
            finally:
                self._backend.stages.admission.release()
            trace = await run.settle(self._seat)
            if self._seat is not None:
                self._seat.leave()
        finally:
            self._backend.playing.discard(self)
        return Played(trace, scoring=run.scoring, fatal=None if trace.scored else run.fatal)
