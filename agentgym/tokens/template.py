"""One form of a chat template, and conversations as it wants to see them.

Templates disagree about details of the same message: arguments as an object or as the JSON string
that the wire has, the tool's name beside its result, no content or an empty one, ids of calls as
they come or of nine letters. What differs is settled here, once, so that whoever renders passes
plain OpenAI messages.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from agentgym.types import Message, ToolSpec

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a chat template raises when it refuses a conversation or was not written for it."""
_PROBE = "agentgymprobe"
_NINE = re.compile(r"[A-Za-z0-9]{9}")


class ChatTemplate:
    """Renders conversations with one template text.

    Args:
        tokenizer: A transformers tokenizer; its own template is not looked at.
        text: The template.
        kwargs: Passed to it, such as `{"enable_thinking": False}`.
        native_tools: Whether it gets tools and calls.
    """

    def __init__(
        self, tokenizer: Any, text: str, *, kwargs: Mapping[str, Any], native_tools: bool
    ) -> None:
        self._tokenizer = tokenizer
        self.text = text
        self._kwargs = dict(kwargs)
        self._native_tools = native_tools
        self._arguments_as_text = self._nine_letters = False
        if native_tools:
            self._settle_calls()

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation: bool
    ) -> str:
        """The conversation's text.

        Args:
            messages: OpenAI messages.
            tools: The episode's tools.
            generation: Whether an assistant message is opened at the end.

        Raises:
            Exception: One of `TEMPLATE_ERRORS`, if the template refuses the conversation.
        """
        text: str = self._tokenizer.apply_chat_template(
            self.as_wanted(messages),
            tools=list(tools) if self._native_tools and tools else None,
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=generation,
            **self._kwargs,
        )
        return text

    def as_wanted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template wants them; what is so already stays."""
        names: dict[str, str] = {}
        last = ""
        wanted = []
        for message in messages:
            shown = {**message, "content": message.get("content") or ""}
            if not self._native_tools:
                shown.pop("tool_calls", None)
            elif calls := message.get("tool_calls"):
                shown["tool_calls"] = [self._call(call) for call in calls]
                named = {c["id"]: c["function"].get("name") or "" for c in calls if c.get("id")}
                names |= named
                last = next(reversed(named.values()), "")
            if message.get("role") == "tool":
                answered = message.get("tool_call_id") or ""
                shown.setdefault("name", names.get(answered, last))
                if self._nine_letters:
                    shown["tool_call_id"] = _nine_letters(answered)
            wanted.append(shown)
        return wanted

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments = function.get("arguments")
        if not self._arguments_as_text:
            arguments = _as_object(arguments) if isinstance(arguments, str) else arguments or {}
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        shown = {**call, "function": {**function, "arguments": arguments}}
        if self._nine_letters:
            shown["id"] = _nine_letters(call.get("id") or "")
        return shown

    def _settle_calls(self) -> None:
        """Find out how calls must look; most templates take arguments as an object and any id.

        DeepSeek V3's takes arguments as a JSON string, and Mistral's ids of nine letters or digits.
        """
        for nine, as_text in itertools.product((False, True), repeat=2):
            self._nine_letters, self._arguments_as_text = nine, as_text
            function = {"name": "probe", "arguments": {_PROBE: _PROBE}}
            call = {"id": "call_0", "type": "function", "function": function}
            conversation: list[Message] = [
                {"role": "user", "content": "."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            try:
                text = self.render(conversation, (), generation=False)
            except TEMPLATE_ERRORS:
                continue
            if _PROBE in text and f"{{'{_PROBE}'" not in text:  # not Python's own spelling
                return
        self._nine_letters = self._arguments_as_text = False


def _nine_letters(given: str) -> str:
    """An id of nine letters or digits; always the same for the same id, and as it is if it is one.

    Args:
        given: Any id.
    """
    if _NINE.fullmatch(given):
        return given
    return hashlib.blake2b(given.encode("utf-8", "replace"), digest_size=5).hexdigest()[:9]


def _as_object(arguments: str) -> Any:
    """The arguments of a call in the history; what is no JSON object is shown as it is."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}
