"""The token path: from a conversation to the sampler's ids, and from sampled ids to a message.

What is trained on is what was sampled. A prompt is never rendered twice: turn t+1's prompt is turn
t's prompt, the ids sampled from it, and the ids of the new messages alone. Decoding a completion
and tokenising the conversation again would give other ids for the same text, and log-probabilities
that belong to none of them.

The template decides what comes between two assistant messages, so its text is taken from rendering
a stand-in conversation with and without the new messages, from the assistant's stop token on; a
separator after the stop token is thereby kept. That only works if the template renders a message
the same way whatever follows, which `ChatCodec.check` establishes before training starts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from agentgym.errors import TrainingError
from agentgym.types import Message, ToolSpec

_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a chat template raises when it refuses a conversation or was not written for it."""
_STAND_IN = "agentgym stand-in"
_CALL_TAG = re.compile(
    r"</?tool_calls?>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|<\|tool_call\|?>|<｜tool▁calls?▁begin｜>"
)


@dataclass(frozen=True)
class ParsedReply:
    """What sampled ids say."""

    message: Message
    """The assistant message."""
    reasoning: str | None = None
    """Reasoning text, where the model's format marks it."""


class ChatCodec:
    """Conversations to ids and sampled ids to messages, for one tokenizer and chat template.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        stop_ids: Ids that end an assistant message.
        template_kwargs: Passed to the chat template, such as `{"enable_thinking": False}`.
        native_tools: Whether to hand tools to the template and parse calls in the model's own
            format. None: if the template takes tools and TRL knows how to parse its calls.

    Raises:
        TrainingError: If the tokenizer has no chat template, or native tools are asked for and
            can't be had.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_ids: Sequence[int],
        template_kwargs: Mapping[str, Any] | None = None,
        native_tools: bool | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise TrainingError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; set "
                "`tokenizer.chat_template` and save it beside the model"
            )
        self.tokenizer = tokenizer
        self.stop_ids = tuple(stop_ids)
        self.template: str | None = None
        self._kwargs = dict(template_kwargs or {})
        self._stop_texts = tuple(tokenizer.convert_ids_to_tokens(list(self.stop_ids)))
        self._nonce = secrets.token_hex(4)
        added = tokenizer.added_tokens_decoder.values()
        self._special = {token.content: token.special for token in added if token.content}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.native_tools = self._can_parse_calls() if native_tools is None else native_tools
        if self.native_tools and not self._can_parse_calls():
            raise TrainingError(
                f"the chat template of {tokenizer.name_or_path!r} offers no tool calls that can be "
                "parsed; use a model whose template TRL knows (Qwen 2.5 to 3.6, Llama 3.x, GLM 4, "
                "GPT-OSS, Gemma 4, Nemotron 3, …) or set `tokenizer.response_template`"
            )

    # --- conversations to ids ------------------------------------------------------------------

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of an opening, up to where the assistant starts; shape `(P,)`."""
        guarded, hidden = self._guard(messages)
        return self._encode(self._render(guarded, tools, generation=True), hidden)

    def suffix_ids(
        self,
        sampled: Sequence[int],
        assistant: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> list[int]:
        """Ids that follow a sampled message: what closes it, the new messages, the next opening.

        Args:
            sampled: The sampled ids, shape `(C,)`. If they end with the stop token, it is not
                repeated; if they were cut off, it is supplied.
            assistant: The message they stand for, as it is in the history.
            new_messages: All messages since; rendered together, as templates merge neighbours.
            tools: The episode's tools.

        Raises:
            TrainingError: If the template renders the assistant's message differently once the new
                messages follow it.
        """
        calls = _stand_in_calls(assistant) if self.native_tools else []
        try:
            full, hidden, start = self._continued(calls, new_messages, tools)
        except _TEMPLATE_ERRORS:
            if len(calls) < 2:
                raise
            # Some templates take one call per message (Llama 3). What follows the message is the
            # same, and that is all that is read here.
            full, hidden, start = self._continued(calls[:1], new_messages, tools)
        tail = self._encode(full[start:], hidden)
        if sampled and tail and sampled[-1] == tail[0]:
            return tail[1:]
        return tail

    def _continued(
        self, calls: Sequence[Message], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[str, list[str], int]:
        """A stand-in conversation with the new messages, and where its assistant message ends."""
        stand_in: Message = {"role": "assistant", "content": "" if calls else _STAND_IN}
        if calls:
            stand_in["tool_calls"] = list(calls)
        names = {call["id"]: call["function"]["name"] for call in calls}
        last = calls[-1]["function"]["name"] if calls else ""
        guarded, hidden = self._guard([_with_name(m, names, last) for m in new_messages])
        user: Message = {"role": "user", "content": "."}
        before = self._render([user], tools, generation=False)
        closed = self._render([user, stand_in], tools, generation=False)
        full = self._render([user, stand_in, *guarded], tools, generation=True)
        start = self._end_of_reply(before, closed, called=bool(calls))
        if full[:start] != closed[:start]:
            raise TrainingError(self._not_preserving(closed, full))
        return full, hidden, start

    def check(self, opening: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Establish that the template can be extended turn by turn.

        A template that can't is swapped for its training form, where TRL has one.

        Args:
            opening: A task's opening messages.
            tools: Its tools.

        Raises:
            TrainingError: If it can't, with the remedy.
        """
        fault = self._fault(opening, tools)
        if fault is None:
            return
        from trl.chat_template_utils import get_training_chat_template

        try:
            self.template = get_training_chat_template(self.tokenizer)
        except ValueError:  # a template TRL does not know
            self.template = None
        if self.template is None or self._fault(opening, tools) is not None:
            self.template = None
            raise TrainingError(
                f"the chat template of {self.tokenizer.name_or_path!r} can't be trained on over "
                f"several turns: {fault}. Use a template that renders every message the same way "
                "whatever follows it (trl.chat_template_utils.get_training_chat_template has them "
                "for the common families) and save it as the tokenizer's chat_template"
            )

    def _fault(self, opening: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """What keeps the template from being extended, or None."""
        follow_ups: list[tuple[Message, list[Message]]] = [
            ({"role": "assistant", "content": _STAND_IN}, [{"role": "user", "content": "."}])
        ]
        if self.native_tools and tools:
            function = {"name": tools[0]["function"]["name"], "arguments": {}}
            calls = [{"id": "call_0", "type": "function", "function": function}]
            called = {"role": "assistant", "content": "", "tool_calls": calls}
            result = {"role": "tool", "tool_call_id": "call_0", "content": "."}
            follow_ups = [(called, [_with_name(result, {}, function["name"])]), *follow_ups]
        try:
            history = list(opening)
            for assistant, new_messages in follow_ups:
                prompt = self._render(history, tools, generation=True)
                before = self._render(history, tools, generation=False)
                history.append(assistant)
                closed = self._render(history, tools, generation=False)
                if not closed.startswith(prompt):
                    return "the opening of an assistant message changes once the message is there"
                history += new_messages
                full = self._render(history, tools, generation=True)
                start = self._end_of_reply(before, closed, called="tool_calls" in assistant)
                if full[:start] != closed[:start]:
                    role = new_messages[0]["role"]
                    return f"a message is rendered differently once a {role} message follows"
                self.suffix_ids((), assistant, new_messages, tools)
        except TrainingError as error:
            return str(error)
        except _TEMPLATE_ERRORS as error:
            return f"it fails on an ordinary conversation ({type(error).__name__}: {error})"
        return None

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation: bool
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [{**m, "content": m.get("content") or ""} for m in messages],
            tools=list(tools) if self.native_tools and tools else None,
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=generation,
            **self._kwargs,
        )
        return text

    def _end_of_reply(self, before: str, closed: str, *, called: bool) -> int:
        """Where, in a rendered conversation, the last assistant message's stop token starts.

        Some templates have none: the next message's header is what ends the turn (GLM).

        Args:
            before: The conversation without that message.
            closed: The conversation, nothing after the message.
            called: Whether the message makes calls; their rendering is then left out by looking
                from the end.
        """
        if called:
            stop = max((closed.rfind(stop) for stop in self._stop_texts), default=-1)
            return stop if stop >= len(before) else len(closed)
        after = closed.rindex(_STAND_IN) + len(_STAND_IN)
        stops = [at for stop in self._stop_texts if (at := closed.find(stop, after)) >= 0]
        return min(stops, default=after)

    def _not_preserving(self, closed: str, full: str) -> str:
        same = next((i for i, (a, b) in enumerate(zip(closed, full, strict=False)) if a != b), 0)
        return (
            "the chat template renders an assistant message differently once messages follow it: "
            f"{closed[same : same + 40]!r} becomes {full[same : same + 40]!r}"
        )

    # --- text that looks like a control token ---------------------------------------------------

    def _guard(self, messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
        """Hide the control tokens' own texts that stand in messages behind placeholders.

        A web page may contain `<|im_end|>`; as text it is harmless, as a token it ends the turn.
        """
        hidden: list[str] = []

        def hide(found: re.Match[str]) -> str:
            hidden.append(found.group())
            return f"\ue000{self._nonce}{len(hidden) - 1}\ue001"

        def clean(content: Any) -> Any:
            if isinstance(content, str):
                return self._special_text.sub(hide, content)
            if isinstance(content, list):
                return [
                    {**part, "text": clean(part["text"])} if "text" in part else part
                    for part in content
                ]
            return content

        return [{**m, "content": clean(m.get("content"))} for m in messages], hidden

    def _encode(self, text: str, hidden: Sequence[str]) -> list[int]:
        if not hidden:
            return self._ids(text)
        ids: list[int] = []
        pieces = re.split(f"\ue000{self._nonce}(\\d+)\ue001", text)
        for position, piece in enumerate(pieces):
            if position % 2:
                ids += self._ids_as_text(hidden[int(piece)])
            elif piece:
                ids += self._ids(piece)
        return ids

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _ids_as_text(self, token: str) -> list[int]:
        """Ids of a control token's text, none of them the control token."""
        control = self.tokenizer.convert_tokens_to_ids(token)
        if self._special[token]:
            encoded = self.tokenizer(token, add_special_tokens=False, split_special_tokens=True)
            if control not in encoded["input_ids"]:
                return list(encoded["input_ids"])
        # Added tokens that aren't "special" are matched regardless; cut in two they are not.
        middle = max(1, len(token) // 2)
        ids = self._ids(token[:middle]) + self._ids(token[middle:])
        return [i for i in ids if i != control]

    # --- ids to messages ------------------------------------------------------------------------

    def _can_parse_calls(self) -> bool:
        from trl.chat_template_utils import add_response_schema, supports_tool_calling

        tokenizer = self.tokenizer
        if not supports_tool_calling(tokenizer):
            return False
        if not (
            getattr(tokenizer, "response_template", None)
            or getattr(tokenizer, "response_schema", None)
        ):
            try:
                add_response_schema(tokenizer)
            except ValueError:  # TRL knows templates by their exact text
                return False
        return True

    def parse(
        self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[ToolSpec]
    ) -> ParsedReply:
        """Read sampled ids as an assistant message.

        A call that can't be read is returned as a call without a name, so that the environment
        answers it and counts it as malformed; it must never pass for a final answer.
        """
        ids = list(sampled)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        if not (self.native_tools and tools):
            text = self.tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            return ParsedReply({"role": "assistant", "content": text})
        from trl.chat_template_utils import parse_response

        parsed = parse_response(self.tokenizer, ids, prefix=list(prompt), tools=list(tools))
        content = parsed.get("content") or ""
        message: Message = {"role": "assistant", "content": content}
        calls = list(parsed.get("tool_calls") or ())
        if not calls and (tag := _CALL_TAG.search(self.tokenizer.decode(ids))):
            unreadable = self.tokenizer.decode(ids)[tag.start() :]
            calls = [{"type": "function", "function": {"name": "", "arguments": unreadable}}]
        if calls:
            message["tool_calls"] = calls
        reasoning = parsed.get("reasoning_content") or parsed.get("thinking")
        return ParsedReply(message, reasoning if isinstance(reasoning, str) else None)


def _stand_in_calls(assistant: Message) -> list[Message]:
    """The message's calls with empty arguments; ids and names decide how results are rendered."""
    return [
        {
            "id": call.get("id") or f"call_{position}",
            "type": "function",
            "function": {"name": call["function"].get("name") or "unknown", "arguments": {}},
        }
        for position, call in enumerate(assistant.get("tool_calls") or ())
    ]


def _with_name(message: Message, names: Mapping[str, str], default: str) -> Message:
    """A tool message with its tool's name, which some templates ask for."""
    if message.get("role") != "tool" or "name" in message:
        return message
    return {**message, "name": names.get(message.get("tool_call_id", ""), default)}
