"""The RUN stage of one episode: policy and environment in turn, until one of them ends it.

Limits strike between two turns where they can: the episode is then truncated, which is a fact about
the policy and is scored. What strikes in the middle of an env step leaves the env in a state nobody
knows, so the episode fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.deadline import Deadline
from agentgym.errors import (
    ContextOverflow,
    EmptyReply,
    EndpointError,
    ReplayMiss,
    SimulatorError,
)
from agentgym.metering import Meter, charge, metered
from agentgym.rollout.failure import Failure, OutOfTime, is_ours, record_of, text_of
from agentgym.rollout.limits import Limits
from agentgym.rollout.pool import EnvHandle
from agentgym.rollout.progress import Progress
from agentgym.rollout.request import derived_seed
from agentgym.rollout.retry import Retry
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.types import (
    Action,
    Episode,
    FailureClass,
    Message,
    Record,
    ToolSpec,
    TruncationReason,
    Usage,
)


class Setting(Record):
    """What all episodes of an engine share."""

    client: Any = Field(repr=False)
    """A `ModelClient`."""
    sampling: SamplingParams
    limits: Limits
    policy: dict[str, Any]
    """Model and sampling parameters, as they go into the traces."""
    metadata: dict[str, Any]
    """Facts about the run, as they go into the traces."""
    canary: Any = Field(default=None, repr=False)
    """A `Canary`, or None."""
    progress: Any = Field(repr=False)
    """A `Progress`."""
    journal: Any = Field(default=None, repr=False)
    """A `Journal` of what is rolled out and not judged yet, or None."""
    retry: Retry | None = None
    """What is tried again after a failure; None is nothing."""


class TurnLoop:
    """The turns of one episode.

    Args:
        setting: What the engine's episodes share.
        session: The episode's id, for the client.
        seed: The episode's seed, `sample` included.
        whereabouts: Kept current.
    """

    def __init__(
        self, setting: Setting, *, session: str, seed: int, whereabouts: Whereabouts
    ) -> None:
        self._client: ModelClient = setting.client
        self._observe = getattr(setting.client, "observe", None)
        self._sampling = setting.sampling
        self._limits = setting.limits
        self._progress: Progress = setting.progress
        self._session = session
        self._seed = seed
        self._whereabouts = whereabouts
        self._turns = 0
        self._began_s = time.monotonic()
        self._asked_s = 0.0
        self._policy_s = 0.0
        self._left_s = setting.limits.episode_timeout_s
        self.history: list[Message] = []
        self.tools: list[ToolSpec] = []
        self._generated = 0
        self.deadline: Deadline | None = None
        """The latest one, within which somebody else's code is at work."""
        self.failure: Failure | None = None
        """Set when the episode has a record but can't be scored."""
        self.remains: Episode | None = None
        """What was recorded of an episode that broke in the middle of a step."""

    def note(self, info: Mapping[str, Any]) -> None:
        """Take in what the env tells beside its messages.

        Raises:
            Failure: If that is nonsense.
        """
        tools = info.get("tools", self.tools)
        if not isinstance(tools, list | tuple) or not all(isinstance(t, dict) for t in tools):
            raise Failure("env", f'info["tools"] must be a list of tools, got {tools!r:.200}')
        self.tools = list(tools)
        if self._observe is not None:
            self._observe(self._session, info)

    async def play(self, handle: EnvHandle, opening: Sequence[Message]) -> Episode:
        """Take turns until the episode is over.

        Returns:
            The env's record of the episode; see also `failure`.

        Raises:
            Failure: If the env broke, or time ran out in the middle of a step.
        """
        self.history.extend(opening)
        while True:
            self._whereabouts.moves("run", "policy")
            if self._tokens_left() == 0:
                return await self._cut(handle, "tokens")
            try:
                completion = await self._ask()
            except ContextOverflow:
                return await self._cut(handle, "context")
            except OutOfTime:
                return await self._cut(handle, "time")
            except Failure as failure:
                self.failure = failure
                return await self._cut(handle, failure.cut)
            self._count(completion)
            last = await self._step(handle, completion)
            if last is not None:
                return record_of(last)

    async def _ask(self) -> Completion:
        """The policy's next message.

        Raises:
            ContextOverflow: If the conversation has become too long.
            OutOfTime: If the episode's time is over.
            Failure: If there is no answer.
        """
        limit = self._new_limit()
        self._asked_s = time.monotonic() - self._began_s
        try:
            async with limit.deadline:
                completion = await self._billed_call()
        except ContextOverflow:
            raise
        except EndpointError as error:
            raise Failure(
                "infra",
                f"{type(error).__name__}: {error}",
                fatal=error.refuses_caller or isinstance(error, ReplayMiss),
                cut="provider_empty" if isinstance(error, EmptyReply) else "fault",
                again=False,
            ) from error
        except BaseException as error:
            if is_ours(error):
                raise
            if not limit.deadline.is_over:
                raise Failure("infra", text_of(error), again=False) from error
            if limit.is_episodes:
                raise OutOfTime from error
            waited = f"{self._limits.turn_timeout_s:g} s"
            text = f"the policy gave no answer within {waited}"
            raise Failure("infra", text, again=False) from error
        finally:
            self._left_s -= limit.used_s
        self._policy_s = limit.used_s
        return completion

    async def _billed_call(self) -> Completion:
        """Ask the client, and see that what it cost is charged, whatever comes of it."""
        meter = Meter()
        uncharged: Usage | None = None
        try:
            with metered(meter):
                completion = await self._client.complete(
                    list(self.history), self.tools, self._turn_sampling(), session=self._session
                )
            uncharged = completion.usage
            return completion
        except EndpointError as error:
            billed = error.usage or Usage(calls=0)
            uncharged = billed.model_copy(update={"failed_calls": max(1, billed.failed_calls)})
            raise
        finally:
            if uncharged is not None and not meter.by_role:  # a client that charges nobody itself
                with metered(meter):
                    charge("policy", uncharged)
            charged = sum(usage.completion_tokens for usage in meter.by_role.values())
            # An answer out of a recording may have been paid for before; it is as long for that.
            told = uncharged.completion_tokens if uncharged is not None else 0
            self._generated += max(charged, told)

    def _turn_sampling(self) -> SamplingParams:
        """This turn's parameters: a seed of its own, and no more tokens than are left."""
        sampling = self._sampling
        left = self._tokens_left()
        most = sampling.max_tokens if left is None else min(left, sampling.max_tokens)
        seed = derived_seed(self._seed, sampling.seed or 0, self._turns)
        return sampling.model_copy(update={"seed": seed, "max_tokens": most})

    def _tokens_left(self) -> int | None:
        budget = self._limits.max_episode_tokens
        return None if budget is None else max(0, budget - self._generated)

    def _count(self, completion: Completion) -> None:
        self._turns += 1
        self._whereabouts.turn = self._turns
        self._whereabouts.replica = completion.replica
        self._progress.turn(completion.usage.completion_tokens if completion.usage else 0)

    async def _step(self, handle: EnvHandle, completion: Completion) -> dict[str, Any] | None:
        """Take the turn.

        Returns:
            `info` if it was the last one, else None.

        Raises:
            Failure: If the env breaks, or the time is over before it is through.
        """
        limit = self._new_limit()
        self._whereabouts.moves("run", "env")
        try:
            async with limit.deadline:
                timing = {"at_s": self._asked_s, "policy_s": self._policy_s}
                messages, over, info = await handle.step(_action(completion, timing))
            spoken = None if over else handle.spoken()
        except BaseException as error:
            if is_ours(error):
                raise
            self.history.append(dict(completion.message))
            whose: FailureClass = "simulator" if isinstance(error, SimulatorError) else "env"
            failure = Failure(whose, text_of(error))
            if limit.deadline.is_over:
                which = "episode_timeout_s" if limit.is_episodes else "turn_timeout_s"
                failure = Failure("infra", f"{which} passed in the middle of an env step")
            self.remains = handle.remains(failure, self.history)
            raise failure from error
        finally:
            self._left_s -= limit.used_s
        self.note(info)
        if spoken is None:
            return info
        self.history.append(spoken)
        self.history.extend(messages)
        return None

    async def _cut(self, handle: EnvHandle, reason: TruncationReason) -> Episode:
        """End the episode between two turns."""
        self.deadline = Deadline(self._limits.turn_timeout_s)
        try:
            async with self.deadline:
                return record_of(await handle.truncate(reason))
        except BaseException as error:
            if is_ours(error):
                raise
            if self.failure is not None:
                raise self.failure from error
            raise Failure("env", text_of(error)) from error

    def _new_limit(self) -> _TurnLimit:
        limit = _TurnLimit(self._left_s, self._limits.turn_timeout_s)
        self.deadline = limit.deadline
        return limit


class _TurnLimit:
    """The tighter of the turn's time and what is left of the episode's."""

    def __init__(self, episode_s: float, turn_s: float) -> None:
        self.is_episodes = episode_s <= turn_s
        self._allowed_s = min(episode_s, turn_s)
        self.deadline = Deadline(self._allowed_s)

    @property
    def used_s(self) -> float:
        """Seconds worked, queues left out."""
        return self._allowed_s - self.deadline.left_s


def _action(completion: Completion, timing: Mapping[str, float]) -> Action:
    """The completion as an action that carries how it was made."""
    known = {
        "finish_reason": completion.finish_reason,
        "reasoning": completion.reasoning,
        "usage": completion.usage,
        "prompt_ids": completion.prompt_ids,
        "completion_ids": completion.completion_ids,
        "logprobs": completion.logprobs,
        "replica": completion.replica,
        "weight_version": completion.weight_version,
    }
    return {
        **completion.message,
        **{key: value for key, value in known.items() if value is not None},
        "role": "assistant",
        "cut_off": completion.cut_off,
        "attempts": completion.attempts,
        **timing,
    }
