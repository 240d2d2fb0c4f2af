"""A policy without a model: a list of actions, or a function.

For tests, documentation, baselines and smoke runs. It goes through the same face as a served model,
so whatever runs with a script runs with a server; and it is deterministic, whatever the order in
which episodes advance, because each session is on its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from agentgym.client import Completion, SamplingParams
from agentgym.errors import EndpointError
from agentgym.types import Action, Message, ToolSpec

Reply: TypeAlias = Action | Completion | BaseException
"""What a script answers with; an exception is raised instead."""

Script: TypeAlias = Sequence[Reply] | Callable[..., Any]


class ScriptedClient:
    """Answers from a script.

    Args:
        policy: Either replies, the k-th for the k-th turn of every episode; or a function of up to
            three arguments, `(messages, info, sampling)`, plain or async, that returns one reply.
            `messages` is the conversation, `info` what the env said last (`available_actions`,
            `turns_left`, …; empty outside the engine), `sampling` has the seed of the turn.
        repeat: Whether a list of replies starts over at its end. Without it, a turn more than the
            list has is an error.

    Raises:
        TypeError: If a function takes no or more than three arguments.

    Examples:
        >>> client = ScriptedClient(["search[shoes]", "click[buy now]"])
        >>> client = ScriptedClient(lambda messages: f"I read {messages[-1]['content']!r}")
    """

    def __init__(self, policy: Script, *, repeat: bool = False) -> None:
        self._replies = None if callable(policy) else list(policy)
        self._function = policy if callable(policy) else None
        self._arity = _arity(self._function) if self._function else 0
        self._repeat = repeat
        self._turns: dict[str | None, int] = {}
        self._infos: dict[str | None, Mapping[str, Any]] = {}
        self.calls = 0
        """Completions asked for so far, over all sessions."""

    def observe(self, session: str, info: Mapping[str, Any]) -> None:
        """Note what the env told about its state; the engine calls this after every env step."""
        if self._arity > 1:
            self._infos[session] = info

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer with the session's next reply; see `ModelClient.complete`.

        Raises:
            EndpointError: If the list of replies is over.
        """
        self.calls += 1
        if self._function is None:
            reply = self._next_reply(session)
        else:
            arguments = (messages, self._infos.get(session, {}), sampling)[: self._arity]
            reply = self._function(*arguments)
            if inspect.isawaitable(reply):
                reply = await reply
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Completion):
            return reply
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
        return Completion(message=message, finish_reason=message.get("finish_reason"))

    def _next_reply(self, session: str | None) -> Reply:
        replies = self._replies or []
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        if self._repeat and replies:
            turn %= len(replies)
        if turn >= len(replies):
            raise EndpointError(
                f"the script has {len(replies)} replies and turn {turn + 1} was asked for; "
                "lengthen it, pass repeat=True, or cap the turns",
                retryable=False,
            )
        return replies[turn]

    async def release(self, session: str) -> None:
        """Forget a session."""
        self._turns.pop(session, None)
        self._infos.pop(session, None)

    async def aclose(self) -> None:
        """Forget all sessions."""
        self._turns.clear()
        self._infos.clear()


def _arity(function: Callable[..., Any]) -> int:
    """How many of (messages, info, sampling) a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in positional for p in parameters)
    if not 1 <= count <= 3:
        raise TypeError(
            "a scripted policy takes one to three arguments (messages, info, sampling), "
            f"{function!r} takes {count}"
        )
    return count
