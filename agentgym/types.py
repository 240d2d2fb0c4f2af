"""The nouns of an episode: messages, calls, tasks, turns, verdicts.

Messages stay plain OpenAI-format dicts so that nothing is lost on the wire. What agentgym owns is
frozen pydantic that refuses unknown fields, so a typo in a config or a trace of another version is
an error where it happens. Records hold facts; whatever follows from them is a property.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's format: `role`, `content`, and what the role adds to them."""

Messages: TypeAlias = tuple[Message, ...]
"""An observation: the messages added since the last action."""

ToolSpec: TypeAlias = dict[str, Any]
"""One entry of OpenAI's `tools` list: `{"type": "function", "function": {…}}`."""

Action: TypeAlias = str | Message
"""One assistant message; a `str` stands for `{"role": "assistant", "content": …}`."""

FailureClass: TypeAlias = Literal["policy", "simulator", "judge", "env", "infra"]
TruncationReason: TypeAlias = Literal[
    "turns", "tokens", "context", "time", "fault", "provider_empty", "simulator_abort"
]
CallStatus: TypeAlias = Literal["ok", "error", "malformed", "cut_off", "not_run"]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"must be finite, got {value}")
    return value


Finite = Annotated[float, AfterValidator(_finite)]
"""A float that is neither NaN nor infinite."""


class Record(BaseModel):
    """Base of everything agentgym owns: frozen, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings"
    )


def in_one_line(error: ValidationError) -> str:
    """What pydantic refuses, as `field: complaint; …`, without its line breaks and links."""
    faults = error.errors(include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'value'}: "
        f"{fault['msg'].removeprefix('Value error, ')} (got {fault['input']!r:.60})"
        for fault in faults[:5]
    )


class Usage(Record):
    """Tokens and dollars of one or more model calls.

    `prompt_tokens` includes the cached ones and `completion_tokens` the reasoning ones, as OpenAI
    and OpenTelemetry count them; adding the parts again would bill them twice.
    """

    prompt_tokens: int = Field(default=0, ge=0)
    """Input tokens, cached ones included."""
    cached_tokens: int = Field(default=0, ge=0)
    """Input tokens served from a prefix cache."""
    completion_tokens: int = Field(default=0, ge=0)
    """Output tokens, reasoning included."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """Output tokens spent on reasoning text."""
    calls: int = Field(default=1, ge=0)
    """Requests behind these figures, failed ones that reported usage included."""
    retries: int = Field(default=0, ge=0)
    """Requests sent again after one that failed, billed or not."""
    failed_calls: int = Field(default=0, ge=0)
    """Calls that gave no answer in the end, after all their retries."""
    cost_usd: float | None = Field(default=None, ge=0)
    """US dollars; None where the endpoint has no prices."""
    estimated: bool = False
    """Whether any figure was estimated because the endpoint sent none."""

    def __add__(self, other: Usage) -> Usage:
        costs = [u.cost_usd for u in (self, other) if not u.is_nothing]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            calls=self.calls + other.calls,
            retries=self.retries + other.retries,
            failed_calls=self.failed_calls + other.failed_calls,
            cost_usd=None if None in costs else sum(c for c in costs if c is not None),
            estimated=self.estimated or other.estimated,
        )

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was billed, so that an unknown price doesn't matter."""
        return not (self.calls or self.prompt_tokens or self.completion_tokens)


class Task(Record):
    """One problem instance."""

    task_id: str
    """Stable id, such as `webshop/human/17`."""
    split: str | None = None
    """`train`, `validation`, `test`, or None where the env has no splits."""
    reference: Any = Field(default=None, repr=False, exclude=True)
    """What solves the task. Hidden: never in an observation, an `info` or a trace."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Public facts about the task (family, difficulty)."""


class ToolCall(Record):
    """One call of a tool and how it went."""

    id: str
    """Unique within the episode; rewritten if the model repeated or omitted it."""
    name: str
    """The tool asked for."""
    arguments: dict[str, Any] | None
    """Validated arguments; None where they could not be read."""
    raw_arguments: Any = None
    """The arguments exactly as the model gave them."""
    original_id: str | None = None
    """The model's own id, where it was rewritten."""
    status: CallStatus = "ok"
    """`error`: the tool answered with an error. `malformed`: unreadable, or no such tool.
    `cut_off`: ended by the output limit. `not_run`: the episode ended first."""
    repaired: bool = False
    """Whether it was not written in the model's own format and could be read all the same."""
    duration_s: float = 0.0
    """Seconds spent in the tool."""

    @property
    def malformed(self) -> bool:
        """Whether it could not be read, names no tool, or ran only because it was repaired."""
        return self.status == "malformed" or (self.repaired and self.status in ("ok", "error"))


class Turn(Record):
    """One assistant message plus the tool results or user reply it caused."""

    index: int
    """0-based position in the episode."""
    message: Message
    """The assistant message as it stands in the history."""
    replies: Messages = ()
    """The tool or user messages that followed."""
    calls: tuple[ToolCall, ...] = ()
    """The calls, in order; from `tool_calls` or from an env's text grammar."""
    malformed_text: bool = False
    """Whether the text matched no action of the env's grammar."""
    cut_off: bool = False
    """Whether the output limit ended the message, whatever `finish_reason` says."""
    finish_reason: str | None = None
    """As the endpoint gave it."""
    reasoning: str | None = None
    """Reasoning text; kept here and never replayed."""
    usage: Usage | None = None
    """Tokens of the policy call, if known."""
    at_s: float | None = None
    """Seconds from the start of the episode to the question to the policy."""
    policy_s: float | None = None
    """Seconds the policy took to answer."""
    replica: str | None = None
    """The server that answered, where the policy has several."""
    weight_version: str | None = None
    """The weights that it answered with, where that is known."""
    attempts: int = 1
    """Requests it took to get the answer."""
    env_s: float = 0.0
    """Seconds the env took for the turn."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the whole prompt the policy saw, shape `(P,)`."""
    completion_ids: tuple[int, ...] | None = None
    """Token ids the policy sampled, shape `(C,)`."""
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities of the sampled ids under the sampling distribution, shape `(C,)`."""

    @property
    def malformed(self) -> int:
        """Calls that were not as they should be, text that matches no action included.

        One that had to be repaired counts although it ran, and one that was cut off never does.
        """
        return sum(call.malformed for call in self.calls) + self.malformed_text


class Episode(Record):
    """One finished attempt at one task: all that a judge may look at."""

    env_id: str
    task: Task
    tools: tuple[ToolSpec, ...] = ()
    messages: Messages
    """The whole conversation, opening messages included."""
    turns: tuple[Turn, ...] = ()
    terminated: bool
    truncated: bool
    termination_reason: str | None = None
    """How it ended by itself: `finished` (a tool ended it), `answered`, `user_done`, …"""
    truncation_reason: TruncationReason | None = None
    """Which limit cut it."""
    answer: str | None = None
    """The final answer, in envs where text ends the episode."""
    outcome: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The env's final state, for the judge; computed by the env, out of the policy's reach."""
    failure_class: FailureClass | None = None
    """Set when the episode can't be judged, because something other than the policy broke."""
    error: str | None = None
    """What broke."""
    spent: dict[str, Usage] = Field(default_factory=dict, repr=False)
    """What the env's own model calls cost (a simulator's), by role."""

    @model_validator(mode="after")
    def _has_one_reason(self) -> Episode:
        if self.terminated == self.truncated:
            raise ValueError("an episode ends either terminated or truncated")
        if (self.termination_reason is None) == self.terminated:
            raise ValueError("termination_reason goes with terminated, and only with it")
        if (self.truncation_reason is None) == self.truncated:
            raise ValueError("truncation_reason goes with truncated, and only with it")
        return self

    @property
    def malformed_calls(self) -> int:
        """Unreadable calls and unreadable text actions, over all turns."""
        return sum(turn.malformed for turn in self.turns)

    @property
    def cut_off_calls(self) -> int:
        """Messages or calls ended by the output limit; counted apart from malformed ones."""
        return sum(t.cut_off for t in self.turns)

    @property
    def usage(self) -> Usage:
        """The policy's tokens, summed over the turns."""
        return sum((t.usage for t in self.turns if t.usage), Usage(calls=0))


class Verdict(Record):
    """What an episode was worth, and why.

    `reward` is None exactly when the episode is masked: unscored is not zero.
    """

    components: dict[str, Finite] = Field(default_factory=dict)
    """Named numbers behind the reward, each on its own."""
    gates: dict[str, bool] = Field(default_factory=dict)
    """Gate name to whether it tripped."""
    gate_counts: dict[str, int] = Field(default_factory=dict)
    """Gate name to how often its condition was met; the penalty is taken once all the same."""
    completed: bool = False
    """Whether a final answer (or purchase, …) came. Not the same as correct."""
    correct: bool | None = None
    """Whether the task was solved; None where nobody can tell."""
    failure_class: FailureClass | None = None
    """Who is to blame when the episode failed."""
    judge_failed: bool = False
    """Whether the judge could not score the episode."""
    masked: bool = False
    """Whether the episode carries no training signal and no vote in its group."""
    reward: Finite | None
    """The scalar for the trainer; None when masked."""
    reason: str | None = None
    """Why it is masked, or what the judge remarked."""
    spent: dict[str, Usage] = Field(default_factory=dict, repr=False)
    """What judging cost by role, failed calls included."""

    @model_validator(mode="after")
    def _unscored_is_masked(self) -> Verdict:
        if (self.reward is None) != self.masked:
            raise ValueError(
                "reward is None exactly when masked is True; "
                f"got reward={self.reward}, masked={self.masked}"
            )
        return self


def clean_text(text: str) -> str:
    """Make a string safe to encode: join surrogate pairs, replace lone surrogates.

    Lenient JSON readers and files with stray bytes leave surrogates in Python strings; they fail
    much later, when a request or a trace line is encoded.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def printable(text: str) -> str:
    """Text with its control characters escaped, line breaks too: a task may be called anything."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


MAX_NESTING = 100
"""Levels of lists and objects that arguments may have; readers of JSON give up at about 200."""


_PLAIN = frozenset({str, int, float, bool, type(None)})
"""What most values of JSON are; to ask for these first is what makes the walks quick."""


def nests_too_deep(value: Any, levels: int = MAX_NESTING) -> bool:
    """Whether a JSON-like value has more than `levels` levels of lists and objects."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is dict or isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return levels == 0 or any(nests_too_deep(item, levels - 1) for item in value)


def clean_json(value: Any) -> Any:
    """Apply `clean_text` to every string of a JSON-like value, keys included."""
    kind = type(value)
    if kind is str or isinstance(value, str):
        return clean_text(value)
    if kind in _PLAIN:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {clean_text(str(k)): clean_json(v) for k, v in value.items()}
    if kind is list or isinstance(value, list | tuple):
        return [clean_json(v) for v in value]
    return value
