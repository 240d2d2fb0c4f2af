"""What a chat template writes after an assistant message, and whether that can be known.

A conversation grows by ids only if the template renders a message the same way whatever follows.
What comes between two assistant messages is then read from a stand-in conversation: a short user
message, an assistant message that makes the same calls, and the new messages. The text from the
assistant's stop token on is what the new messages add, a separator after the stop token included.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentgym.errors import TrainingError
from agentgym.tokens.template import TEMPLATE_ERRORS, ChatTemplate
from agentgym.types import Message, ToolSpec

# Words that nothing in a conversation can contain, as nobody knows them.
_STAND_IN = f"standin{secrets.token_hex(6)}"
_REASONING = f"reasoning{secrets.token_hex(6)}"
ANY_USER: Message = {"role": "user", "content": f"user{secrets.token_hex(6)}"}
ANY_TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": "stand_in",
        "description": "-",
        "parameters": {"type": "object", "properties": {}},
    },
}
# Another user and another tool: a template may look for the last one, or for those that are equal.
TRIAL_OPENING: Message = {"role": "user", "content": f"opening{secrets.token_hex(6)}"}
TRIAL_TOOL: ToolSpec = {
    "type": "function",
    "function": {**ANY_TOOL["function"], "name": "other_stand_in"},
}

_MOST_ENDS = 256
"""Calls whose ends are kept, where each ends in its own way."""
_UNLIKE = "the opening of an assistant message changes once the message is there"
_DROPPED = "the reasoning in a message is left out once others follow"
_UNSEEN = "the reasoning is not rendered as such"


@dataclass(frozen=True)
class _End:
    """How a template ends an assistant message."""

    before_stop: str
    """What it writes between the message's last word and the stop token, such as `</tool_call>`."""
    replaced: str | None
    """The stop token of a message that is the last one, where another closes it once messages
    follow (GPT-OSS: `<|return|>`, then `<|end|>`)."""


@dataclass(frozen=True)
class Trial:
    """What came of a test conversation."""

    fault: str | None = None
    """Why not, in words that follow "the chat template can't be extended: "."""
    drops_reasoning: bool = False
    """Whether it would leave out a message's reasoning once a user message follows. Prompts made
    of ids keep it."""


class Extension:
    """Extends conversations of one template.

    Args:
        template: Renders.
        stop_texts: Texts of the tokens that end an assistant message.
    """

    def __init__(self, template: ChatTemplate, *, stop_texts: Sequence[str], native: bool) -> None:
        self._template = template
        self._stop_texts = tuple(stop_texts)
        self._native = native
        self._tools = (ANY_TOOL,) if native else ()
        self._ends: dict[tuple[str, str] | None, _End] = {}
        self._ends_alike: bool | None = None

    def text_after(
        self, assistant: Message, new_messages: Sequence[Message]
    ) -> tuple[str, str | None]:
        """What follows an assistant message, from its stop token on.

        Args:
            assistant: The message; its calls' ids and names decide how results are rendered.
            new_messages: All messages since, rendered together: templates merge neighbours.

        Returns:
            The text, up to where the next assistant message starts, and the stop token that its
            first token replaces, if the template has another one for a last message.

        Raises:
            TrainingError: If the template refuses the messages, or renders the assistant's
                differently once they follow it.
        """
        calls = _stand_in_calls(assistant) if self._native else []
        named = self._template.as_wanted([assistant, *new_messages])[1:]
        try:
            end = self._end(calls)
            try:
                return self._after(calls, named, end), end.replaced
            except (*TEMPLATE_ERRORS, TrainingError):
                if len(calls) < 2:
                    raise
                # Some templates take one call per message (Llama 3) or show only one. What
                # follows the message is the same, and that is all that is read here.
                return self._after(calls[-1:], named, end), end.replaced
        except TEMPLATE_ERRORS as error:
            roles = " → ".join(["assistant", *(str(m.get("role")) for m in new_messages)])
            raise TrainingError(
                f"the chat template refuses the messages {roles}: {error}"
            ) from error

    def try_out(self, opening: Sequence[Message], tools: Sequence[ToolSpec]) -> Trial:
        """Whether a conversation that starts like this can be extended turn by turn.

        Plays calls with their results and answers with replies, each with and without reasoning,
        and holds what is put together against the template's rendering of the whole. Each twice:
        some templates write a second call otherwise than the first (DeepSeek V3).
        """
        history = list(opening)
        drops = False
        try:
            kinds = (False, True, True, False) if self._native and tools else (False, False)
            for turn, called in enumerate(kinds):
                follow = _result() if called else {**ANY_USER, "content": f"user, turn {turn}"}
                fits: list[Message] = []
                for message in _replies(called):
                    found = self._fault(history, message, [follow], tools)
                    reasoned = _REASONING in str(message)
                    if found is None:
                        fits.append(message)
                    elif found == _DROPPED and reasoned and not called:
                        drops = True
                        fits.append(message)
                    elif found not in (_UNLIKE, _UNSEEN):
                        return Trial(found)
                if not fits:
                    return Trial(_UNLIKE)
                history += [fits[0], follow]
        except TrainingError as error:
            return Trial(str(error))
        except TEMPLATE_ERRORS as error:
            why = f"it fails on an ordinary conversation ({type(error).__name__}: {error})"
            return Trial(why)
        return Trial(drops_reasoning=drops)

    def continued(
        self,
        history: Sequence[Message],
        assistant: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> bool:
        """Whether this very conversation is extended by these messages, reasoning included.

        Renders it as a whole; for templates that can be extended at some turns only. Whether the
        policy reasoned isn't known here: where the template takes reasoning, it may have.
        """
        calls = _stand_in_calls(assistant) if self._native else []
        for message in reversed(list(_replies(bool(calls), calls[-1:]))):  # with reasoning first
            try:
                found = self._fault(history, message, new_messages, tools)
            except (*TEMPLATE_ERRORS, TrainingError):
                return False
            if found not in (_UNLIKE, _UNSEEN):
                return found is None
        return False

    def _fault(
        self,
        history: Sequence[Message],
        message: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> str | None:
        """What is wrong with extending a history by a stand-in message and what follows it."""
        render = self._template.render
        reasoned = _REASONING in str(message)
        prompt = render(history, tools, generation=True)
        try:
            closed = render([*history, message], tools, generation=False)
        except TEMPLATE_ERRORS:
            if reasoned:  # in a field, or in a spelling, that this template doesn't take
                return _UNSEEN
            raise
        if reasoned and not 0 <= closed.rfind(_REASONING) < closed.rfind(_STAND_IN):
            return _UNSEEN
        if not closed.startswith(prompt):
            return _UNLIKE
        end = self._end(message.get("tool_calls", ()))
        start = closed.rindex(_STAND_IN) + len(_STAND_IN) + len(end.before_stop)
        full = render([*history, message, *new_messages], tools, generation=True)
        if full[:start] != closed[:start]:
            kept = not reasoned or _REASONING in full
            return _differs(closed, full) if kept else _DROPPED
        if full[start:] != self.text_after(message, new_messages)[0]:
            return "what it writes after a message depends on what came before"
        return None

    def _after(self, calls: Sequence[Message], new: Sequence[Message], end: _End) -> str:
        stand_in: Message = {"role": "assistant", "content": "" if calls else _STAND_IN}
        if calls:
            stand_in["tool_calls"] = list(calls)
        full = self._template.render([ANY_USER, stand_in, *new], self._tools, generation=True)
        if full.count(_STAND_IN) != max(1, len(calls)):
            raise TrainingError("the chat template leaves out an assistant message, or its calls")
        start = full.rindex(_STAND_IN) + len(_STAND_IN)
        if not full.startswith(end.before_stop, start):
            raise TrainingError(
                "the chat template ends an assistant message differently once messages follow it: "
                f"{_readable(full[start:])[:40]!r} instead of {end.before_stop!r}"
            )
        return full[start + len(end.before_stop) :]

    def _end(self, calls: Sequence[Message]) -> _End:
        """How a message with these calls, or with none, ends; read once where calls end alike.

        Some templates write a call's id behind its arguments (Mistral).

        Raises:
            TrainingError: If nothing that the template writes there is a stop token.
        """
        if not calls:
            return self._end_of(None)
        if self._ends_alike is None:
            self._ends_alike = self._end_of(_call()) == self._end_of(_call("call_1"))
        return self._end_of(_call() if self._ends_alike else calls[-1])

    def _end_of(self, call: Message | None) -> _End:
        key = None if call is None else (call["id"], call["function"]["name"])
        if key not in self._ends:
            if len(self._ends) > _MOST_ENDS:
                self._ends.clear()
            self._ends[key] = self._read_end(call)
        return self._ends[key]

    def _read_end(self, call: Message | None) -> _End:
        calls = None if call is None else _stand_in_calls({"tool_calls": [call]})
        message = next(_replies(call is not None, calls))
        follow = ANY_USER if call is None else _result(call)
        closed = self._template.render([ANY_USER, message], self._tools, generation=False)
        full = self._template.render([ANY_USER, message, follow], self._tools, generation=True)
        last, followed = _rest(closed, _STAND_IN), _rest(full, _STAND_IN)
        before, stop = self._first_stop(last) or self._first_stop(followed) or (last, "")
        after_user = _rest(full[: full.find(_STAND_IN)], ANY_USER["content"])
        replaced = None
        if not stop:
            written = _readable(followed)[:40]
            raise TrainingError(
                f"nothing that it writes after an assistant message ({written!r}) is one of the "
                f"tokens that end a turn ({', '.join(self._stop_texts)}); name the right one "
                "as eos_token_id in the model's generation_config.json"
            )
        if not followed.startswith(before + stop):
            replaced = stop
            if followed[len(before) : len(before) + 2] != after_user[:2]:
                raise TrainingError(_differs(closed, full))
        return _End(before, replaced)

    def _first_stop(self, text: str) -> tuple[str, str] | None:
        """What comes before the first stop token, and that token."""
        stops = [(place, stop) for stop in self._stop_texts if (place := text.find(stop)) >= 0]
        return (text[: min(stops)[0]], min(stops)[1]) if stops else None


def _rest(text: str, word: str) -> str:
    at = text.rfind(word)
    if at < 0:
        raise TrainingError("the chat template leaves out an assistant message, or its calls")
    return text[at + len(word) :]


def _differs(closed: str, full: str) -> str:
    closed, full = _readable(closed), _readable(full)
    same = next((i for i, (a, b) in enumerate(zip(closed, full, strict=False)) if a != b), 0)
    return (
        "an assistant message is rendered differently once messages follow it: "
        f"{closed[same : same + 40]!r} becomes {full[same : same + 40]!r}"
    )


def _readable(text: str) -> str:
    for word in (_STAND_IN, _REASONING, ANY_USER["content"], TRIAL_OPENING["content"]):
        text = text.replace(word, "…")
    return text


def _replies(called: bool, calls: Sequence[Message] | None = None) -> Iterator[Message]:
    """Stand-in assistant messages: plain, and with reasoning in a field or in the text."""
    extra: Message = {}
    if called:
        extra = {"tool_calls": list(calls or _stand_in_calls({"tool_calls": [_call()]}))}
    text = "" if called else _STAND_IN
    plain: Message = {"role": "assistant", "content": text, **extra}
    yield plain
    yield {**plain, **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _REASONING)}
    yield {**plain, "content": f"<think>\n{_REASONING}\n</think>\n\n{text}"}


def _call(id_: str = "call_0") -> Message:
    return {"id": id_, "type": "function", "function": {"name": "stand_in"}}


def _result(call: Message | None = None) -> Message:
    call = call or _call()
    name = call["function"]["name"]
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": "."}


def _stand_in_calls(assistant: Message) -> list[Message]:
    """The message's calls with arguments that are found again; ids and names stay."""
    return [
        {
            "id": call.get("id") or f"call_{position}",
            "type": "function",
            "function": {
                "name": call["function"].get("name") or "unknown",
                "arguments": {"stand_in": _STAND_IN},
            },
        }
        for position, call in enumerate(assistant.get("tool_calls") or ())
    ]
