"""Asking a model for a verdict: one call, one way to read it, at most one more call.

Every judge that is a model asks here, so there is one place in which a failed call, a refusal, a
cut reply or an unreadable one becomes `JudgeError`, and none in which it becomes a number.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.errors import AgentGymError, JudgeError, JudgeRefused, JudgeTruncated
from agentgym.judges.escaping import defused
from agentgym.judges.parsing import Unreadable, shortened, text_of
from agentgym.types import Episode, Message

T = TypeVar("T")

DEFAULT_SAMPLING = SamplingParams(temperature=0.0, max_tokens=1024)
"""A judge is to say the same thing twice; the room is for its reason."""

AGAIN = "Reply again with only the JSON object, as described; keep the reason short."
"""How the question ends when it is asked a second time."""


class Asker:
    """Asks one client, and asks once more where the reply is no verdict.

    Args:
        client: The judge's model.
        sampling: How to sample; a seed and the schema are added.
        seed: Of the sampling seeds.
    """

    def __init__(self, client: ModelClient, sampling: SamplingParams, seed: int) -> None:
        self._client = client
        self._sampling = sampling
        self._seed = seed
        self._active: Counter[str] = Counter()

    @asynccontextmanager
    async def session(self, digest: str) -> AsyncIterator[str]:
        """A session of the client for one judgement, released at its end.

        Args:
            digest: Of what is judged; the same in every run.
        """
        self._active[digest] += 1
        number = self._active[digest]  # equal episodes judged at the same time
        session = f"judge-{digest}" if number == 1 else f"judge-{digest}-{number}"
        try:
            yield session
        finally:
            self._active[digest] -= 1
            if not self._active[digest]:
                del self._active[digest]
            await self._client.release(session)

    async def ask(
        self,
        messages: Sequence[Message],
        read: Callable[[str], T],
        *,
        schema: dict[str, Any],
        session: str,
        digest: str,
        max_tokens: int | None = None,
    ) -> T:
        """Ask, and read the reply; if it can't be read, say why and ask once more.

        A refusal isn't asked about again: it would be refused again.

        Args:
            messages: The question.
            read: Reads a reply's text; raises `JudgeError` if it is no verdict.
            schema: JSON schema of a verdict.
            session: From `session`.
            digest: Of what is judged; sampling seeds follow from it.
            max_tokens: Room for the reply, where it isn't the sampling's.

        Raises:
            JudgeError: If a call failed, or no verdict came; with what the judge said.
        """
        own = self._sampling
        changes = {
            "json_schema": schema,
            "seed": _seed_of(self._seed, digest) if own.seed is None else own.seed,
            "max_tokens": max_tokens or own.max_tokens,
        }
        sampling = own.model_copy(update=changes)
        completion = await self._complete(messages, sampling, session)
        try:
            return read(text_of(completion))
        except JudgeRefused as error:
            raise _with_reply(error, completion) from error
        except JudgeError as error:
            fault, at_first = error, _with_reply(error, completion)
        if isinstance(fault, JudgeTruncated):  # the same room would cut it again
            sampling = sampling.model_copy(update={"max_tokens": 2 * sampling.max_tokens})
        completion = await self._complete(_asked_again(messages, fault), sampling, session)
        try:
            return read(text_of(completion))
        except JudgeError as error:
            said = _with_reply(error, completion)
            raise type(error)(f"{said} (asked a second time; at first: {at_first})") from error

    async def _complete(
        self, messages: Sequence[Message], sampling: SamplingParams, session: str
    ) -> Completion:
        try:
            return await self._client.complete(messages, (), sampling, session=session)
        except (AgentGymError, OSError) as error:  # time-outs are OSErrors
            what = str(error) or type(error).__name__
            raise JudgeError(f"the judge gave no answer: {what}") from error


def digest_of(*parts: Any) -> str:
    """A short hash that is the same in every run."""
    text = json.dumps(parts, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def episode_digest(episode: Episode) -> str:
    """A short hash of what a judge sees of an episode."""
    return digest_of(
        episode.env_id, episode.task.task_id, episode.messages, episode.answer, episode.truncated
    )


async def in_order(work: Sequence[Coroutine[Any, Any, T]], *, inline: bool) -> list[T | JudgeError]:
    """Results of several judgements, in order; one that failed, or crashed, is a `JudgeError`.

    All run to their end, since their calls are paid for anyway.

    Args:
        work: The judgements.
        inline: Whether none of them awaits anything, so that they need no event loop.
    """

    async def settled(one: Coroutine[Any, Any, T]) -> T | JudgeError:
        try:
            return await one
        except JudgeError as error:
            return error
        except Exception as error:  # a judge's bug is its own failure, not that of the others
            return JudgeError(f"{type(error).__name__}: {error}")

    if inline:
        return [await settled(one) for one in work]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(settled(one)) for one in work]
    return [task.result() for task in tasks]


def _with_reply(error: JudgeError, completion: Completion) -> JudgeError:
    """An error that says what the judge said, for whoever reads the trace."""
    said = shortened(str(completion.message.get("content") or ""))
    return type(error)(f"{error}; the reply: {said}")


def _asked_again(messages: Sequence[Message], fault: JudgeError) -> list[Message]:
    """The question once more, with what was wrong with the first reply.

    The reply itself isn't shown again, and no word of it is: what could not be told from a
    quotation would come back as the judge's own words, outside the transcript and without its
    marks, and a judge agrees with itself.
    """
    *before, question = messages
    what = fault.fault if isinstance(fault, Unreadable) else str(fault)
    asked = f"{question['content']}\n\nYour earlier reply can't be used: {defused(what)}. {AGAIN}"
    return [*before, {**question, "content": asked}]


def _seed_of(seed: int, digest: str) -> int:
    return int(digest_of(seed, digest), 16) % 2**31
