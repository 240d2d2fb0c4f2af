"""One thing that was looked at before training, and how a share is held against a limit.

Each finding has the figures with their intervals, and says where its rule comes from; where no rule
has been published it says that, too, instead of making one up. A limit is passed when the whole
exact interval lies beyond it; an interval that holds the limit is `unclear`, with the number of
further tasks that would tell.

Rules marked AWS are of AWS SageMaker AI, "Best practices for multi-turn RL" (2 July 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

from pydantic import Field

from agentgym.evaluate.base_episodes import BaseEpisode
from agentgym.statistics.exact import exact_side
from agentgym.statistics.means import Estimate, share_estimate
from agentgym.types import Finite, Record

Status: TypeAlias = Literal["ok", "alarm", "unclear", "note", "not_measured"]

EPISODES = 100
"""Baseline episodes over which the reward must vary (AWS)."""
MOST = 0.5
MOST_MORE = 100_000
"""Tasks; a limit that needs more than that can't be told from the share."""


class Finding(Record):
    """One thing that was looked at."""

    name: str
    status: Status
    """`alarm`: evidence against training now. `unclear`: the interval holds the limit. `note`: for
    the reader, without a rule. `not_measured`: nothing given that shows it."""
    said: str
    """The figures, in a sentence."""
    rule: str
    """Where the limit comes from, or that none has been published."""
    change: str | None = None
    """The first thing to change, for an alarm."""
    numbers: dict[str, Finite] = Field(default_factory=dict)
    more_tasks: int | None = None
    """Further tasks, each played as often as these, that would make an unclear one clear."""

    @property
    def leans_to_alarm(self) -> bool:
        """Whether it is unclear, and what was seen is beyond the limit all the same."""
        limit = self.numbers.get("limit")
        return self.status == "unclear" and limit is not None and self.numbers["share"] >= limit


def scored_of(episodes: Sequence[BaseEpisode]) -> list[BaseEpisode]:
    """The episodes that count."""
    return [episode for episode in episodes if episode.scored]


def judged_of(episodes: Sequence[BaseEpisode]) -> list[BaseEpisode]:
    """The episodes of which it is known whether they solved their task."""
    return [e for e in episodes if e.scored and e.correct is not None]


def percent(seen: Estimate) -> str:
    """A share with its interval."""
    return f"{seen.mean:.1%} ({seen.low:.1%} to {seen.high:.1%})"


def share_of(episodes: Sequence[BaseEpisode], hit: Callable[[BaseEpisode], bool]) -> Estimate:
    """How many of the episodes something is true of, clustered by task."""
    return share_estimate([hit(e) for e in episodes], [e.task_id for e in episodes])


def numbers_of(seen: Estimate) -> dict[str, float]:
    """An estimate for `Finding.numbers`."""
    return {"share": seen.mean, "low": seen.low, "high": seen.high, "n": float(seen.n)}


def held_against(seen: Estimate, limit: float) -> Status:
    """What a share, with an exact interval, says of a limit from above."""
    return "alarm" if seen.low >= limit else "ok" if seen.high < limit else "unclear"


def limit_finding(
    name: str,
    scored: Sequence[BaseEpisode],
    hit: Callable[[BaseEpisode], bool],
    limit: float,
    *,
    what: str,
    rule: str,
    change: str,
) -> Finding:
    """A share of episodes against a limit."""
    seen = share_estimate([hit(e) for e in scored], [e.task_id for e in scored], exact=True)
    status = held_against(seen, limit)
    return Finding(
        name=name,
        status=status,
        said=f"{percent(seen)} of episodes {what}",
        rule=rule,
        change=change if status == "alarm" else None,
        numbers={**numbers_of(seen), "limit": limit},
        more_tasks=tasks_to_leave(seen, limit) if status == "unclear" else None,
    )


def tasks_to_leave(seen: Estimate, limit: float) -> int | None:
    """Further tasks after which the exact interval of the same share leaves the limit out."""
    p = seen.mean
    effective = p * (1 - p) / seen.stderr**2 if 0 < seen.stderr < math.inf else seen.n_clusters
    for tasks in _growing(seen.n_clusters):
        n = effective * tasks / seen.n_clusters
        if exact_side(p * n, n, limit):
            return tasks - seen.n_clusters
    return None


def counted(number: int, what: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def tasks_for(episodes: int, played: Sequence[BaseEpisode]) -> int:
    """Further tasks that give so many episodes, each played as often as those before."""
    per_task = len(played) / len({e.task_id for e in played}) if played else 1.0
    return max(1, math.ceil(episodes / per_task))


def _growing(tasks: int) -> Iterator[int]:
    """Numbers of tasks to try, each 5 % more than the one before."""
    while tasks < MOST_MORE:
        tasks = max(tasks + 1, math.ceil(tasks * 1.05))
        yield tasks
