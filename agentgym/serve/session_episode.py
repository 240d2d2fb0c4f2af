"""The episode a session is in: what was answered, how it ended, and its trace.

What a client saw is kept as it saw it, cuts included, so that a repeated request gets the same
answer and the trace shows the conversation that the policy had.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentgym.deadline import Deadline
from agentgym.metering import Meter
from agentgym.remote.session_schema import Choices, EpisodeStart, TurnResult
from agentgym.remote.wire import strict_json
from agentgym.rollout.failure import Failure, is_ours, last_line, text_of
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_env import Happened, SessionEnv
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_view import bounded, json_bytes, public_info
from agentgym.trace import Trace
from agentgym.types import Episode, Message, Turn, Verdict

_KEPT_ANSWERS = 64
"""Turns whose answers can be asked for again, where nothing else needs them."""


class PlayedEpisode:
    """One episode, from its reset on.

    Args:
        number: Its number in the session.
        env: The session's environment, freshly reset.
        limits: The service's.
        seed: What the env was reset with.
        started_s: When the reset was asked for, by `time.perf_counter`.
        happened: What the reset returned.
    """

    def __init__(
        self,
        number: int,
        env: SessionEnv,
        limits: SessionLimits,
        *,
        seed: int | None,
        started_s: float,
        happened: Happened,
    ) -> None:
        self._env = env
        self._limits = limits
        self._seed = seed
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._began_s = time.perf_counter()
        self._stage_s = {"init": self._began_s - started_s}
        self._tools = env.tools
        self._info = dict(happened.info)
        observation, cut = self._outgoing(happened.observation)
        self.started = EpisodeStart(
            episode=number,
            observation=observation,
            observation_truncated=cut,
            info=public_info(happened.info, limits.info_keys),
            tools=tuple(self._tools),
            choices=_choices(env),
        )
        self.last: TurnResult | None = None
        """The latest answer."""
        self.turn = 0
        """The number of the next turn."""
        self.messages: list[Message] = list(observation) if env.agent is not None else []
        """The conversation as the policy saw it; empty where there is none."""
        self.kept_bytes = 0
        """Of the actions, as JSON, that are kept to the end."""
        self._answers: dict[int, tuple[str, TurnResult]] = {}
        self._record: Episode | None = None
        self._failure: Failure | None = None
        self._verdict: Verdict | None = None

    @property
    def number(self) -> int:
        """Its number in the session."""
        return self.started.episode

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.last is not None and self.last.over

    def answered(self, turn: int, action: Any) -> TurnResult | None:
        """The answer to a turn that was taken already, or None if it is the next one.

        Raises:
            ServiceFault: If it is neither, or was taken with another action.
        """
        if turn == self.turn and not self.over:
            return None
        if turn < self.turn:
            asked, answer = self._answers.get(turn, ("", None))
            if answer is None or asked != fingerprint(action):
                how = "long ago" if answer is None else "with another action"
                text = f"turn {turn} was taken {how}; the next one is {self.turn}"
                raise ServiceFault(409, "turn_taken", text)
            return answer
        if self.over:
            raise ServiceFault(409, "episode_over", "the episode is over; reset for another")
        raise ServiceFault(
            409,
            "out_of_order",
            f"the next turn is {self.turn}, got turn {turn}; take them in order",
        )

    async def took(self, action: Any, happened: Happened) -> TurnResult:
        """Note a turn, judge the episode if it was the last one, and return the answer.

        Raises:
            Failure: If what the env returned can't be passed on.
        """
        result = await self._result(happened, self._env.spoken(), turn=self.turn + 1)
        self._note(result, action)
        return result

    async def was_cut(self, happened: Happened) -> TurnResult:
        """Note an end from outside, and return the answer."""
        self.last = await self._result(happened, None, turn=self.turn)
        return self.last

    async def broke(self, action: Any, failure: Failure) -> TurnResult:
        """Note that the episode can't go on, whatever was asked of it.

        Args:
            action: The turn in which it broke; None outside of any.
            failure: Whose fault it is.
        """
        self._failure = failure
        verdict = None
        agent = self._env.agent is not None
        said = _as_message(action) if agent and action is not None else None
        if self._env.scoring is not None:
            seen = [*self.messages, said] if said is not None else self.messages
            self._record = self._env.remains(failure, seen)
            if self._record is not None:
                verdict = await self._env.scoring.verdict(self._record)
        self._verdict = verdict or _masked(failure)
        result = TurnResult(
            episode=self.number,
            turn=self.turn + (action is not None),
            message=said,
            observation=[] if agent else None,
            reward=None,
            terminated=False,
            truncated=True,
            masked=True,
            failure_class=failure.failure_class,
            info=public_info({**self._info, "truncation_reason": "fault"}, self._limits.info_keys),
            verdict=self._public(self._verdict) if agent else None,
        )
        if action is not None:
            self._note(result, action)
        self.last = result
        return result

    def _note(self, result: TurnResult, action: Any) -> None:
        self._answers[self.turn] = (fingerprint(action), result)
        if self._env.agent is None:  # whose episodes may have millions of turns
            self._answers.pop(self.turn - _KEPT_ANSWERS, None)
        else:
            self.messages += [] if result.message is None else [result.message]
            self.messages += result.observation
            self.kept_bytes += json_bytes(action)
        self.turn += 1
        self.last = result

    async def _result(self, happened: Happened, spoken: Message | None, *, turn: int) -> TurnResult:
        self._info = dict(happened.info)
        observation, cut = self._outgoing(happened.observation)
        verdict = None
        if happened.over:
            self._stage_s["run"] = time.perf_counter() - self._began_s
            verdict = await self._judged(happened)
        reward = _finite(happened.reward) if verdict is None else verdict.reward
        if reward is None and verdict is None:
            raise Failure("env", f"the reward was {happened.reward!r:.60}, which is no number")
        tools = self._env.tools
        changed = tools != self._tools
        self._tools = tools
        return TurnResult(
            episode=self.number,
            turn=turn,
            message=None if spoken is None else strict_json(spoken),
            observation=observation,
            observation_truncated=cut,
            failed_calls=tuple(self._env.failed_calls()) if spoken is not None else (),
            reward=reward,
            terminated=happened.terminated,
            truncated=happened.truncated,
            masked=reward is None,
            failure_class=None if verdict is None else verdict.failure_class,
            info=public_info(happened.info, self._limits.info_keys),
            verdict=None if verdict is None else self._public(verdict),
            tools=tuple(tools) if changed else None,
            choices=_choices(self._env),
        )

    async def _judged(self, happened: Happened) -> Verdict | None:
        """The verdict on an `AgentEnv`'s episode; whatever fails on the way masks it."""
        scoring = self._env.scoring
        if scoring is None:
            return None
        record = happened.info.get("episode_record")
        if not isinstance(record, Episode):
            raise Failure("env", 'the last info has no "episode_record"; does a wrapper drop it?')
        self._record = record
        limit_s = self._limits.judge_timeout_s
        started = time.perf_counter()
        limit = Deadline(limit_s)
        try:
            async with limit:
                self._verdict = await scoring.verdict(record)
        except BaseException as error:
            if is_ours(error):
                raise
            text = f"no verdict within {limit_s:g} s" if limit.is_over else text_of(error)
            self._failure = Failure("judge", last_line(text))
            self._verdict = await scoring.verdict(self._failure.marks(record))
        self._stage_s["eval"] = time.perf_counter() - started
        return self._verdict

    def _outgoing(self, observation: Any) -> tuple[Any, bool]:
        """An observation as it goes over the wire, and whether something was left out."""
        if self._env.agent is not None:
            return bounded(observation, self._limits.max_observation_bytes)
        return observation, False

    def _public(self, verdict: Verdict) -> Verdict:
        """The verdict without remarks that may name what is hidden."""
        ours = self._failure is not None and self._failure.failure_class == "infra"
        if self._limits.reveal_outcomes or ours:
            return verdict
        return verdict.model_copy(update={"reason": None})

    # --- the trace ----------------------------------------------------------------------------

    def trace(self, env_spec: str, session: str) -> Trace:
        """The full record of the finished episode.

        Raises:
            ServiceFault: If it isn't over, or its env keeps no record.
        """
        if self._env.agent is None:
            raise ServiceFault(
                409, "no_trace", "only the episodes of an AgentEnv have a trace; this env is none"
            )
        if not self.over or self._verdict is None:
            raise ServiceFault(409, "episode_running", "the trace comes with the episode's end")
        verdict, record, reveal = self._verdict, self._record, self._limits.reveal_outcomes
        blamed = verdict.failure_class if verdict.masked else None
        error = str(self._failure) if self._failure is not None else verdict.reason
        if not (reveal or blamed == "infra"):
            error = f"the {blamed} failed"
        ending: dict[str, Any] = {"truncated": True, "truncation_reason": "fault"}
        if record is not None:
            ending = {
                "terminated": record.terminated,
                "truncated": record.truncated,
                "termination_reason": record.termination_reason,
                "truncation_reason": record.truncation_reason,
                "answer": record.answer,
                "outcome": record.outcome if reveal else {},
                "turns": self._turns_as_seen(record.turns),
            }
        task = record.task.metadata if record is not None else {}
        return Trace(
            trace_id=uuid.uuid5(uuid.NAMESPACE_OID, f"{session}/{self.number}").hex,
            env_spec=env_spec,
            task_id=_text(self._info.get("task_id")),
            split=_text(self._info.get("split")),
            seed=self._seed,
            metadata={"task": task} if task else {},
            tools=self.started.tools if record is None else record.tools,
            messages=tuple(self.messages),
            verdict=self._public(verdict),
            failure_class=blamed,
            failed_stage=None if blamed is None else "eval" if verdict.judge_failed else "run",
            error=error if verdict.masked else None,
            started_at=self._started_at,
            stage_s=self._stage_s,
            usage=self._usage(record, verdict),
            **ending,
        )

    def _turns_as_seen(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """The record's turns, with the replies as they were sent."""
        seen = []
        for turn in turns:
            _, answer = self._answers.get(turn.index, ("", None))
            if answer is not None and answer.observation_truncated:
                turn = turn.model_copy(update={"replies": tuple(answer.observation)})
            seen.append(turn)
        return tuple(seen)

    @staticmethod
    def _usage(record: Episode | None, verdict: Verdict) -> dict[str, Any]:
        meter = Meter()
        for turn in () if record is None else record.turns:
            if turn.usage is not None:
                meter.add("policy", turn.usage)
        for spent in ({} if record is None else record.spent, verdict.spent):
            for role, usage in spent.items():
                meter.add(role, usage)
        return meter.by_role


def fingerprint(action: Any) -> str:
    """A digest of an action, by which a repeated one is known."""
    text = json.dumps(action, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _as_message(action: Mapping[str, Any] | str) -> Message:
    if isinstance(action, str):
        return {"role": "assistant", "content": strict_json(action)}
    kept = {key: action[key] for key in ("content", "tool_calls") if key in action}
    message: Message = {"role": "assistant", **strict_json(kept)}
    return message


def _choices(env: SessionEnv) -> tuple[Choices, ...]:
    return tuple(Choices(**strict_json(one)) for one in env.choices)


def _finite(reward: Any) -> float | None:
    """A reward as JSON has it; None for what is no number, which is never a zero."""
    try:
        number = float(reward)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _masked(failure: Failure) -> Verdict:
    return Verdict(
        failure_class=failure.failure_class,
        masked=True,
        reward=None,
        reason=last_line(str(failure)),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
