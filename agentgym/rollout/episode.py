"""One episode, from request to trace.

`roll_out` is INIT and RUN, `clean_up` frees what they used, `settle` is EVAL; so the environment is
free for somebody else before the episode is judged, and the episode is in the journal if there is
one. Whatever breaks on the way ends in a trace with a failure class, never in an exception; only
cancellation, a misconfigured environment and a journal that can't be written pass through.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentgym.deadline import Deadline
from agentgym.errors import (
    AgentGymError,
    ConfigError,
    EnvFault,
    SimulatorAbort,
    SimulatorError,
)
from agentgym.judge import Scoring
from agentgym.judges.rescore import episode_of
from agentgym.metering import metered
from agentgym.naming import episode_named
from agentgym.rollout.failure import Failure, is_ours, last_line, text_of
from agentgym.rollout.groups import Seat
from agentgym.rollout.journal import Journal, unjudged
from agentgym.rollout.judging import judge_together
from agentgym.rollout.pool import EnvHandle, EnvPool
from agentgym.rollout.record import EpisodeRecord
from agentgym.rollout.request import EpisodeRequest, derived_seed
from agentgym.rollout.stages import Slot, Stages
from agentgym.rollout.turns import Setting, TurnLoop
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import EarlierAttempt, Stage, Trace
from agentgym.types import FailureClass, Message, TruncationReason, Verdict

logger = logging.getLogger(__name__)


class EpisodeRun:
    """One attempt at an episode.

    Args:
        request: Which episode; its seed is set.
        setting: What the engine's episodes share.
        stages: The engine's slots.
        pool: The engine's environments.
        whereabouts: Kept current.
        earlier: The attempts before this one.
        facts: More metadata for the trace.
    """

    def __init__(
        self,
        request: EpisodeRequest,
        setting: Setting,
        stages: Stages,
        pool: EnvPool,
        *,
        whereabouts: Whereabouts,
        earlier: Sequence[EarlierAttempt] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._request = request
        self._setting = setting
        self._stages = stages
        self._pool = pool
        self._session = uuid.uuid4().hex
        assert request.seed is not None
        self._seed = request.seed
        self._name = request.name(request.seed)
        self._whereabouts = whereabouts
        self._handle: EnvHandle | None = None
        self._reusable = False
        self._is_recalled = False
        self._slot: Slot | None = None
        self._deadline: Deadline | None = None
        self._turns = TurnLoop(
            setting,
            session=self._session,
            seed=derived_seed(request.seed, request.sample),
            whereabouts=whereabouts,
        )
        self._failure: Failure | None = None
        self._failed_stage: Stage | None = None
        self.scoring: Scoring | None = None
        """The env's, once there is an env."""
        self._record = EpisodeRecord(
            request=request,
            setting=setting,
            trace_id=self._session,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            task_id=request.task_id,
            turns=self._turns,
            earlier=tuple(earlier),
            facts=dict(facts or {}),
        )

    async def roll_out(self) -> None:
        """Play all turns (INIT and RUN), or take them from the journal; `clean_up` must follow.

        Raises:
            AgentGymError: If no environment can be made as configured.
        """
        with episode_named(self._name), metered(self._record.playing):
            self._is_recalled = await self._recalled()
            if not self._is_recalled:
                await self._roll_out()

    async def _roll_out(self) -> None:
        try:
            self._slot = self._stages.init.slot(self._record.stage_s)
            async with self._slot:
                opening = await self._init()
            self._whereabouts.moves("run", "slot")
            self._slot = self._stages.run.slot(self._record.stage_s)
            async with self._slot:
                assert self._handle is not None
                self._record.episode = await self._turns.play(self._handle, opening)
            self._failure = self._turns.failure
            self._reusable = True
        except Failure as failure:
            self._failure = failure
            self._record.episode = self._turns.remains
        except BaseException as error:  # whatever else an env can be or do
            if is_ours(error) or isinstance(error, AgentGymError):
                raise
            self._failure = Failure("env", text_of(error))

    @property
    def deadline(self) -> Deadline | None:
        """The latest one, within which somebody else's code is at work."""
        return self._turns.deadline or self._deadline

    def left_behind(self, why: str) -> None:
        """Its rolling out was told to stop and went on, so that nobody waits for it any more."""
        self._failure = Failure("infra", why)
        self._reusable = False
        if self._handle is None:
            return
        try:
            self._record.episode = self._handle.remains(self._failure, self._turns.history)
        except Exception:  # the env is in the middle of something
            logger.warning("no record is left of %s", self._name, exc_info=True)

    async def clean_up(self) -> None:
        """Free what rolling out has used: its slot, the environment, the client's session."""
        if self._slot is not None:
            self._slot.give_back()
        handle, self._handle = self._handle, None
        try:
            if handle is not None and self._reusable:
                await self._pool.release(handle)
            elif handle is not None:
                await self._pool.discard(handle)
        finally:
            # Named and metered, since a recording then charges what the episode paid for in an
            # earlier run and asked for no more. One that was recalled has had no session.
            with episode_named(self._name), metered(self._record.playing):
                if not self._is_recalled:
                    await self._release_session()

    async def _recalled(self) -> bool:
        """Whether an earlier run rolled this episode out, so that only its verdict is missing."""
        journal: Journal | None = self._setting.journal
        trace = journal.recall(self._request) if journal is not None else None
        if trace is None:
            return False
        self._slot = self._stages.init.slot({})
        self._deadline = Deadline(self._setting.limits.init_timeout_s)
        try:
            async with self._slot, self._deadline:
                self._handle = await self._pool.acquire()
            episode = episode_of(trace, self._handle.task_again(trace))
            episode = episode.model_copy(update={"env_id": self._handle.env_id})
        except Exception as error:  # whatever is wrong with the env will be met again by playing
            logger.warning("episode %s is played again: %s", self._name, error)
            if self._handle is not None:
                await self._pool.release(self._handle)
                self._handle = None
            return False
        self._reusable = True
        self.scoring = self._handle.scoring
        self._record.take(trace, episode)
        return True

    def _keep(self) -> None:
        """Put an episode that waits for a model's verdict into the journal.

        Raises:
            TraceError: If the journal can't be written.
        """
        if self._setting.journal is None or self.failure_class is not None or self._is_recalled:
            return
        if self._record.episode is None or self.scoring is None or self.scoring.inline:
            return
        try:
            trace = self._trace(unjudged())
        except Exception:  # in a form that no trace can hold: `settle` fails it
            return
        self._setting.journal.rolled(trace)

    async def _init(self) -> tuple[Message, ...]:
        """Get a reset environment; returns the opening messages."""
        self._whereabouts.moves("init", "env")
        limit_s = self._setting.limits.init_timeout_s
        limit = self._deadline = Deadline(limit_s)
        try:
            async with limit:
                self._handle = await self._acquire()
                opening, info = await self._reset(self._handle)
                self._note(info)
        except TimeoutError as error:
            if limit.is_over:
                raise Failure("infra", f"no env was ready within {limit_s:g} s") from error
            raise
        self.scoring = self._handle.scoring
        return opening

    async def _acquire(self) -> EnvHandle:
        try:
            return await self._pool.acquire()
        except BaseException as error:
            if is_ours(error):
                raise
            if isinstance(error, AgentGymError) and not isinstance(error, EnvFault):
                raise  # misconfigured: no episode could be played
            raise Failure("env", text_of(error)) from error

    async def _reset(self, handle: EnvHandle) -> tuple[tuple[Message, ...], dict[str, Any]]:
        options: dict[str, Any] = {"judging": "deferred"}
        if self._request.task_id is not None:
            options["task_id"] = self._request.task_id
        if self._setting.limits.max_turns is not None:
            options["max_turns"] = self._setting.limits.max_turns
        try:
            return await handle.reset(seed=self._seed, options=options)
        except SimulatorError as error:  # a user who can't open the conversation
            cut: TruncationReason = (
                "simulator_abort" if isinstance(error, SimulatorAbort) else "fault"
            )
            raise Failure("simulator", text_of(error), cut=cut) from error
        except BaseException as error:
            if is_ours(error):
                raise
            again = not isinstance(error, ConfigError)  # there is no such task
            raise Failure("env", text_of(error), again=again) from error

    def _note(self, info: Mapping[str, Any]) -> None:
        """Take in what the env tells of the task.

        Raises:
            Failure: If that is nonsense.
        """
        for key in ("task_id", "split"):
            value = info.get(key)
            if value is not None and not isinstance(value, str):
                raise Failure("env", f"info[{key!r}] must be a str or None, got {value!r:.200}")
        self._record.task_id = info.get("task_id", self._record.task_id)
        self._record.split = info.get("split", self._record.split)
        self._turns.note(info)

    async def _release_session(self) -> None:
        try:
            async with asyncio.timeout(self._setting.limits.cleanup_timeout_s):
                await self._setting.client.release(self._session)
        except BaseException as error:
            if is_ours(error):
                raise
            logger.warning("the client's release() failed", exc_info=True)

    @property
    def fatal(self) -> str | None:
        """Why no other episode of the batch can succeed either, if so."""
        if self._failure is not None and self._failure.fatal:
            return str(self._failure)
        refused = {**self._record.playing.refused, **self._record.judging.refused}
        return "; ".join(f"{role}: {reason}" for role, reason in refused.items()) or None

    @property
    def failure_class(self) -> FailureClass | None:
        """Whose fault it is that there is nothing to judge, if so."""
        if self._failure is not None:
            return self._failure.failure_class
        episode = self._record.episode
        if episode is None:
            return "infra"
        return None if episode.failure_class == "policy" else episode.failure_class

    @property
    def may_be_played_again(self) -> bool:
        """Whether it failed, and another attempt may fare better."""
        if self.failure_class is None or self.fatal:
            return False
        return self._failure is None or self._failure.again

    def as_earlier(self) -> EarlierAttempt:
        """The attempt, for the trace of the one that is made instead."""
        failure_class = self.failure_class
        assert failure_class is not None
        return EarlierAttempt(
            failure_class=failure_class,
            failed_stage=self._whereabouts.stage,
            error=self.error,
            usage=self._record.own_usage(),
        )

    @property
    def error(self) -> str:
        """What went wrong."""
        episode = self._record.episode
        told = episode.error if episode is not None else None
        return str(self._failure) if self._failure else told or "the episode left no record"

    async def settle(self, seat: Seat | None = None) -> Trace:
        """Get the verdict (EVAL) and make the trace.

        What an env told in a form that no trace can hold fails the episode, and is left out.

        Args:
            seat: The episode's place in its group, for a judge that compares.

        Raises:
            TraceError: If the journal can't be written.
        """
        self._keep()
        try:
            return await self._settled(seat)
        except Exception as error:
            self._failure = Failure("env", text_of(error))
            self._record.forget_conversation()
            return self._trace(self._unrecorded())

    async def _settled(self, seat: Seat | None) -> Trace:
        episode = self._record.episode
        if episode is None or self.scoring is None:
            return self._trace(self._unrecorded())
        if self._failure is not None:  # nothing to judge: the verdict is masked
            return self._trace(await self.scoring.verdict(self._failure.marks(episode)))
        where = self._whereabouts
        if self.failure_class is not None:  # the verdict changes nothing about where it failed
            self._failed_stage = where.stage
        if seat is not None and self.scoring.judges_groups:
            judged = await seat.judged(episode, self.scoring, where)
        else:
            args = (self._stages, self._setting, [episode], self.scoring, self._name)
            (judged,) = await judge_together(*args, whereabouts=[where], alone=True)
        self._record.judging = judged.meter
        self._record.stage_s["eval"] = judged.seconds
        return self._trace(judged.verdict)

    def _unrecorded(self) -> Verdict:
        """The verdict on an episode that broke without leaving a record."""
        failure = self._failure or Failure("infra", "the episode left no record")
        return Verdict(
            failure_class=failure.failure_class,
            masked=True,
            reward=None,
            reason=last_line(str(failure)),
        )

    def _trace(self, verdict: Verdict) -> Trace:
        stage = self._failed_stage or self._whereabouts.stage
        return self._record.trace(
            verdict, failure=self._failure, stage=stage, env_spec=self._pool.spec_json
        )
