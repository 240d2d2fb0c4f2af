"""The token path: from a conversation to the sampler's ids, and from sampled ids to a message.

What is trained on is what was sampled. A prompt is never rendered twice: turn t+1's prompt is turn
t's prompt, the ids sampled from it, and the ids of the new messages alone. Decoding a completion
and tokenising the conversation again would give other ids for the same text, and log-probabilities
that belong to none of them.

A template that renders a message differently once others follow can't be extended like that. It is
swapped for its form for training where there is one, and refused otherwise; see `extension`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.client import NOT_THE_TEMPLATES
from agentgym.errors import ContextOverflow, TrainingError
from agentgym.tokens.calls.ids import CallReader
from agentgym.tokens.control import ControlText
from agentgym.tokens.extension import ANY_USER, TRIAL_OPENING, TRIAL_TOOL, Extension, Trial
from agentgym.tokens.template import TEMPLATE_ERRORS, ChatTemplate
from agentgym.tokens.training_forms import templates_folder, training_form
from agentgym.types import Message, ToolSpec

logger = logging.getLogger(__name__)

_DROPS = "it leaves out earlier reasoning at a new user message"


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
        native_tools: Whether to hand tools to the template and read calls in the model's own
            format. None: if the template takes tools and there is a reader for its calls.
        allow_breaks: Whether a conversation may be rendered anew where the template renders it
            differently from what it was, as for a trainer that takes several rows per episode.
            The template is then used as it is.

    Raises:
        TrainingError: If the tokenizer has no chat template, a parameter isn't the template's, or
            native tools are asked for and can't be had.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_ids: Sequence[int],
        template_kwargs: Mapping[str, Any] | None = None,
        native_tools: bool | None = None,
        allow_breaks: bool = False,
    ) -> None:
        original = _template_of(tokenizer)
        if taken := sorted(NOT_THE_TEMPLATES & set(template_kwargs or ())):
            raise TrainingError(
                f"template_kwargs are variables of the chat template, such as enable_thinking; "
                f"{', '.join(taken)} can't be set there"
            )
        self.tokenizer = tokenizer
        self.stop_ids = tuple(stop_ids)
        self._kwargs = dict(template_kwargs or {})
        texts = {stop: tokenizer.decode([stop]) for stop in self.stop_ids}
        self._stop_texts = {stop: text for stop, text in texts.items() if text}
        self._control = ControlText(tokenizer)
        self._calls = CallReader(tokenizer, stop_ids=self.stop_ids, template_kwargs=self._kwargs)
        self.native_tools = self._can_parse_calls() if native_tools is None else native_tools
        if self.native_tools and not self._can_parse_calls():
            raise TrainingError(
                f"the chat template of {tokenizer.name_or_path!r} offers no tool calls that can be "
                "read; use a model that writes calls in one of the formats of docs/tool_calls.md "
                "(Qwen 2.5 on, Llama 3.x, GLM 4, GPT-OSS, Gemma 4, DeepSeek, Nemotron 3, …)"
            )
        self._render, self._extension, trial = self._form(original)
        form = None if allow_breaks else training_form(original)
        if form is not None and (trial.fault or trial.drops_reasoning):
            render, extension, judged = self._form(form)
            if judged.fault is None and (trial.fault or not judged.drops_reasoning):
                self._render, self._extension = render, extension
                _tell(
                    f"the chat template of {tokenizer.name_or_path!r} is replaced by its form for "
                    f"training, which is to be saved with the model: {trial.fault or _DROPS}"
                )
                trial = judged
        self.fault = trial.fault
        """Why conversations of this template can't be extended; None if they can."""
        self.allow_breaks = allow_breaks
        self.drops_reasoning = trial.drops_reasoning
        """Whether the template leaves out earlier reasoning at a new user message. Prompts that
        are extended keep it."""

    @property
    def may_break(self) -> bool:
        """Whether a conversation may have to be rendered anew, or given up."""
        return self.fault is not None or (self.allow_breaks and self.drops_reasoning)

    @property
    def template(self) -> str:
        """The chat template in use: the tokenizer's, or its form for training."""
        return self._render.text

    def adopt(self) -> None:
        """Make the template in use the tokenizer's own, so that it is saved with the model.

        A model that is served with another template than it was trained with sees other prompts.
        """
        self.tokenizer.chat_template = self.template

    # --- conversations to ids ------------------------------------------------------------------

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, most: int | None = None
    ) -> list[int]:
        """Ids of an opening, up to where the assistant starts; shape `(P,)`.

        Args:
            messages: The opening.
            tools: The episode's tools.
            most: Ids that there is room for, if known; see `ControlText.exceeds`.

        Raises:
            ContextOverflow: If there are far more.
            TrainingError: If the template refuses the messages.
        """
        hidden: list[str] = []
        guarded = self._guard(messages, hidden)
        try:
            text = self._render.render(guarded, self._guarded_tools(tools, hidden), generation=True)
        except TEMPLATE_ERRORS as error:
            roles = " → ".join(str(m.get("role")) for m in messages)
            raise TrainingError(
                f"the chat template refuses the messages {roles}: {error}"
            ) from error
        return self._encoded(text, hidden, most)

    def suffix_ids(
        self,
        sampled: Sequence[int],
        assistant: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        most: int | None = None,
    ) -> list[int]:
        """Ids that follow a sampled message: what closes it, the new messages, the next opening.

        Costs the same at every turn: neither the history nor the tools are rendered.

        Args:
            sampled: The sampled ids, shape `(C,)`. If they end with the stop token, it is not
                repeated; if they were cut off, it is supplied.
            assistant: The message they stand for, as it is in the history.
            new_messages: All messages since; rendered together, as templates merge neighbours.
            tools: The episode's tools.
            most: Ids that there is room for, if known; see `ControlText.exceeds`.

        Raises:
            ContextOverflow: If there are far more.
            TrainingError: If the template renders the assistant's message differently once the new
                messages follow it, or refuses them.
        """
        hidden: list[str] = []
        guarded = self._guard([assistant, *new_messages], hidden)
        text, replaced = self._extension.text_after(guarded[0], guarded[1:])
        tail = self._encoded(text, hidden, most)
        if sampled and tail and sampled[-1] in self.stop_ids:
            stop = self._stop_texts.get(sampled[-1])
            if sampled[-1] == tail[0] or (stop is not None and stop == replaced):
                return tail[1:]
        return tail

    def _encoded(self, text: str, hidden: Sequence[str], most: int | None) -> list[int]:
        if most is not None and self._control.exceeds(text, hidden, most):
            raise ContextOverflow(
                f"the new messages don't fit: the context has room for {max(0, most)} more tokens"
            )
        return self._control.encode(text, hidden)

    def extends(
        self,
        history: Sequence[Message],
        assistant: Message,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> bool:
        """Whether the template itself renders this conversation as an extension of what it was.

        Costs a rendering of the whole; only of interest where it `may_break`.

        Args:
            history: The messages before the sampled one.
            assistant: The sampled message.
            new_messages: The messages since.
            tools: The episode's tools.
        """
        return self._extension.continued(history, assistant, new_messages, tools)

    def check(self, opening: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Establish that a task's conversation can be extended turn by turn.

        Plays stand-in turns behind the opening and compares what is put together with the
        template's rendering of the whole. With `allow_breaks`, only that the opening is rendered,
        and what a user says with it; each turn is then looked at by itself where that is needed.

        Args:
            opening: A task's opening messages.
            tools: Its tools.

        Raises:
            TrainingError: If it can't, with the remedy.
        """
        self.prompt_ids(opening, tools)
        if self.allow_breaks:
            self._require_words()
            self.fault = self.fault or self._extension.try_out(opening, tools).fault
            return
        if self.drops_reasoning and not self.native_tools:  # answered by user messages
            _tell(
                f"the chat template of {self.tokenizer.name_or_path!r} leaves out earlier "
                "reasoning at a new user message; prompts made of ids keep it"
            )
        fault = self.fault or self._extension.try_out(opening, tools).fault
        if fault is not None:
            trl = "" if templates_folder() else ", or install TRL, which has them"
            raise TrainingError(
                f"the chat template of {self.tokenizer.name_or_path!r} can't be trained on over "
                f"several turns: {fault}. Use a template that renders every message the same way "
                "whatever follows it and save it as the tokenizer's chat_template (those of "
                f"trl/chat_templates/*_training.jinja do, for the common families{trl}), or a "
                "trainer that takes several rows per episode, with allow_breaks"
            )

    def _require_words(self) -> None:
        """See that the template shows what a user says; some take lists of parts and skip text."""
        try:
            shown = self._render.render([ANY_USER], (), generation=True)
        except TEMPLATE_ERRORS:  # it wants more than that; the task's own opening it takes
            return
        if ANY_USER["content"] not in shown:
            raise TrainingError(
                f"the chat template of {self.tokenizer.name_or_path!r} leaves out what a user says "
                "in plain text, as those do that take content as a list of parts; save one that "
                "takes text as the tokenizer's chat_template"
            )

    def _form(self, text: str) -> tuple[ChatTemplate, Extension, Trial]:
        """One form of the template, and whether it can be extended."""
        native = self.native_tools
        template = ChatTemplate(self.tokenizer, text, kwargs=self._kwargs, native_tools=native)
        extension = Extension(template, stop_texts=tuple(self._stop_texts.values()), native=native)
        return template, extension, extension.try_out([TRIAL_OPENING], [TRIAL_TOOL])

    def _guard(self, messages: Sequence[Message], hidden: list[str]) -> list[Message]:
        return [
            {**self._control.hide(message, hidden), "role": message["role"]}
            for message in self._render.as_wanted(messages)
        ]

    def _guarded_tools(self, tools: Sequence[ToolSpec], hidden: list[str]) -> list[ToolSpec]:
        """The tools, with what looks like control tokens hidden, as in messages."""
        return [self._control.hide(tool, hidden) for tool in tools] if self.native_tools else []

    # --- ids to messages ------------------------------------------------------------------------

    def _can_parse_calls(self) -> bool:
        return self._calls.format is not None

    def parse(
        self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[ToolSpec]
    ) -> ParsedReply:
        """Read sampled ids as an assistant message.

        A call that can't be read is returned as a call without a name, so that the environment
        answers it and counts it as malformed; it must never pass for a final answer. A call that
        had to be repaired says so, and counts too.
        """
        reading = self._calls.read(sampled, prompt, tools if self.native_tools else ())
        message: Message = {"role": "assistant", "content": reading.content}
        if reading.calls:
            message["tool_calls"] = [call.as_message() for call in reading.calls]
        return ParsedReply(message, reading.reasoning)


def _template_of(tokenizer: Any) -> str:
    """The tokenizer's chat template; of several, the one for tools."""
    found = tokenizer.chat_template
    if isinstance(found, Mapping):
        found = found.get("tool_use") or found.get("default")
    if not found:
        raise TrainingError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; take the model's "
            "chat version, or set `tokenizer.chat_template` to that of a model of its family "
            "(Qwen, Llama, Gemma, GLM, …: docs/tokens.md) and save it beside the model"
        )
    return str(found)


@functools.cache
def _tell(line: str) -> None:
    """One line, once per process: codecs are made anew for every engine and every evaluation."""
    logger.warning(line)
