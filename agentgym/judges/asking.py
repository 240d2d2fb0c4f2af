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
from agentgym.judges.parsing import shortened, text_of
from agentgym.types import Episode, Message

T = TypeVar("T")

DEFAULT_SAMPLING = SamplingParams(temperature=0.0, max_tokens=1024)
"""A judge is to say the same thing twice; the room is for its reason."""

_LONGEST_REPLAY = 2_000
_REPLY_FOLLOWS = "; the reply: "


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
            return _read(completion, read)
        except JudgeRefused:
            raise
        except JudgeError as error:
            fault = error
        if isinstance(fault, JudgeTruncated):  # the same room would cut it again
            sampling = sampling.model_copy(update={"max_tokens": 2 * sampling.max_tokens})
        asked_again = [*messages, *_complaint(completion, fault)]
        completion = await self._complete(asked_again, sampling, session)
        try:
            return _read(completion, read)
        except JudgeError as error:
            raise type(error)(f"{error} (asked a second time; at first: {fault})") from error

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


def _read(completion: Completion, read: Callable[[str], T]) -> T:
    try:
        return read(text_of(completion))
    except JudgeError as error:
        said = shortened(str(completion.message.get("content") or ""))
        raise type(error)(f"{error}{_REPLY_FOLLOWS}{said}") from error


def _complaint(completion: Completion, fault: JudgeError) -> list[Message]:
    """The judge's reply and what is wrong with it, as the conversation goes on."""
    content = completion.message.get("content")
    what = defused(str(fault).partition(_REPLY_FOLLOWS)[0])
    said = content[:_LONGEST_REPLAY] if isinstance(content, str) and content else "…"
    return [
        {"role": "assistant", "content": defused(said)},
        {
            "role": "user",
            "content": f"That can't be used: {what}. "
            "Reply again with only the JSON object, as described; keep the reason short.",
        },
    ]


def _seed_of(seed: int, digest: str) -> int:
    return int(digest_of(seed, digest), 16) % 2**31
