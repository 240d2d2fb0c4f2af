"""The contract with models: one coroutine from messages to a completion.

Everything that answers like a model implements `ModelClient`: a hosted endpoint, a colocated vLLM,
a scripted policy. Ids and log-probabilities travel with the message where the endpoint has them, so
a trainer never has to tokenise text again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit, urlunsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from agentgym.types import Finite, Message, Record, ToolSpec, Usage

Role: TypeAlias = Literal["policy", "simulator", "judge", "baseline"]


class SamplingParams(Record):
    """How to sample. All of it is sent explicitly, so no model's own defaults slip in."""

    temperature: Finite = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: Finite = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; 1 keeps everything."""
    top_k: int = Field(default=-1, ge=-1)
    """Candidates kept; -1 keeps all."""
    min_p: Finite = Field(default=0.0, ge=0, le=1)
    """Least probability relative to the likeliest token."""
    repetition_penalty: Finite = Field(default=1.0, gt=0)
    """1 is none."""
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    max_tokens: int = Field(default=512, ge=1)
    """Output tokens allowed per turn."""
    stop: tuple[str, ...] = ()
    """Strings that end the output."""
    seed: int | None = None
    """Per-request seed, where the endpoint has one."""
    json_schema: dict[str, Any] | None = None
    """Ask for one JSON object of this schema, as far as the endpoint can be held to it; whoever
    reads the answer still checks it."""


class Completion(Record):
    """A model's answer."""

    message: Message
    """The assistant message, tool calls included."""
    usage: Usage | None = None
    """None only where the client has no tokens to count (scripted policies)."""
    finish_reason: str | None = None
    """As the endpoint gave it."""
    cut_off: bool = False
    """Whether the output limit ended it, whatever `finish_reason` says."""
    reasoning: str | None = None
    """Reasoning text, for the trace only."""
    prompt_ids: tuple[int, ...] | None = None
    """Shape `(P,)`; None where the endpoint has no ids."""
    completion_ids: tuple[int, ...] | None = None
    """Shape `(C,)`, the sampled ids."""
    logprobs: tuple[float, ...] | None = None
    """Shape `(C,)`, of the sampled ids under the sampling distribution."""
    attempts: int = 1
    """Requests it took."""
    replica: str | None = None
    """The server that answered, where there are several."""
    weight_version: str | None = None
    """The weights it was asked of, where they are known; `7->8` if they changed meanwhile."""


@runtime_checkable
class ModelClient(Protocol):
    """Anything that answers a conversation with one assistant message."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation.

        Args:
            messages: The whole conversation so far.
            tools: OpenAI tool list; may be empty.
            sampling: How to sample.
            session: The episode's id. Successive calls of one session extend one conversation,
                which lets a client keep its tokens, its prefix cache or its recording together.

        Raises:
            EndpointError: If no answer can be had.
            ContextOverflow: If the conversation no longer fits the model's context.
        """
        ...

    async def release(self, session: str) -> None:
        """Forget a session; called once per episode, also after failures."""
        ...

    async def aclose(self) -> None:
        """Free connections and threads."""
        ...


MAX_PRICE = 1e9
"""US dollars per million tokens. What is dearer is a slip, and sums of it would be no numbers."""


class Prices(Record):
    """What a model costs, in US dollars per million tokens."""

    input: Finite = Field(ge=0, le=MAX_PRICE)
    """Input tokens that no cache held."""
    cached: Finite | None = Field(default=None, ge=0, le=MAX_PRICE)
    """Cached input tokens; None: they cost as much as the others."""
    output: Finite = Field(ge=0, le=MAX_PRICE)
    """Output tokens, reasoning included."""
    book: str | None = None
    """The price book's row they are from; None: they were given."""

    def cost_usd(self, usage: Usage) -> float:
        """What these tokens cost, US dollars; cached ones beyond the prompt's are nobody's."""
        cached_price = self.input if self.cached is None else self.cached
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        millionths = (usage.prompt_tokens - cached) * self.input + cached * cached_price
        millionths += usage.completion_tokens * self.output
        return millionths / 1e6


class RateLimits(Record):
    """How much a provider allows; beyond it, calls wait in the client."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Input and output together."""


class Dialect(Record):
    """What a server can do, where it differs from the others."""

    tools: bool = True
    """Whether tools are sent; without, the model sees only text."""
    seed: bool = True
    """Whether requests carry a seed."""
    temperature: bool = True
    """Whether requests carry a temperature; some hosted models refuse any."""
    structured_output: Literal["auto", "json_schema", "json_object", "none"] = "auto"
    """How an answer is held to JSON; `auto` tries from the left and remembers what is refused."""
    empty_content: Literal["null", "text"] = "null"
    """What stands as content beside tool calls without text: null, or an empty string."""
    replay_reasoning: Literal["never", "reasoning_content", "reasoning"] = "never"
    """The field in which a turn's reasoning goes back into the same episode's later prompts."""
    stream: bool = False
    """Whether answers are streamed, for gateways that cut long silent requests."""


NOT_THE_TEMPLATES = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation"}
    | {"documents", "max_length", "messages", "padding", "processor_kwargs", "return_dict"}
    | {"return_assistant_tokens_mask", "return_tensors", "tokenize", "tokenizer_kwargs", "tools"}
    | {"truncation"}
)
"""Parameters of transformers' `apply_chat_template`; all others go to the template."""


class TokenPath(Record):
    """How a vLLM server is asked in token ids rather than in messages.

    Prompts are then rendered here, with the model's own chat template, and go out as ids; what was
    sampled comes back as ids with log-probabilities, and stays so: what a trainer needs, and what
    no chat endpoint gives.
    """

    # Pydantic's errors quote the input, and a folder's name is nobody else's business.
    model_config = ConfigDict(hide_input_in_errors=True)

    tokenizer: str = Field(min_length=1)
    """Folder or hub id of the model's tokenizer, with its chat template."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """For the chat template, such as `{"enable_thinking": False}`."""
    stop_ids: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = ()
    """Ids that end a turn, beside the tokenizer's and those of the model's generation config."""
    max_context: int | None = Field(default=None, ge=16)
    """Tokens of prompt and answer that fit; None asks the server."""
    allow_breaks: bool = False
    """Whether a conversation is rendered anew where the template renders it differently from what
    it was, for a trainer that takes several rows per episode; see docs/tokens.md."""

    @field_validator("template_kwargs")
    @classmethod
    def _are_the_templates(cls, given: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(given.keys() & NOT_THE_TEMPLATES)
        if taken:
            raise ValueError(f"may not set {', '.join(taken)}: those are for the template's caller")
        return _as_json(given)


class Endpoint(Record):
    """One model role: where it is, what it is called, what it costs, how hard to lean on it."""

    # Pydantic's errors quote the input, and a URL may hold a password.
    model_config = ConfigDict(hide_input_in_errors=True)

    base_url: str
    """OpenAI-compatible root, such as `http://localhost:8000/v1`."""
    model: str = Field(min_length=1)
    """Model name as the server knows it."""
    role: Role = "policy"
    """What the model is used for; accounting is kept per role."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; read at call time, never stored."""
    max_concurrency: int = Field(default=64, ge=1)
    """Requests in flight at once."""
    timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest wait for one attempt, seconds."""
    deadline_s: Finite = Field(default=300.0, gt=0)
    """Longest wait for one call, all attempts and pauses included, seconds."""
    max_retries: int = Field(default=4, ge=0)
    """Further attempts after a retryable failure."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra request fields, for one server's own options."""
    prices: Prices | None = None
    """None: unknown, and so is what calls cost."""
    budget_usd: Finite | None = Field(default=None, gt=0)
    """Dollars after which no call is sent any more, those in flight counted at their most."""
    rate: RateLimits = RateLimits()
    dialect: Dialect = Dialect()
    tokens: TokenPath | None = None
    """Ask in token ids; None asks in messages."""

    @model_validator(mode="after")
    def _budget_has_prices(self) -> Endpoint:
        if self.budget_usd is not None and self.prices is None:
            raise ValueError(
                "budget_usd needs prices: without them nobody knows when it is used up; add "
                "prices = {input = …, output = …} in dollars per million tokens"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_sampled_as_said(self) -> Endpoint:
        if self.tokens is not None and self.dialect.stream:
            raise ValueError("tokens and dialect.stream exclude each other; leave stream out")
        if self.tokens is not None and not self.dialect.temperature:
            raise ValueError(
                "tokens need dialect.temperature: without one, the server samples at its own"
            )
        return self

    @field_validator("extra_body")
    @classmethod
    def _is_json(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return _as_json(fields)

    @field_validator("api_key_env")
    @classmethod
    def _is_name(cls, variable: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise ValueError("must be the name of an environment variable, not the key itself")
        return variable

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("base_url must start with http:// or https://")
        return url.rstrip("/")

    def public(self) -> dict[str, Any]:
        """The endpoint as plain data for traces, specs and logs, without what may be a secret.

        Returns:
            The fields that differ from their defaults; `Endpoint(**…)` reads them back.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True)
        fields |= {"base_url": public_url(self.base_url), "role": self.role}
        if self.extra_body:
            fields["extra_body"] = _without_secrets(fields["extra_body"])
        if self.tokens is not None and self.tokens.template_kwargs:
            given = fields["tokens"]["template_kwargs"]
            fields["tokens"]["template_kwargs"] = _without_secrets(given)
        return fields

    def __repr_args__(self) -> Any:
        """Fields for `repr`, without what may be a secret."""
        for name, value in super().__repr_args__():
            if name == "base_url":
                yield name, public_url(value)
            elif name == "extra_body":
                yield name, sorted(value)
            elif name == "tokens":
                yield name, value and value.tokenizer
            else:
                yield name, value


def _as_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that JSON can hold.

    Raises:
        ValueError: If it can't.
    """
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"must be what JSON can hold: {error}") from error
    return fields


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment, for logs and errors."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an unclosed bracket
        return re.sub(r"//[^/]*@", "//", url).partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


_SECRET_NAME = re.compile(
    r"key|token$|secret|password|passwd|auth|credential|bearer", re.IGNORECASE
)


def named_secrets(value: Any) -> list[str]:
    """The texts inside a JSON value that stand under a name like a secret's."""
    if isinstance(value, dict):
        return [
            text
            for name, item in value.items()
            for text in (_texts_in(item) if _SECRET_NAME.search(name) else named_secrets(item))
        ]
    if isinstance(value, list):
        return [text for item in value for text in named_secrets(item)]
    return []


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [text for item in items for text in _texts_in(item)]
    return [value] if isinstance(value, str) else []


def _without_secrets(value: Any) -> Any:
    """A JSON value, with what is named like a secret blotted out."""
    if isinstance(value, dict):
        return {
            name: "[redacted]" if _SECRET_NAME.search(name) else _without_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
