"""Episodes in progress, as ids: each prompt extends the last prompt and the ids sampled from it."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym.errors import EndpointError, TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.types import Message, ToolSpec

_OPENINGS = 256
"""Openings whose ids are kept: the rollouts of a group begin alike, and rendering one costs more
than anything else that is done here."""
_MOST_OPENING_IDS = 1 << 21
"""Ids of openings, some 70 megabytes; long documents come in openings, too."""
_MOST_IDS = 1 << 24
"""Ids of sessions, half a gigabyte of them; beyond, what nobody asks for any more goes."""
_STALE_S = 3600.0
"""Since a session's last answer; longer than an environment takes for a turn."""
_SENT = ("role", "content", "tool_calls", "tool_call_id")
"""What of an earlier message may not change, as it is in the prompt already."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """What is sent for one turn."""

    ids: tuple[int, ...]
    """Shape `(P,)`."""
    messages: tuple[Message, ...]
    """What it stands for."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A session's last turn."""

    prompt: TokenPrompt
    sampled: tuple[int, ...]
    at_s: float

    def __len__(self) -> int:
        return len(self.prompt.ids) + len(self.sampled)


class Conversations:
    """What has been said in each session, as ids; any thread may ask.

    Nothing changes until a prompt has been answered, so a request may be repeated, or sent to
    another server.

    A session that is never released is dropped when memory gets short. If it goes on all the same,
    it is rendered anew, so that its row says that its prompts don't extend each other.

    Args:
        codec: Renders messages.
        clock: Seconds, rising.
    """

    def __init__(self, codec: ChatCodec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.codec = codec
        self._clock = clock
        self._said: OrderedDict[str, _Said] = OrderedDict()
        self._size = 0
        self._openings: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        # Reentrant: the garbage collector may end an episode, and so release it, in here.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._said)

    def renewed(self) -> Conversations:
        """The same with a lock of its own, for a forked process: nobody lets go of this one's."""
        found = Conversations(self.codec)
        found._said, found._size = self._said.copy(), self._size
        return found

    def prompt(
        self,
        session: str | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        most: int | None = None,
    ) -> TokenPrompt:
        """The next prompt: everything so far, and the messages added since.

        Where the template renders the conversation differently from what it was, and the codec
        allows breaks, it is rendered anew: what was sampled is then no part of the prompt as ids.

        Args:
            session: Whose; None stands alone.
            messages: The whole conversation.
            tools: The episode's tools.
            most: Ids that there is room for, if known. A prompt that is far longer is not put
                together; one that is somewhat longer may be.

        Raises:
            ContextOverflow: If it is far longer.
            EndpointError: If the conversation does not continue with the message that was sampled,
                or what came before it has changed.
            TrainingError: If the template can't continue it.
        """
        with self._lock:
            said = None if session is None else self._said.get(session)
        if said is None:
            return TokenPrompt(self._opening(messages, tools, most), tuple(messages))
        before, sampled = said.prompt, said.sampled
        seen = len(before.messages)
        goes_on = len(messages) > seen and messages[seen].get("role") == "assistant"
        if not goes_on and not self.codec.allow_breaks:
            raise EndpointError(
                "a session's conversation must continue with the message that was sampled",
                retryable=False,
            )
        changed = not all(map(_says_the_same, messages, before.messages))
        if changed and not self.codec.allow_breaks:
            raise EndpointError(
                "earlier messages of a session have changed, and the prompt made of ids has them "
                "as they were; leave them, or take a new session",
                retryable=False,
            )
        if not goes_on or changed:
            return self._anew(messages, tools, most)
        history, assistant, new = messages[:seen], messages[seen], messages[seen + 1 :]
        if self.codec.may_break and not self._goes_on(history, assistant, new, tools):
            return self._anew(messages, tools, most)
        left = None if most is None else most - len(said)
        suffix = self.codec.suffix_ids(sampled, assistant, new, tools, most=left)
        return TokenPrompt((*before.ids, *sampled, *suffix), tuple(messages))

    def _anew(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], most: int | None
    ) -> TokenPrompt:
        ids = self.codec.prompt_ids(messages, tools, most=most)
        return TokenPrompt(tuple(ids), tuple(messages))

    def _opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], most: int | None
    ) -> tuple[int, ...]:
        """Ids of a conversation that begins; those of the latest are remembered."""
        key = json.dumps([list(messages), list(tools)], default=repr)
        with self._lock:
            ids = self._openings.get(key)
            if ids is not None:
                self._openings.move_to_end(key)
                return ids
        ids = tuple(self.codec.prompt_ids(messages, tools, most=most))
        with self._lock:
            self._openings[key] = ids
            size = sum(map(len, self._openings.values()))
            while len(self._openings) > _OPENINGS or size > _MOST_OPENING_IDS:
                size -= len(self._openings.popitem(last=False)[1])
        return ids

    def _goes_on(
        self,
        history: Sequence[Message],
        assistant: Message,
        new: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> bool:
        """Whether a template that can't always be extended can be at this turn."""
        if not self.codec.allow_breaks:
            raise TrainingError(f"the chat template can't be extended: {self.codec.fault}")
        return self.codec.extends(history, assistant, new, tools)

    def answered(self, session: str | None, prompt: TokenPrompt, sampled: Sequence[int]) -> None:
        """Keep what was sampled from a prompt; shape `(C,)`."""
        if session is None:
            return
        with self._lock:
            self._drop(session)
            now = self._clock()
            said = self._said[session] = _Said(prompt, tuple(sampled), now)
            self._size += len(said)
            while self._size > _MOST_IDS:
                oldest, last = next(iter(self._said.items()))
                if last.at_s > now - _STALE_S:
                    return
                self._drop(oldest)

    def _drop(self, session: str) -> None:
        said = self._said.pop(session, None)
        self._size -= len(said) if said is not None else 0

    def forget(self, session: str) -> None:
        """Drop a session."""
        with self._lock:
            self._drop(session)

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            self._said.clear()
            self._size = 0
            self._openings.clear()


def _says_the_same(message: Message, sent: Message) -> bool:
    return message is sent or all(message.get(key) == sent.get(key) for key in _SENT)
