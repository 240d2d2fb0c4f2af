"""The rollouts of a group begin alike, and their opening is rendered once."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym.tokens import conversations
from agentgym.tokens.conversations import Conversations

OPENING = [{"role": "user", "content": "Go"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


class CountingCodec:
    """Renders a conversation as the lengths of its parts, and counts how often."""

    fault = None
    rendered = 0

    def prompt_ids(self, messages: Any, tools: Any, *, most: Any) -> list[int]:
        self.rendered += 1
        return [len(str(messages)), len(tools)]


def conversing() -> tuple[Conversations, CountingCodec]:
    codec: Any = CountingCodec()
    return Conversations(codec), codec


def test_opening_of_a_group_is_rendered_once() -> None:
    said, codec = conversing()
    prompts = [said.prompt(f"s{n}", OPENING, TOOLS) for n in range(4)]
    assert len({prompt.ids for prompt in prompts}) == 1
    assert codec.rendered == 1


def test_other_messages_or_tools_are_another_opening() -> None:
    said, codec = conversing()
    found = [
        said.prompt("a", OPENING, TOOLS).ids,
        said.prompt("b", OPENING, []).ids,
        said.prompt("c", [{"role": "user", "content": "Stay"}], TOOLS).ids,
    ]
    assert len(set(found)) == codec.rendered == 3


def test_old_openings_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(conversations, "_OPENINGS", 2)
    said, codec = conversing()
    for text in ("a", "b", "a", "c", "a", "b"):  # b is the one not used for longest
        said.prompt(text, [{"role": "user", "content": text}], [])
    assert codec.rendered == 4
    said.clear()
    said.prompt("a", [{"role": "user", "content": "a"}], [])
    assert codec.rendered == 5


def test_long_openings_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    said, codec = conversing()
    monkeypatch.setattr(conversations, "_MOST_OPENING_IDS", 7)  # of two ids each
    for name in "abcd":
        said.prompt(name, [{"role": "user", "content": name}], TOOLS)
    said.prompt("e", [{"role": "user", "content": "b"}], TOOLS)
    assert codec.rendered == 4
    said.prompt("f", [{"role": "user", "content": "a"}], TOOLS)
    assert codec.rendered == 5
