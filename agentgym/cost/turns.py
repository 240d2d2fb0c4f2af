"""How many turns an episode takes: a distribution, because its mean is not enough.

Every turn's prompt repeats all turns before it, so an episode's prompt tokens grow with T², and the
mean over episodes with E[T²] = E[T]² + Var[T]. Two runs of five turns on average, one of which is
always five and the other anything up to twenty, are not the same bill.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from agentgym.errors import ConfigError
from agentgym.trace import Trace
from agentgym.types import Finite, Record

Outcomes: TypeAlias = Mapping[float, float]
"""Number of turns to its probability; the probabilities sum to 1."""

MAX_TURNS = 10_000
"""The longest episode that is planned for, turn by turn."""
_MAX_RATIO = 1e6
"""Of a mean and its deviation, either way; beyond it there are no numbers."""


class ConstantTurns(Record):
    """Every episode takes the same number of turns."""

    kind: Literal["constant"] = "constant"
    turns: Finite = Field(ge=1)

    @property
    def outcomes(self) -> Outcomes:
        """Number of turns to probability."""
        return {self.turns: 1.0}

    def scaled(self, factor: float) -> ConstantTurns:
        """The same with so many times the turns, at least one."""
        return ConstantTurns(turns=max(1.0, self.turns * factor))

    @property
    def size(self) -> float:
        """What `scaled` scales: the mean."""
        return self.turns


class HistogramTurns(Record):
    """As often as counted: from traces, or from another run's report."""

    kind: Literal["histogram"] = "histogram"
    counts: dict[Annotated[Finite, Field(ge=1)], Annotated[Finite, Field(ge=0, le=1e15)]]
    """Number of turns to how many episodes took them; only the proportions matter."""

    @model_validator(mode="after")
    def _has_episodes(self) -> HistogramTurns:
        if not sum(self.counts.values()):
            raise ValueError("counts must have at least one episode")
        return self

    @property
    def outcomes(self) -> Outcomes:
        """Number of turns to probability."""
        total = math.fsum(self.counts.values())
        return {turns: count / total for turns, count in sorted(self.counts.items()) if count}

    def scaled(self, factor: float) -> HistogramTurns:
        """The same with so many times the turns, at least one."""
        counts: dict[float, float] = {}
        for turns, count in self.counts.items():
            moved = max(1.0, turns * factor)
            counts[moved] = counts.get(moved, 0.0) + count
        return HistogramTurns(counts=counts)

    @property
    def size(self) -> float:
        """What `scaled` scales: the mean."""
        return expected(self.outcomes, lambda turns: turns)


class GeometricTurns(Record):
    """Ends after each turn with the same probability, up to a cap."""

    kind: Literal["geometric"] = "geometric"
    mean: Finite = Field(ge=1)
    """Mean turns without the cap; with it, the mean is lower."""
    max_turns: int = Field(ge=1, le=MAX_TURNS)
    """The cap, where all that would go on longer end."""

    @property
    def outcomes(self) -> Outcomes:
        """Number of turns to probability."""
        on = 1 - 1 / self.mean
        return _capped(lambda turns: 1 - on**turns, self.max_turns)

    def scaled(self, factor: float) -> GeometricTurns:
        """The same with so many times the mean, at least one; the cap stays."""
        return self.model_copy(update={"mean": max(1.0, self.mean * factor)})

    @property
    def size(self) -> float:
        """What `scaled` scales: the mean without the cap."""
        return self.mean


class LogNormalTurns(Record):
    """Most are short and a few are long, up to a cap."""

    kind: Literal["lognormal"] = "lognormal"
    mean: Finite = Field(gt=0)
    """Mean turns before rounding and without the cap."""
    sd: Finite = Field(gt=0)
    """Standard deviation of the same."""
    max_turns: int = Field(ge=1, le=MAX_TURNS)
    """The cap, where all that would go on longer end."""

    @model_validator(mode="after")
    def _can_be_computed(self) -> LogNormalTurns:
        if not 1 / _MAX_RATIO <= self.sd / self.mean <= _MAX_RATIO:
            raise ValueError(f"mean and sd must be within a factor of {_MAX_RATIO:,.0f}")
        return self

    @property
    def outcomes(self) -> Outcomes:
        """Number of turns, rounded and at least 1, to probability."""
        variance = math.log1p((self.sd / self.mean) ** 2)
        logs = NormalDist(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return _capped(lambda turns: logs.cdf(math.log(turns + 0.5)), self.max_turns)

    def scaled(self, factor: float) -> LogNormalTurns:
        """The same with so many times the mean and the deviation; the cap stays."""
        return self.model_copy(update={"mean": self.mean * factor, "sd": self.sd * factor})

    @property
    def size(self) -> float:
        """What `scaled` scales: the mean without the cap."""
        return self.mean


def _whole_numbers(value: Any) -> Any:
    """`turns = 5` is short for a constant; and what comes from outside are whole numbers.

    Somebody who writes 5.5 means a mean, and a mean alone is what plans go wrong by.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"kind": "constant", "turns": value}
    if not isinstance(value, Mapping):
        return value
    if value.get("kind") == "constant":
        _check_whole(value.get("turns"))
    counts = value.get("counts")
    if value.get("kind") == "histogram" and isinstance(counts, Mapping):
        for turns, times in Counter(map(_number, counts)).items():
            _check_whole(turns)
            if times > 1:
                raise ValueError(f"counts has {turns:g} turns twice; add the two up")
    return value


def _number(key: Any) -> Any:
    """A key as the number that it is; as it stands where pydantic will complain about it."""
    try:
        return float(key)
    except (TypeError, ValueError, OverflowError):
        return key


def _check_whole(turns: Any) -> None:
    if not isinstance(turns, int | float):
        return
    if turns > MAX_TURNS:
        raise ValueError(f"at most {MAX_TURNS:,} turns can be planned for, got {turns:.6g}")
    if isinstance(turns, float) and math.isfinite(turns) and not turns.is_integer():
        raise ValueError(
            f"no episode takes {turns:g} turns; for a mean of so many give a distribution, "
            f'such as {{kind = "geometric", mean = {turns:g}, max_turns = …}}'
        )


Turns: TypeAlias = Annotated[
    Annotated[
        ConstantTurns | HistogramTurns | GeometricTurns | LogNormalTurns,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_whole_numbers),
]
"""A distribution of the number of turns; a number stands for a constant."""


def expected(outcomes: Outcomes, amount: Callable[[float], float]) -> float:
    """The mean of something that depends on the number of turns."""
    return math.fsum(chance * amount(turns) for turns, chance in outcomes.items())


def mean_and_sd(outcomes: Outcomes) -> tuple[float, float]:
    """Mean and standard deviation of the number of turns."""
    mean = expected(outcomes, lambda turns: turns)
    return mean, math.sqrt(max(0.0, expected(outcomes, lambda turns: (turns - mean) ** 2)))


def expected_longest(outcomes: Outcomes, episodes: int) -> float:
    """The mean of the most turns that any of so many independent episodes takes.

    From P(max ≤ t) = P(T ≤ t)^n. A training step waits for it.
    """
    longest, below, before = 0.0, 0.0, 0.0
    for turns, chance in sorted(outcomes.items()):
        below = min(1.0, below + chance)
        upto = below**episodes
        longest += turns * (upto - before)
        before = upto
    return longest / before if before else 0.0


def turns_of_traces(traces: Iterable[Trace]) -> HistogramTurns:
    """The turns that recorded episodes took; episodes that something broke are left out.

    Raises:
        ConfigError: If no episode is left.
    """
    counts: dict[float, float] = {}
    for trace in traces:
        if trace.failure_class in (None, "policy") and trace.turns:
            counts[len(trace.turns)] = counts.get(len(trace.turns), 0.0) + 1
    if not counts:
        raise ConfigError("the traces hold no played episode to take the number of turns from")
    return HistogramTurns(counts=counts)


def _capped(cumulative: Callable[[int], float], cap: int) -> Outcomes:
    upto = [0.0, *(cumulative(turns) for turns in range(1, cap)), 1.0]
    chances = {float(turns): upto[turns] - upto[turns - 1] for turns in range(1, cap + 1)}
    return {turns: chance for turns, chance in chances.items() if chance > 0}
