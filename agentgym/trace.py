"""The full record of one episode; on disk, one JSON line.

A trace stores facts (messages, per-turn tokens and times, the verdict) and derives the rest, so two
readers can't disagree about a figure. `schema_version` goes up whenever a reader of the old shape
would misread the new one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from agentgym.types import (
    FailureClass,
    Finite,
    Message,
    Record,
    ToolSpec,
    TruncationReason,
    Turn,
    Usage,
    Verdict,
    clean_text,
)

SCHEMA_VERSION: Literal[1] = 1

CUT_BY_BUDGET = "BudgetStop: "
"""How the error of an episode begins that the run's budget cut off."""

Stage: TypeAlias = Literal["init", "run", "eval", "done"]


class EarlierAttempt(Record):
    """An attempt at the episode that something other than the policy broke, before this one."""

    failure_class: FailureClass
    failed_stage: Stage
    error: str
    """Type, text and traceback of the failure."""
    usage: dict[str, Usage] = Field(default_factory=dict)
    """Tokens and dollars of this attempt per role; the trace's `usage` includes them."""
    lost_worker: bool = False
    """Whether it went down with the process that played it, as did all others in there."""


class Trace(Record):
    """One episode, from reset to verdict, as it is written to disk."""

    schema_version: Literal[1] = 1
    trace_id: str
    """Unique per attempt."""
    env_spec: str
    """Gymnasium's `EnvSpec` as JSON; `gym.make(EnvSpec.from_json(…))` gives the env back."""
    task_id: str | None = None
    """None if the env failed before it chose a task."""
    split: str | None = None
    seed: int | None = None
    """The episode's seed; task choice and sampling seeds derive from it."""
    group: str | None = None
    """Shared by the rollouts of one task that are compared with each other."""
    sample: int = 0
    """Which rollout of the task this is."""
    policy: dict[str, Any] = Field(default_factory=dict)
    """Model name and sampling parameters in effect."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Facts about the run: data set size and hash, package version."""
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    terminated: bool = False
    truncated: bool = False
    termination_reason: str | None = None
    truncation_reason: TruncationReason | None = None
    answer: str | None = None
    """The final answer, in envs where text ends the episode."""
    outcome: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The env's final state, without which a verifier could not judge the trace again."""
    verdict: Verdict
    failure_class: FailureClass | None = None
    """Set when the episode failed for a reason other than the policy."""
    failed_stage: Stage | None = None
    """The stage in which it failed."""
    error: str | None = None
    """Type, text and traceback of the failure."""
    started_at: str
    """UTC, ISO 8601."""
    stage_s: dict[str, Finite] = Field(default_factory=dict)
    """Seconds spent in each active stage; waiting in a queue is not counted."""
    usage: dict[str, Usage] = Field(default_factory=dict)
    """Tokens and dollars per role, whatever came of the calls: the policy's, the env's own model
    calls, and the judge's; those of earlier attempts included."""
    earlier: tuple[EarlierAttempt, ...] = ()
    """Attempts at this episode before this one, oldest first."""

    @property
    def reward(self) -> float | None:
        """The scalar reward; None when masked."""
        return self.verdict.reward

    @property
    def scored(self) -> bool:
        """Whether the episode counts in means and trains the policy."""
        return not self.verdict.masked

    @property
    def cut_by_budget(self) -> bool:
        """Whether the run's budget cut it off, so that a larger one has it played again."""
        return (self.error or "").startswith(CUT_BY_BUDGET)

    @property
    def malformed_calls(self) -> int:
        """Unreadable calls and unreadable text actions, over all turns."""
        return sum(turn.malformed for turn in self.turns)

    def to_json_line(self) -> str:
        """The trace as one line of strict JSON, line feed included.

        Never raises: text that can't be encoded is cleaned, what JSON has no form for becomes its
        `repr`, and NaN or an infinity becomes the string that reads back as that float.
        """
        try:
            line = self.model_dump_json()
        except ValueError:  # pydantic-core's: surrogates, foreign objects; the slow way takes all
            line = json.dumps(_plain(self), ensure_ascii=False, allow_nan=False)
        for separator in ("\u2028", "\u2029", "\x85"):  # they end a line for `str.splitlines`
            line = line.replace(separator, f"\\u{ord(separator):04x}")
        return line + "\n"


def _plain(value: Any) -> Any:
    """A value as `json.dumps` takes it; unlike pydantic's own dump, it refuses nothing."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        value = float(value)
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {key: _plain(getattr(value, key)) for key in fields if not fields[key].exclude}
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return clean_text(repr(value))
