"""Asking in token ids: vLLM's `/v1/completions`, for what is to be trained on.

The prompt is rendered here and goes out as ids; what was sampled comes back as ids and stays so.
Tool calls are read from them here, too, so the server needs neither chat template nor tool parser.
A server that changes prompts, has another tokenizer or gives log-probabilities of another
distribution would spoil a run without an error, so all of that is looked at: in every reply as far
as it can be seen there, the rest in the preflight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentgym.client import Completion, Endpoint, SamplingParams, TokenPath, public_url
from agentgym.clients.chat_wire import HELLO
from agentgym.clients.question import Question
from agentgym.clients.reply import BadReply, estimated_tokens
from agentgym.clients.token_reply import TokenReply, read_token_reply, without_echo, without_names
from agentgym.clients.token_server import check_tokenizer, context_of, gives_raw
from agentgym.clients.transport import Transport
from agentgym.clients.wire import check_answered, token_request_body, written
from agentgym.clients.written_ids import WrittenIds
from agentgym.errors import ConfigError, ContextOverflow, EndpointError, TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations, TokenPrompt
from agentgym.tokens.loading import load_tokenizer
from agentgym.types import Message, ToolSpec, Usage

logger = logging.getLogger(__name__)

_OURS = (
    *("model", "prompt", "prompt_embeds", "echo", "suffix", "n", "best_of", "stream"),
    *("logprobs", "prompt_logprobs", "logprob_token_ids", "return_token_ids"),
    *("stop_token_ids", "ignore_eos", "add_special_tokens", "skip_special_tokens"),
    *("truncate_prompt_tokens", "use_beam_search", "max_tokens"),
)
"""Request fields that decide what its ids mean; an endpoint's `extra_body` may not set them."""
_LIKELIEST = 5
"""Ids beside the sampled one that hellos ask for; servers allow up to 20."""
_RAW = (
    "the server gives log-probabilities from before temperature and cut-offs, which are not those "
    "of what is sampled; start it with --logprobs-mode processed_logprobs, or sample with "
    "temperature 1 and no top_p, top_k, min_p or penalties"
)
_COLDER = 0.5
"""Temperature of the second hello."""


@dataclass(eq=False, slots=True)
class TokenQuestion(Question):
    """One call in token ids."""

    prompt: TokenPrompt = field(kw_only=True)
    tools: Sequence[ToolSpec] = field(kw_only=True)
    """As they were shown to the model; empty if none were."""
    needs_processed: bool = field(kw_only=True)
    """Whether the distribution sampled from is another one than the model's own."""
    server: Transport | None = None
    """The server that a hello is for, once it was looked at."""
    reply: TokenReply | None = None
    """The last one."""


class TokenWire:
    """A `Wire` of completions in token ids.

    Args:
        endpoint: Model, tokenizer and dialect.
        before: The one of the process that this one was forked from.

    Raises:
        ConfigError: If the tokenizer can't be had or can't be used, or the endpoint's own request
            fields don't go with ids.
        MissingExtraError: If transformers isn't installed.
    """

    path = "/completions"

    def __init__(self, endpoint: Endpoint, before: TokenWire | None = None) -> None:
        path = endpoint.tokens
        assert path is not None
        _check_fields(endpoint)
        self._endpoint = endpoint
        self._max_context = path.max_context
        self._most_room: int | None = path.max_context
        self._loaded = load_tokenizer(path.tokenizer)
        self._stops = tuple(dict.fromkeys((*path.stop_ids, *self._loaded.stop_ids)))
        self._conversations: Conversations = (
            Conversations(self._codec(path)) if before is None else before._conversations.renewed()
        )
        self._written = WrittenIds()
        self._checked: set[bool] = set()

    def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        session: str | None,
    ) -> TokenQuestion:
        """Put a call into a request."""
        check_answered(messages)
        shown = tools if self._endpoint.dialect.tools else ()
        with self._using():
            self._check_template(messages, shown)
            prompt = self._conversations.prompt(session, messages, shown, most=self._most_room)
        if self._max_context is not None:
            _room(len(prompt.ids), self._max_context, self._endpoint)
        body = token_request_body(
            self._endpoint.model,
            self._written.of(session, prompt.ids),
            self._stops,
            sampling,
            self._endpoint.dialect,
        )
        return TokenQuestion(
            body,
            session,
            messages,
            len(prompt.ids),
            prompt=prompt,
            tools=tuple(shown),
            needs_processed=bool(sampling.temperature) and not _is_neutral(sampling),
        )

    def hellos(self, tools: Sequence[ToolSpec]) -> Sequence[TokenQuestion]:
        """The same question at two temperatures, with the likeliest ids beside the sampled ones."""
        questions = []
        for temperature in (1.0, _COLDER):
            sampling = SamplingParams(max_tokens=8, temperature=temperature, seed=0)
            question = self.ask([HELLO], tools, sampling, None)
            question.body["logprobs"] = _LIKELIEST
            question.is_hello = True
            questions.append(question)
        return questions

    def fit(
        self, question: Question, body: Mapping[str, Any], server: Transport
    ) -> Mapping[str, Any] | None:
        """The body with no more output tokens than there is room for."""
        assert isinstance(question, TokenQuestion)
        if question.is_hello and question.server is None:
            return None
        if server.gives_raw_logprobs and question.needs_processed and not question.is_hello:
            raise EndpointError(f"{_where(server.endpoint)}: {_RAW}", retryable=False)
        context = self._max_context or server.max_context
        if context is None:
            return None
        room = _room(len(question.prompt.ids), context, server.endpoint)
        limit = body["max_tokens"]
        return body if limit <= room else {**body, "max_tokens": room}

    async def learn(self, question: Question, server: Transport) -> None:
        """See which model the server has, and how much fits."""
        assert isinstance(question, TokenQuestion)
        session = server.here() or await server.session()
        listed = await session.ask("/models")
        context = context_of(listed, self._endpoint.model)
        if self._max_context and context and self._max_context > context:
            raise BadReply(
                f"the server has room for {context} tokens, tokens.max_context says "
                f"{self._max_context}; start it with a longer --max-model-len, or lower that",
                retryable=False,
            )
        if not context and not self._max_context:
            raise BadReply(
                "the server doesn't say how many tokens it has room for; set tokens.max_context",
                retryable=False,
            )
        if question.is_hello:
            await check_tokenizer(session, self._endpoint.model, self._loaded)
            question.server = server
        server.max_context = context
        if context and not self._max_context:
            self._most_room = max(context, self._most_room or 0)

    def trimmed(self, data: bytes, question: Question) -> bytes:
        """The reply without the prompt, if that is the one that was sent, and without names."""
        data = without_echo(data, question.body["prompt"])
        return data if question.is_hello else without_names(data)

    def read(self, reply: Any, sent: Mapping[str, Any], question: Question) -> Completion:
        """Read a reply, and the message in its ids."""
        assert isinstance(question, TokenQuestion)
        prompt = question.prompt.ids
        found = question.reply = read_token_reply(reply, prompt)
        self._check_end(found)
        if question.is_hello:
            self._check_text(found)
        with self._using():
            said = self._conversations.codec.parse(found.ids, prompt, question.tools)
        # Unchecked, since all of it was: looking at a long prompt's ids once more takes longer than
        # everything else here.
        return Completion.model_construct(
            message=said.message,
            usage=found.usage,
            finish_reason=found.finish_reason,
            cut_off=found.finish_reason == "length",
            reasoning=said.reasoning,
            prompt_ids=prompt,
            completion_ids=found.ids,
            logprobs=found.logprobs,
        )

    def usage_of_part(self, question: Question, message: Message) -> Usage:
        """Tokens of an answer that broke off; estimated."""
        size = len(written(message))
        return Usage(
            prompt_tokens=question.prompt_tokens or 0,
            completion_tokens=estimated_tokens(size),
            estimated=True,
        )

    def greeted(self, questions: Sequence[Question]) -> None:
        """Tell from two temperatures which distribution the log-probabilities are of."""
        warm, cold = map(_likeliest, questions)
        raw = gives_raw(warm, cold, ratio=_COLDER)
        for question in questions:
            assert isinstance(question, TokenQuestion)
            if question.server is not None and raw is not None:
                question.server.gives_raw_logprobs = raw

    def keep(self, question: Question, completion: Completion) -> None:
        """The next prompt of the session extends this one and what was sampled from it."""
        assert isinstance(question, TokenQuestion)
        sampled = completion.completion_ids or ()
        self._conversations.answered(question.session, question.prompt, sampled)

    def forget(self, session: str) -> None:
        """Drop what is kept of a session."""
        self._conversations.forget(session)
        self._written.forget(session)

    # --- inside -------------------------------------------------------------------------------

    def _codec(self, path: TokenPath) -> ChatCodec:
        with self._loaded.lock:
            try:
                return ChatCodec(
                    self._loaded.tokenizer,
                    stop_ids=self._stops,
                    template_kwargs=path.template_kwargs,
                    allow_breaks=path.allow_breaks,
                )
            except TrainingError as error:
                raise ConfigError(str(error)) from error

    @contextmanager
    def _using(self) -> Iterator[None]:
        """While the tokenizer is used; its faults are the endpoint's."""
        with self._loaded.lock:
            try:
                yield
            except TrainingError as error:
                raise EndpointError(str(error), retryable=False) from error

    def _check_template(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """See, once with tools and once without, that the template can be extended."""
        kind = bool(tools)
        if kind in self._checked:
            return
        codec = self._conversations.codec
        codec.check(messages, tools)
        if tools and not codec.native_tools:
            logger.warning(
                "the chat template of %r shows no tools; the policy gets none, and what it writes "
                "is read by the env's text grammar",
                self._loaded.name,
            )
        self._checked.add(kind)

    def _check_end(self, found: TokenReply) -> None:
        """See that what ended the turn ends it here, too."""
        if found.finish_reason != "stop" or isinstance(found.stop_reason, str) or not found.ids:
            return
        last = found.ids[-1]
        if last in self._stops:
            return
        if found.stop_reason in self._stops:
            fault = (
                f"the server ended a turn with id {found.stop_reason} and left it out of the ids; "
                "what a model stops with is to be trained on, so use a server that keeps it (vLLM)"
            )
        else:
            text = self._loaded.tokenizer.convert_ids_to_tokens(last)
            fault = (
                f"the server ended a turn with id {last} ({text!r}), which ends none for the "
                f"tokenizer {self._loaded.name!r}; add it to tokens.stop_ids"
            )
        raise BadReply(fault, retryable=False, usage=found.usage)

    def _check_text(self, found: TokenReply) -> None:
        """See that the server reads ids as this side does."""
        ids = found.ids[:-1] if found.ids and found.ids[-1] in self._stops else found.ids
        with self._loaded.lock:
            text = str(self._loaded.tokenizer.decode(ids, skip_special_tokens=False))
        if found.text and _compared(text) != _compared(found.text):
            raise BadReply(
                f"the server reads its ids as {found.text!r:.80}, the tokenizer "
                f"{self._loaded.name!r} as {text!r:.80}; it must be that of the server's model",
                retryable=False,
                usage=found.usage,
            )


def _where(endpoint: Endpoint) -> str:
    return f"{public_url(endpoint.base_url)} (model {endpoint.model!r})"


def _room(prompt_tokens: int, context: int, endpoint: Endpoint) -> int:
    """Tokens that fit behind a prompt.

    Raises:
        ContextOverflow: If there are none.
    """
    if prompt_tokens >= context:
        raise ContextOverflow(
            f"{_where(endpoint)}: the prompt has {prompt_tokens} tokens, the context is {context}"
        )
    return context - prompt_tokens


def _check_fields(endpoint: Endpoint) -> None:
    taken = sorted(endpoint.extra_body.keys() & set(_OURS))
    if taken:
        raise ConfigError(
            f"extra_body sets {', '.join(taken)}, which an endpoint with `tokens` sets itself"
        )


def _likeliest(question: Question) -> dict[str, float]:
    """Log-probabilities of the likeliest first ids."""
    assert isinstance(question, TokenQuestion)
    return question.reply.likeliest if question.reply is not None else {}


def _is_neutral(sampling: SamplingParams) -> bool:
    """Whether what is sampled from is the model's own distribution."""
    return (
        sampling.temperature == 1
        and sampling.top_p == 1
        and sampling.top_k <= 0
        and sampling.min_p == 0
        and sampling.repetition_penalty == 1
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
    )


def _compared(text: str) -> str:
    """Text without what decoding piece by piece may do otherwise: spaces, cut characters."""
    return "".join(text.replace("\ufffd", "").split())
