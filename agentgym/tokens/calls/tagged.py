"""Formats that put calls between tags, somewhere in the text."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentgym.tokens.calls.json_calls import Block, bare_call
from agentgym.tokens.calls.reading import (
    TAG,
    ReadCall,
    Reading,
    last_repaired,
    repaired,
    tool_names,
    unreadable,
    without_thoughts,
)
from agentgym.types import ToolSpec


class TaggedFormat(ABC):
    """Walks a reply from tag to tag; a subclass reads one block of calls.

    Calls inside the reasoning are thoughts and are not made. A tag inside reasoning that never ends
    is no call either, since nobody can say whether it was meant as one; the reply is malformed.
    """

    name: str
    opening: re.Pattern[str]
    """Where a block of calls starts."""
    tags: re.Pattern[str] = TAG
    """What may not be left in an answer."""
    control: frozenset[str] = frozenset()
    think: tuple[str, str] = ("<think>", "</think>")
    """What opens and closes the reasoning; empty where nothing does."""
    key: str = "arguments"
    """What a JSON object calls the arguments."""

    @abstractmethod
    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read the calls of the block that `opening` found; `end` lies behind `begun`'s start."""

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read a reply; see `CallFormat`."""
        thought, thoughtless = self.think
        parts: list[str] = []
        thoughts: list[str] = []
        calls: list[ReadCall] = []
        at = 0
        first, last = (text.find(thought), text.find(thoughtless)) if thought else (-1, -1)
        if last >= 0 and not 0 <= first < last:  # the prompt opened it
            thoughts.append(text[:last])
            at = last + len(thoughtless)
        begun = self.opening.search(text, at)
        while True:
            if begun is not None and begun.start() < at:
                begun = self.opening.search(text, at)
            stop = begun.start() if begun else len(text)
            thinks = text.find(thought, at, stop) if thought else -1
            if thinks >= 0:
                parts.append(text[at:thinks])
                inner = thinks + len(thought)
                ends = text.find(thoughtless, inner)
                thoughts.append(text[inner : ends if ends >= 0 else len(text)])
                at = ends + len(thoughtless) if ends >= 0 else len(text)
                if ends < 0 and (tag := self.tags.search(thoughts[-1])):
                    calls.append(unreadable(thoughts[-1][tag.start() :]))
                continue
            parts.append(text[at:stop])
            if begun is None:
                break
            block = self.block(text, begun, tools)
            calls += block.calls
            at = block.end
        content, calls = self._without_tags("".join(parts), calls, tools)
        if calls or thoughts:
            content = content.strip()
        reasoning = "\n".join(found for part in thoughts if (found := part.strip()))
        return Reading(content, reasoning or None, tuple(calls))

    def prose(self, text: str) -> Reading:
        """Read a reply that can call nothing; see `CallFormat`."""
        return without_thoughts(text, *self.think)

    def _without_tags(
        self, content: str, calls: list[ReadCall], tools: Sequence[ToolSpec]
    ) -> tuple[str, list[ReadCall]]:
        """Content that may pass for an answer, and the calls that tags in it stand for."""
        tag = self.tags.search(content)
        if tag is None and not calls:
            bare = bare_call(content, tool_names(tools), key=self.key)
            return (content, calls) if bare is None else ("", [self._bare(bare)])
        if tag is None:
            return content, calls
        if calls:
            return self.tags.sub("", content), last_repaired(calls)
        return content[: tag.start()], [unreadable(content[tag.start() :])]

    def _bare(self, call: ReadCall) -> ReadCall:
        """A call that was written without any tag."""
        return repaired(call)
