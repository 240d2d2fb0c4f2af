"""What is known of a run, step by step: the numbers that were logged, and the evaluations.

One history serves the run while it goes and its files afterwards; the monitors see no difference.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from agentgym.train.monitors.evidence import Interval, mean_of, share_of
from agentgym.train.monitors.scores import HeldOutScore
from agentgym.types import Finite, Record

OURS = "agentgym/"
"""What the names of our own metrics begin with, beside TRL's."""

RIGHT = 0.9
"""Success rate from which there is nothing left to learn."""

_LARGEST = 3.4e38
"""Values beyond are no finite number in a trainer's float32, and their squares none in a float."""
_OPTIMISED = ("loss", "grad_norm")
"""What makes the weights what it is: NaN in either is NaN in them."""
_UNITS = 40
"""Groups that a share needs for its interval to get away from 0 and 1: with 40 that agree it ends
at 18 %."""


class Thresholds(Record):
    """How much evidence an alarm needs, and where it begins; table `[monitors]` of the config."""

    min_steps: int = Field(default=5, ge=2)
    """Steps before the first alarm. Fewer steps have wider intervals, so 2 only finds the worst."""
    window: int = Field(default=10, ge=2)
    """Steps that a share or mean is taken over, the last ones; up to 40 where a step has few
    groups."""
    trend: int = Field(default=25, ge=10)
    """Steps that a lack of progress must last: "25 to 50 training steps per decision"."""
    turn_cap: Finite = Field(default=0.10, ge=0, le=1)
    """Share of episodes that hit `max_turns` without a final answer."""
    token_limit: Finite = Field(default=0.05, ge=0, le=1)
    """Share of episodes with a message cut off by `max_turn_tokens`; also for the context."""
    no_signal: Finite = Field(default=0.5, ge=0, le=1)
    """Share of groups whose rewards are all equal."""
    malformed: Finite = Field(default=0.25, ge=0, le=1)
    """Share of episodes with an unreadable call, unless it is falling."""
    gate: Finite = Field(default=0.8, ge=0, le=1)
    """Share of episodes that one gate fails."""
    masked: Finite = Field(default=0.05, ge=0, le=1)
    """Share of episodes without a score."""
    plateau: Finite = Field(default=0.9, ge=0, le=1)
    """Part of the reward's range below which a standstill is a plateau and not a success."""
    logprob_gap: Finite = Field(default=0.05, ge=0)
    """Mean difference of sampler's and trainer's log-probabilities, nats per token."""
    importance: Finite = Field(default=0.1, ge=0)
    """Distance of the mean importance-sampling ratio from 1."""
    lag: Finite = Field(default=4.0, ge=0)
    """Mean age of the weights that turns were sampled with, training steps."""

    @model_validator(mode="after")
    def _window_holds_enough(self) -> Thresholds:
        if self.window < self.min_steps:
            raise ValueError(f"window={self.window} is less than min_steps={self.min_steps}")
        return self


class Step(NamedTuple):
    """The numbers of one training step."""

    step: int
    """Training steps done with it."""
    values: Mapping[str, float]


class RunHistory:
    """The steps of a run up to now, oldest first.

    Args:
        thresholds: Where alarms begin.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self.steps: list[Step] = []
        self.evaluations: list[HeldOutScore] = []
        self._columns: dict[str, list[float]] = defaultdict(list)

    def add(self, step: int, logged: Mapping[str, Any]) -> None:
        """Take a step's metrics as they are logged; what is no finite number is left out.

        Of the loss and the gradient it is kept whether they were one: `nonfinite/loss` and
        `nonfinite/grad_norm` are 1 where not. A file of metrics has `null` for such a value.

        A step that comes again, after a resume, takes the place of the earlier one and of all that
        followed it.
        """
        values = {
            sys.intern(name): float(value)  # the same names come with every step
            for name, value in logged.items()
            if isinstance(value, int | float) and abs(value) <= _LARGEST
        }
        for name in _OPTIMISED:
            if name in logged:
                values[f"nonfinite/{name}"] = float(name not in values)
        if self.steps and self.steps[-1].step >= step:
            while self.steps and self.steps[-1].step >= step:
                self.steps.pop()
            self._columns.clear()
            for earlier in self.steps:
                self._enter(earlier)
        self.steps.append(Step(step, values))
        self._enter(self.steps[-1])

    def _enter(self, step: Step) -> None:
        for full, value in step.values.items():
            name = full.removeprefix(OURS)
            if name == full and OURS + name in step.values:
                continue  # both have it, and ours counts
            self._columns[name].append(value)

    def add_evaluation(self, score: HeldOutScore) -> None:
        """Take a held-out evaluation, instead of an earlier one of the same step or a later."""
        while self.evaluations and self.evaluations[-1].step >= score.step:
            self.evaluations.pop()
        self.evaluations.append(score)

    @property
    def now(self) -> int:
        """Training steps done."""
        return self.steps[-1].step if self.steps else 0

    @property
    def span(self) -> int:
        """Steps that shares are taken over: the window, and more where a step has few groups.

        A share of one group per step has seen ten things in ten steps, which proves nothing.
        """
        return max(self.thresholds.window, min(_UNITS, math.ceil(_UNITS / self._groups)))

    @property
    def _groups(self) -> float:
        """Independent things in a step: its groups, of two scored episodes or more."""
        return max(1.0, mean(self.last("groups")) or 1.0)

    def of(self, name: str) -> Sequence[float]:
        """All values of a metric, one per step that has it; ours without their prefix."""
        return self._columns.get(name, [])

    def steps_with(self, name: str) -> list[int]:
        """The numbers of the steps that have a metric."""
        return [step.step for step in self.steps if value_of(step.values, name) is not None]

    def last(self, name: str, count: int | None = None) -> list[float]:
        """Values of a metric in the last steps, the window by default.

        A metric that has ended counts as gone: steps without it take up their place.
        """
        recent = self.steps[-(count or self.thresholds.window) :]
        return [value for step in recent if (value := value_of(step.values, name)) is not None]

    def first(self, name: str) -> Sequence[float]:
        """Values of a metric in the first steps, as many as an alarm needs."""
        return self.of(name)[: self.thresholds.min_steps]

    def share(self, *names: str) -> Interval | None:
        """A share of episodes over the span; None before there are enough steps.

        Of several metrics it is their sum, of parts that no episode has two of.
        """
        values = [
            math.fsum(parts)
            for step in self.steps[-self.span :]
            if (parts := [v for name in names if (v := value_of(step.values, name)) is not None])
        ]
        if len(values) < self.thresholds.min_steps:
            return None
        return share_of(values, units=self._groups)

    def mean(self, name: str) -> Interval | None:
        """A mean over the window; None before there are enough steps."""
        values = self.last(name)
        return mean_of(values) if len(values) >= self.thresholds.min_steps else None

    def recent(self, name: str) -> float | None:
        """The plain mean of a metric over the span, to be named beside a share."""
        return mean(self.last(name, self.span))

    def names(self, prefix: str) -> list[str]:
        """Names of our metrics that begin so, without the prefix, in the span."""
        full = OURS + prefix
        recent = self.steps[-self.span :]
        found = {name for step in recent for name in step.values if name.startswith(full)}
        return sorted(name.removeprefix(full) for name in found)

    @property
    def has_learned(self) -> bool:
        """Whether nearly all is solved by now, and clearly less was at the start.

        Groups that are all equal are then no fault.
        """
        before, now = mean(self.first("correct")), self.recent("correct")
        return before is not None and now is not None and before < RIGHT < now

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """What there is to earn: from 0 to the best reward of any episode so far.

        Penalties reach below 0, and getting rid of them is not yet earning anything. Where nothing
        was earned so far it is the range of what was; None if that is a single value.
        """
        lows = self.of("reward/min") or self.of("reward")
        highs = self.of("reward/max") or self.of("reward")
        if not lows or not highs or max(highs) <= min(lows):
            return None
        low, high = min(lows), max(highs)
        return (max(low, 0.0) if high > 0 else low), high


def mean(values: Sequence[float]) -> float | None:
    """The plain mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def value_of(values: Mapping[str, float], name: str) -> float | None:
    """A step's value of a metric; ours goes before TRL's of the same name."""
    return values.get(OURS + name, values.get(name))
