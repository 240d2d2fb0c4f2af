"""Prompts as a prefix cache sees them: a chain of messages, each known by all that precedes it.

A policy server keeps what it computed for a prompt, and a later prompt that begins the same way
pays only for what is new. Tokens are counted as a quarter of the text's characters, so that both
the servers here and whoever plans their load get the same numbers without a tokeniser.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CHARACTERS_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""What the chat template adds to each message."""


def tokens_of(message: Mapping[str, Any]) -> int:
    """Tokens of a message, the template's own included."""
    characters = len(_text(message.get("content")))
    for name, arguments in _calls(message):
        characters += len(name) + len(arguments)
    return MESSAGE_TOKENS - (-characters // CHARACTERS_PER_TOKEN)


class Prompt:
    """A conversation as the prefix cache sees it.

    Args:
        messages: The conversation.
        tools: OpenAI tool list; the template puts it before everything.
    """

    __slots__ = ("keys", "lengths", "tokens")

    def __init__(
        self, messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        text = json.dumps(tools) if tools else ""
        self.keys = [hash(text)]
        """One per message, the tools first; equal where everything up to it is equal."""
        self.lengths = [-(-len(text) // CHARACTERS_PER_TOKEN)]
        """Tokens of each."""
        for message in messages:
            self._append(message)
        self.tokens = sum(self.lengths)

    def answered(self, message: Mapping[str, Any]) -> tuple[int, int]:
        """Key and tokens of an answer, as it will stand in the next prompt."""
        return _key_after(self.keys[-1], message), tokens_of(message)

    def _append(self, message: Mapping[str, Any]) -> None:
        self.keys.append(_key_after(self.keys[-1], message))
        self.lengths.append(tokens_of(message))


class PrefixCache:
    """What a server has computed and not thrown away yet; the least recently used goes first.

    Args:
        capacity_tokens: None keeps everything.
    """

    def __init__(self, capacity_tokens: int | None = None) -> None:
        self.tokens = 0
        """Held now."""
        self._capacity = capacity_tokens
        self._held: OrderedDict[int, tuple[int, float]] = OrderedDict()

    def cached_tokens(self, prompt: Prompt, now: float) -> int:
        """Tokens at the beginning of a prompt that need no computing.

        Args:
            prompt: What is asked.
            now: What is computed only later doesn't count.
        """
        tokens = 0
        for key in prompt.keys:
            found = self._held.get(key)
            if found is None or found[1] > now:
                break
            tokens += found[0]
        return tokens

    def keep(self, prompt: Prompt, ready_at: float) -> list[int]:
        """Keep a prompt, which is computed at `ready_at`.

        Returns:
            The keys that were not held before.
        """
        fresh = []
        # From the end, so that a beginning is never older than what follows it.
        for key, tokens in zip(reversed(prompt.keys), reversed(prompt.lengths), strict=True):
            if self.add(key, tokens, ready_at):
                fresh.append(key)
        return fresh

    def add(self, key: int, tokens: int, ready_at: float) -> bool:
        """Keep one message, or mark it as used; whether it is new."""
        held = self._held
        if key in held:
            if self._capacity is not None:
                held.move_to_end(key)
            return False
        held[key] = (tokens, ready_at)
        self.tokens += tokens
        while self._capacity is not None and self.tokens > self._capacity:
            self.tokens -= held.popitem(last=False)[1][0]
        return True

    def drop(self, keys: Iterable[int]) -> None:
        """Forget what was never computed."""
        for key in keys:
            found = self._held.pop(key, None)
            self.tokens -= found[0] if found else 0

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self.tokens = 0


def _key_after(key: int, message: Mapping[str, Any]) -> int:
    """The key of a message behind that of the one before it. Ids of calls don't matter."""
    content = _text(message.get("content"))
    return hash((key, message.get("role"), content, *_calls(message)))


def _calls(message: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield str(function.get("name")), _text(function.get("arguments"))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)
