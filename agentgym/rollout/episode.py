"""One episode, from request to trace.

`roll_out` is INIT and RUN, `settle` is EVAL; between the two the environment is already free for
somebody else, and the episode is in the journal if there is one. Whatever breaks on the way ends in
a trace with a failure class, never in an exception; only cancellation, a misconfigured environment
and a journal that can't be written pass through.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agentgym.deadline import Deadline
from agentgym.errors import AgentGymError, SimulatorAbort, SimulatorError
from agentgym.judge import Scoring
from agentgym.judges.rescore import episode_of
from agentgym.metering import Meter, metered
from agentgym.naming import episode_named
from agentgym.rollout.failure import Failure, is_ours, last_line, text_of
from agentgym.rollout.groups import Seat
from agentgym.rollout.journal import Journal, unjudged
from agentgym.rollout.judging import judge_together
from agentgym.rollout.pool import EnvHandle, EnvPool
from agentgym.rollout.request import EpisodeRequest, derived_seed, fresh_seed
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting, TurnLoop
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import Trace
from agentgym.types import Episode, Message, TruncationReason, Usage, Verdict

logger = logging.getLogger(__name__)


class EpisodeRun:
    """The state of one episode while it is played.

    Args:
        request: Which episode.
        setting: What the engine's episodes share.
        stages: The engine's slots.
        pool: The engine's environments.
    """

    def __init__(
        self, request: EpisodeRequest, setting: Setting, stages: Stages, pool: EnvPool
    ) -> None:
        self._request = request
        self._setting = setting
        self._stages = stages
        self._pool = pool
        self._trace_id = uuid.uuid4().hex
        self.seed = fresh_seed() if request.seed is None else request.seed
        self._name = request.name(self.seed)
        self.whereabouts = Whereabouts(self._name)
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._stage_s: dict[str, float] = {}
        self._task_id = request.task_id
        self._split: str | None = None
        self._turns = TurnLoop(
            setting,
            session=self._trace_id,
            seed=derived_seed(self.seed, request.sample),
            whereabouts=self.whereabouts,
        )
        self._episode: Episode | None = None
        self.scoring: Scoring | None = None
        """The env's, once there is an env."""
        self._failure: Failure | None = None
        self._playing = Meter()
        self._judging = Meter()

    async def roll_out(self) -> None:
        """Play all turns (INIT and RUN), or take them from the journal.

        Raises:
            AgentGymError: If no environment can be made as configured, or the journal can't be
                written.
        """
        with episode_named(self._name), metered(self._playing):
            if not await self._recalled():
                await self._roll_out()
                self._keep()

    async def _roll_out(self) -> None:
        handle = None
        reusable = False
        try:
            handle, opening = await self._init()
            self.whereabouts.moves("run", "slot")
            async with self._stages.run.slot(self._stage_s):
                self._episode = await self._turns.play(handle, opening)
            self._failure = self._turns.failure
            reusable = True
        except Failure as failure:
            self._failure = failure
            self._episode = self._turns.remains
        finally:
            if handle is not None and reusable:
                await self._pool.release(handle)
            elif handle is not None:
                await self._pool.discard(handle)
            await self._release_session()

    async def _recalled(self) -> bool:
        """Whether an earlier run rolled this episode out, so that only its verdict is missing."""
        journal: Journal | None = self._setting.journal
        trace = journal.recall(self._request) if journal is not None else None
        if trace is None:
            return False
        handle = None
        try:
            async with self._stages.init.slot({}), Deadline(self._setting.limits.init_timeout_s):
                handle = await self._pool.acquire()
            episode = episode_of(trace, handle.task_again(trace))
        except Exception as error:  # whatever is wrong with the env will be met again by playing
            logger.warning("episode %s is played again: %s", self._name, error)
            return False
        finally:
            if handle is not None:
                await self._pool.release(handle)
        self._episode, self.scoring = episode, handle.scoring
        self._trace_id, self._started_at = trace.trace_id, trace.started_at
        self._task_id, self._split = trace.task_id, trace.split
        self._stage_s = dict(trace.stage_s)
        self._turns.tools = list(trace.tools)
        self._playing.by_role.update(trace.usage)
        return True

    def _keep(self) -> None:
        """Put an episode that waits for a model's verdict into the journal."""
        if self._setting.journal is None or self._failure is not None:
            return
        if self._episode is None or self.scoring is None or self.scoring.inline:
            return
        if self._episode.failure_class is not None:
            return
        try:
            trace = self._trace(unjudged())
        except Exception:  # in a form that no trace can hold: `settle` fails it
            return
        self._setting.journal.rolled(trace)

    async def _init(self) -> tuple[EnvHandle, tuple[Message, ...]]:
        """A reset environment and the opening messages."""
        limit_s = self._setting.limits.init_timeout_s
        handle = None
        async with self._stages.init.slot(self._stage_s):
            self.whereabouts.moves("init", "env")
            limit = Deadline(limit_s)
            try:
                async with limit:
                    handle = await self._acquire()
                    opening, info = await self._reset(handle)
                    self._note(info)
            except BaseException as error:
                if handle is not None:
                    await self._pool.discard(handle)
                if isinstance(error, TimeoutError) and limit.is_over:
                    raise Failure("infra", f"no env was ready within {limit_s:g} s") from error
                raise
        self.scoring = handle.scoring
        return handle, opening

    async def _acquire(self) -> EnvHandle:
        try:
            return await self._pool.acquire()
        except AgentGymError:
            raise  # misconfigured: no episode could be played
        except BaseException as error:
            if is_ours(error):
                raise
            raise Failure("env", text_of(error)) from error

    async def _reset(self, handle: EnvHandle) -> tuple[tuple[Message, ...], dict[str, Any]]:
        options: dict[str, Any] = {"judging": "deferred"}
        if self._request.task_id is not None:
            options["task_id"] = self._request.task_id
        if self._setting.limits.max_turns is not None:
            options["max_turns"] = self._setting.limits.max_turns
        try:
            return await handle.reset(seed=self.seed, options=options)
        except SimulatorError as error:  # a user who can't open the conversation
            cut: TruncationReason = (
                "simulator_abort" if isinstance(error, SimulatorAbort) else "fault"
            )
            raise Failure("simulator", text_of(error), cut=cut) from error
        except BaseException as error:
            if is_ours(error):
                raise
            raise Failure("env", text_of(error)) from error

    def _note(self, info: Mapping[str, Any]) -> None:
        """Take in what the env tells of the task.

        Raises:
            Failure: If that is nonsense.
        """
        for key in ("task_id", "split"):
            value = info.get(key)
            if value is not None and not isinstance(value, str):
                raise Failure("env", f"info[{key!r}] must be a str or None, got {value!r:.200}")
        self._task_id = info.get("task_id", self._task_id)
        self._split = info.get("split", self._split)
        self._turns.note(info)

    async def _release_session(self) -> None:
        try:
            await self._setting.client.release(self._trace_id)
        except BaseException as error:
            if is_ours(error):
                raise
            logger.warning("the client's release() failed", exc_info=True)

    @property
    def fatal(self) -> str | None:
        """Why no other episode of the batch can succeed either, if so."""
        if self._failure is not None and self._failure.fatal:
            return str(self._failure)
        refused = {**self._playing.refused, **self._judging.refused}
        return "; ".join(f"{role}: {reason}" for role, reason in refused.items()) or None

    async def settle(self, seat: Seat | None = None) -> Trace:
        """Get the verdict (EVAL) and make the trace.

        What an env told in a form that no trace can hold fails the episode, and is left out.

        Args:
            seat: The episode's place in its group, for a judge that compares.
        """
        try:
            return await self._settled(seat)
        except Exception as error:
            self._failure = Failure("env", text_of(error))
            self._episode = None
            self._turns.history, self._turns.tools = [], []
            self._task_id, self._split = self._request.task_id, None
            return self._trace(self._unrecorded())

    async def _settled(self, seat: Seat | None) -> Trace:
        if self._episode is None or self.scoring is None:
            return self._trace(self._unrecorded())
        if self._failure is not None:  # nothing to judge: the verdict is masked
            return self._trace(await self.scoring.verdict(self._failure.marks(self._episode)))
        if self._episode.failure_class is None:
            self.whereabouts.moves("eval", "judge")
        if seat is not None and self.scoring.judges_groups:
            self.whereabouts.moves("eval", "siblings")
            judged = await seat.judged(self._episode, self.scoring)
        else:
            args = ([self._episode], self.scoring, self._name)
            (judged,) = await judge_together(self._stages, self._setting, *args, alone=True)
        self._judging = judged.meter
        self._stage_s["eval"] = judged.seconds
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
        error = str(self._failure) if self._failure else verdict.reason
        return Trace(
            trace_id=self._trace_id,
            env_spec=self._pool.spec_json,
            task_id=self._task_id,
            split=self._split,
            seed=self.seed,
            group=self._request.group,
            sample=self._request.sample,
            policy=self._setting.policy,
            metadata=self._metadata(),
            tools=tuple(self._turns.tools),
            verdict=verdict,
            failure_class=verdict.failure_class if verdict.masked else None,
            failed_stage=self.whereabouts.stage if verdict.masked else None,
            error=error if verdict.masked else None,
            started_at=self._started_at,
            stage_s=dict(self._stage_s),
            usage=self._usage(),
            **self._conversation(),
        )

    def _metadata(self) -> dict[str, Any]:
        """Facts about the run, and the env's own about the task (data set name, size, hash)."""
        facts = dict(self._setting.metadata)
        if self._setting.canary is not None and self._setting.canary.checks:
            facts["canary"] = self._setting.canary.facts()
        if self._episode is not None and self._episode.task.metadata:
            facts["task"] = self._episode.task.metadata
        return facts

    def _usage(self) -> dict[str, Usage]:
        """What every model call of the episode cost, by role."""
        total = Meter()
        total.add("policy", Usage(calls=0))
        for meter in (self._playing, self._judging):
            for role, usage in meter.by_role.items():
                total.add(role, usage)
        return total.by_role

    def _conversation(self) -> dict[str, Any]:
        """The part of the trace that the env recorded, or what is known without it."""
        episode = self._episode
        if episode is None:
            return {
                "messages": tuple(self._turns.history),
                "truncated": True,
                "truncation_reason": self._failure.cut if self._failure else "fault",
            }
        return {
            "messages": episode.messages,
            "turns": episode.turns,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "termination_reason": episode.termination_reason,
            "truncation_reason": episode.truncation_reason,
            "answer": episode.answer,
            "outcome": episode.outcome,
        }
