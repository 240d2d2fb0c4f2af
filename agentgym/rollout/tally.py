"""What has happened so far, counted as it happens.

Counting is all that observation costs while nobody asks: two additions per turn, and per episode a
dozen.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.metering import add_by_role
from agentgym.rollout.status import EpisodeCounts, Histogram, LoopLag, Rates
from agentgym.trace import Trace
from agentgym.types import Usage

WINDOW_S = 60.0
"""What "recently" means in rates, occupancy and loop lag, seconds."""

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_TURNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)


class Buckets:
    """Counts values by size.

    Args:
        bounds: Upper ends, rising.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    @property
    def mean(self) -> float | None:
        """Their mean; None if there are none."""
        return self._total / self.count if self.count else None

    def histogram(self) -> Histogram:
        """The counts so far."""
        return Histogram(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


class Tally:
    """All that has happened, in a run or in all of them; nothing is ever taken back."""

    def __init__(self) -> None:
        self.requested: int | None = 0
        self.turns = 0
        self.tokens = 0
        self.finished = 0
        self.usage: dict[str, Usage] = {}
        self.dropped = 0
        self.dropped_usage: dict[str, Usage] = {}
        self._scored = 0
        self._reward_sum = 0.0
        self._reruns = 0
        self._masked: Counter[str] = Counter()
        self._truncated: Counter[str] = Counter()
        self._histograms = {"episode_s": Buckets(_SECONDS), "turns": Buckets(_TURNS)} | {
            f"{stage}_s": Buckets(_SECONDS) for stage in ("init", "run", "eval")
        }

    def begin(self, total: int | None) -> None:
        """A run starts, of so many episodes if that is known."""
        known = None in (total, self.requested)
        self.requested = None if known else (self.requested or 0) + (total or 0)

    def turn(self, tokens: int) -> None:
        """The policy has answered."""
        self.turns += 1
        self.tokens += tokens

    def finish(self, trace: Trace) -> None:
        """An episode is over."""
        self.finished += 1
        self._reruns += len(trace.earlier)
        if trace.reward is None:
            self._masked[trace.failure_class or "unknown"] += 1
        else:
            self._scored += 1
            self._reward_sum += trace.reward
            if trace.truncation_reason is not None:
                self._truncated[trace.truncation_reason] += 1
        add_by_role(self.usage, trace.usage)
        self._histograms["episode_s"].add(math.fsum(trace.stage_s.values()))
        self._histograms["turns"].add(len(trace.turns))
        for stage, seconds in trace.stage_s.items():
            if (buckets := self._histograms.get(f"{stage}_s")) is not None:
                buckets.add(seconds)

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """An episode was cancelled; this is what it had cost."""
        self.dropped += 1
        add_by_role(self.dropped_usage, usage)

    def episodes(self) -> EpisodeCounts:
        """The episodes so far."""
        return EpisodeCounts(
            requested=self.requested,
            finished=self.finished,
            scored=self._scored,
            masked=dict(self._masked),
            truncated=dict(self._truncated),
            reruns=self._reruns,
            dropped=self.dropped,
            mean_reward=self._reward_sum / self._scored if self._scored else None,
        )

    def stage(self, name: str) -> Buckets:
        """Seconds that finished episodes were in a stage."""
        return self._histograms[f"{name}_s"]

    def histograms(self) -> dict[str, Histogram]:
        """The distributions over finished episodes."""
        return {name: buckets.histogram() for name, buckets in self._histograms.items()}


@dataclass(frozen=True)
class Sample:
    """The counters at one time, from whose differences rates follow."""

    at_s: float
    tokens: int
    turns: int
    finished: int
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """Slot-seconds used, by stage."""
    slots_id: str | None = None
    """Of which slots."""


class Window:
    """The last minute: rates, and how full the stages were."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Keep a sample; those that are too old go."""
        self._samples.append(sample)
        while self._samples[0].at_s < sample.at_s - WINDOW_S:
            self._samples.popleft()

    def _recent(self, now: Sample) -> Iterator[Sample]:
        """The samples within the window since which time has passed, the oldest first."""
        return (s for s in tuple(self._samples) if now.at_s - WINDOW_S <= s.at_s < now.at_s)

    def rates(self, now: Sample) -> Rates:
        """How fast it has gone.

        Args:
            now: The counters as they stand.
        """
        first = next(self._recent(now), None)
        if first is None:
            return Rates()
        seconds = now.at_s - first.at_s
        return Rates(
            window_s=seconds,
            tokens_per_s=(now.tokens - first.tokens) / seconds,
            turns_per_s=(now.turns - first.turns) / seconds,
            episodes_per_s=(now.finished - first.finished) / seconds,
        )

    def occupancy(self, stage: str, slots: int, now: Sample) -> float | None:
        """Share of a stage's slot-seconds that were used; None if that can't be told."""
        of_these = (s for s in self._recent(now) if s.slots_id == now.slots_id)
        first = next(of_these, None)
        if first is None or stage not in first.busy_s or stage not in now.busy_s:
            return None
        used = (now.busy_s[stage] - first.busy_s[stage]) / (slots * (now.at_s - first.at_s))
        return min(1.0, max(0.0, used))


class LagSamples:
    """How late the loop was, of late."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, lag_s: float) -> None:
        """Keep a measurement; those that are too old go."""
        self._samples.append((at_s, lag_s))
        while self._samples[0][0] < at_s - WINDOW_S:
            self._samples.popleft()

    def lag(self, *, overdue_s: float = 0.0) -> LoopLag | None:
        """The figures of the last minute.

        Args:
            overdue_s: How late what is due just now already is.
        """
        lags = sorted(
            [*(lag_s for _, lag_s in tuple(self._samples)), *([overdue_s] * (overdue_s > 0))]
        )
        if not lags:
            return None
        return LoopLag(p50_s=_quantile(lags, 0.5), p99_s=_quantile(lags, 0.99), max_s=lags[-1])


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them doesn't exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
