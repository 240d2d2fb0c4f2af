"""Episodes in progress, as ids: each prompt extends the last prompt and the ids sampled from it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import EndpointError, TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.types import Message, ToolSpec

_OPENINGS = 256
"""Openings whose ids are kept: the rollouts of a group begin alike, and rendering one costs more
than anything else that is done here."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """What is sent for one turn."""

    ids: tuple[int, ...]
    """Shape `(P,)`."""
    messages: int
    """Messages that it stands for."""


class Conversations:
    """What has been said in each session, as ids; any thread may ask.

    Nothing changes until a prompt has been answered, so a request may be repeated, or sent to
    another server.

    Args:
        codec: Renders messages.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self.codec = codec
        self._said: dict[str, tuple[TokenPrompt, tuple[int, ...]]] = {}
        self._openings: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._said)

    def renewed(self) -> Conversations:
        """The same with a lock of its own, for a forked process: nobody lets go of this one's."""
        found = Conversations(self.codec)
        found._said = dict(self._said)
        return found

    def prompt(
        self, session: str | None, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenPrompt:
        """The next prompt: everything so far, and the messages added since.

        Where the template renders the conversation differently from what it was, and the codec
        allows breaks, it is rendered anew: what was sampled is then no part of the prompt as ids.

        Args:
            session: Whose; None stands alone.
            messages: The whole conversation.
            tools: The episode's tools.

        Raises:
            EndpointError: If the conversation does not continue with the message that was sampled.
            TrainingError: If the template can't continue it.
        """
        with self._lock:
            said = None if session is None else self._said.get(session)
        if said is None:
            return TokenPrompt(self._opening(messages, tools), len(messages))
        before, sampled = said
        seen = before.messages
        if len(messages) <= seen or messages[seen].get("role") != "assistant":
            raise EndpointError(
                "a session's conversation must continue with the message that was sampled",
                retryable=False,
            )
        history, assistant, new = messages[:seen], messages[seen], messages[seen + 1 :]
        if self.codec.may_break and not self._goes_on(history, assistant, new, tools):
            return TokenPrompt(tuple(self.codec.prompt_ids(messages, tools)), len(messages))
        suffix = self.codec.suffix_ids(sampled, assistant, new, tools)
        return TokenPrompt((*before.ids, *sampled, *suffix), len(messages))

    def _opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Ids of a conversation that begins; those of the latest are remembered."""
        key = json.dumps([list(messages), list(tools)], default=repr)
        with self._lock:
            ids = self._openings.get(key)
            if ids is not None:
                self._openings.move_to_end(key)
                return ids
        ids = tuple(self.codec.prompt_ids(messages, tools))
        with self._lock:
            self._openings[key] = ids
            if len(self._openings) > _OPENINGS:
                self._openings.popitem(last=False)
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
        if session is not None:
            with self._lock:
                self._said[session] = (prompt, tuple(sampled))

    def forget(self, session: str) -> None:
        """Drop a session."""
        with self._lock:
            self._said.pop(session, None)

    def clear(self) -> None:
        """Drop all of them."""
        with self._lock:
            self._said.clear()
            self._openings.clear()
