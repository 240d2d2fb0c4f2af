"""Episodes in this process: one event loop, three stages, environments that are reused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from agentgym.judge import Scoring
from agentgym.metering import Meter, metered
from agentgym.rollout.backend import Played
from agentgym.rollout.episode import EpisodeRun
from agentgym.rollout.failure import last_line
from agentgym.rollout.groups import Groups, Seat
from agentgym.rollout.judging import Judged, judge_together
from agentgym.rollout.leash import LeftBehind, on_leash, to_the_end
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeRequest, fresh_seed
from agentgym.rollout.retry import Retries
from agentgym.rollout.source import EnvSource
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.threads import Threads, using_threads
from agentgym.trace import EarlierAttempt, Trace
from agentgym.types import Episode, Usage


class LocalBackend:
    """Plays episodes on the running event loop.

    Args:
        source: Makes the environments.
        setting: What the episodes share.
        stages: Slots; given where several engines share them.
    """

    def __init__(self, source: EnvSource, setting: Setting, stages: Stages | None = None) -> None:
        limits = setting.limits
        self.setting = setting
        self.stages = stages or Stages(limits)
        self.pool = EnvPool(source, close_timeout_s=limits.cleanup_timeout_s)
        self.threads = Threads(limits.max_threads)
        self.retries = Retries(setting.retry)
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
        if request.seed is None:
            request = request.model_copy(update={"seed": fresh_seed()})
        return LocalPlaying(self._backend, request, self._groups)

    def no_more(self) -> None:
        """Let groups wait for nobody else."""
        self._groups.no_more()

    async def _judge(
        self,
        episodes: Sequence[Episode],
        scoring: Scoring,
        name: str,
        whereabouts: Sequence[Whereabouts],
    ) -> list[Judged]:
        backend = self._backend
        args = (backend.stages, backend.setting, episodes, scoring, name)
        return await judge_together(*args, whereabouts=whereabouts)


class LocalPlaying:
    """One episode, all attempts at it, and at those rolled out in its place; see `Playing`."""

    def __init__(self, backend: LocalBackend, request: EpisodeRequest, groups: Groups) -> None:
        self._backend = backend
        self._request = request
        self._asked_for = request.sample
        self._seat: Seat | None = groups.enter(request)
        self._admitted = True
        self._earlier: list[EarlierAttempt] = []
        self._replaced: list[Trace] = []
        self._meter = Meter()
        self.whereabouts = Whereabouts(request.name(request.seed or 0))
        backend.retries.asked()
        backend.playing.add(self)

    async def play(self) -> Played:
        """Play it to the end, again where that is allowed."""
        with using_threads(self._backend.threads), metered(self._meter):
            try:
                while True:
                    run = await self._roll_out()
                    trace = await run.settle(self._seat)
                    if trace.scored or run.fatal or not self._is_replaced(run):
                        break
                    self._replaced.append(trace)
                    await self._admit()
            finally:
                self.over()
        return Played(
            trace,
            scoring=run.scoring,
            fatal=None if trace.scored else run.fatal,
            replaced=tuple(self._replaced),
        )

    @property
    def spent(self) -> Mapping[str, Usage]:
        """What it has cost so far, all attempts."""
        return self._meter.by_role

    def over(self) -> None:
        """Give up what is held."""
        self._leave_admission()
        if self._seat is not None:
            self._seat.leave()
        self._backend.playing.discard(self)

    async def _roll_out(self) -> EpisodeRun:
        """Attempts at INIT and RUN, until one succeeds or none is left."""
        while True:
            run = await self._attempt()
            pause_s = self._pause_s(run)
            if pause_s is None:
                return run
            self._earlier.append(run.as_earlier())
            self.whereabouts.moves("init", "retry")
            await asyncio.sleep(pause_s)
            await self._admit()

    async def _attempt(self) -> EpisodeRun:
        backend, where = self._backend, self.whereabouts
        where.attempt, where.turn = len(self._earlier), 0
        is_replacement = self._request.sample != self._asked_for
        run = EpisodeRun(
            self._request,
            backend.setting,
            backend.stages,
            backend.pool,
            whereabouts=where,
            earlier=self._earlier,
            facts={"replaces_sample": self._asked_for} if is_replacement else None,
        )
        try:
            await on_leash(
                run.roll_out(),
                name=where.name,
                grace_s=backend.setting.limits.cleanup_timeout_s,
                deadline=lambda: run.deadline,
            )
        except LeftBehind as error:
            run.left_behind(f"the {where.stage} stage ran out of time and {error}")
        finally:
            try:
                await to_the_end(run.clean_up())
            finally:
                self._leave_admission()
        return run

    def _pause_s(self, run: EpisodeRun) -> float | None:
        """The pause before the next attempt; None if there is none."""
        failure_class = run.failure_class
        if failure_class is None or not run.may_be_played_again:
            return None
        return self._backend.retries.pause_s(
            failure_class, self._earlier, name=self.whereabouts.name, why=last_line(run.error)
        )

    def _is_replaced(self, run: EpisodeRun) -> bool:
        """Whether another rollout of the task takes its place; it is then the one to play."""
        together = run.scoring is not None and run.scoring.judges_groups
        if self._seat is None or (run.failure_class is None and together):
            return False  # a judge that compares has said its last word on the group
        replacement = self._seat.replacement(self._request, self._backend.retries)
        if replacement is None:
            return False
        self._request = replacement
        self._earlier = []
        self.whereabouts.name = replacement.name(replacement.seed or 0)
        return True

    async def _admit(self) -> None:
        self.whereabouts.moves("init", "slot")
        await self._backend.stages.admission.acquire()
        self._admitted = True

    def _leave_admission(self) -> None:
        if self._admitted:
            self._admitted = False
            self._backend.stages.admission.release()
