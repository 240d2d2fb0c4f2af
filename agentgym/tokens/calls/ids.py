"""From sampled ids to a reading: which control tokens the text keeps, and where reasoning began.

Tags are often control tokens, and decoding that skips those loses the call with them; what remains
would pass for an answer. So exactly the tokens that mean nothing to the reader are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentgym.tokens.calls.families import format_of
from agentgym.tokens.calls.reading import TAG, CallFormat, Reading, without_thoughts
from agentgym.tokens.direct import DirectTokenizer
from agentgym.types import Message, ToolSpec

_THINK = ("<think>", "</think>")
"""What opens and closes the reasoning of a model whose template renders no calls."""
_OPENING = 32
"""Ids at a prompt's end that may open the reasoning; an assistant's header is shorter."""


class CallReader:
    """Reads the sampled ids of one model, in the format that its chat template renders.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        stop_ids: Ids that end an assistant message.
        template_kwargs: Passed to the chat template.
    """

    def __init__(
        self, tokenizer: Any, *, stop_ids: Collection[int], template_kwargs: Mapping[str, Any]
    ) -> None:
        self._direct = DirectTokenizer(tokenizer)
        self._stop_ids = frozenset(stop_ids)
        added = tokenizer.added_tokens_decoder.items()
        self._special = {i: token.content for i, token in added if token.special}

        def render(messages: Sequence[Message], tools: Sequence[ToolSpec], going_on: bool) -> str:
            text: str = tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools),
                tokenize=False,
                add_generation_prompt=going_on,
                **template_kwargs,
            )
            return text

        self.format: CallFormat | None = format_of(render, without=self._without)
        """How the model writes calls; None if the template renders none that can be read."""

    def read(
        self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[ToolSpec]
    ) -> Reading:
        """Read sampled ids.

        Args:
            sampled: Shape `(C,)`; the stop token may be there or not.
            prompt: Shape `(P,)`, what they were sampled from: it may have opened the reasoning.
            tools: The episode's tools; none means that text is text.
        """
        ids = list(sampled)
        while ids and ids[-1] in self._stop_ids:
            ids.pop()
        text = self._text(ids)
        opened, closed = self.format.think if self.format else _THINK
        if opened and not text.lstrip().startswith(opened):
            header = self._text(self._header(prompt))
            if header.rfind(opened) > header.rfind(closed):
                text = opened + text
        if self.format is None:
            return without_thoughts(text, opened, closed)
        return self.format.read(text, tools) if tools else self.format.prose(text)

    def _header(self, prompt: Sequence[int]) -> Sequence[int]:
        """What opens the assistant's message: what follows the last control token but its tags.

        Before it stands what others wrote, and they may write `<think>`.
        """
        tail = prompt[-_OPENING:]
        thinks = "".join(self.format.think if self.format else _THINK)
        for place in reversed(range(len(tail))):
            if self._special.get(tail[place], thinks) not in thinks:
                return tail[place + 1 :]
        return tail

    def _text(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self._special or self._is_kept(self._special[i])]
        return self._direct.decode(kept)

    def _is_kept(self, token: str) -> bool:
        return token in _THINK if self.format is None else _matters(token, self.format)

    def _without(self, text: str, calls: CallFormat) -> str:
        """A rendered text without the control tokens that mean nothing to a reader."""
        for token in self._special.values():
            if token and not _matters(token, calls):
                text = text.replace(token, "")
        return text


def _matters(token: str, calls: CallFormat) -> bool:
    """Whether a control token is a tag, of this format or of another."""
    return token in calls.control or TAG.search(token) is not None
