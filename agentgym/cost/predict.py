"""What further episodes will take, from a handful of them, with an interval.

What a prediction is off by is the luck of the sample, and that is told: from how much the bills of
its episodes differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import field_serializer

from agentgym.cost.sample import Episode, Sample, tokens_of
from agentgym.errors import ConfigError
from agentgym.statistics.distributions import t_quantile
from agentgym.statistics.means import clustered_stderr
from agentgym.types import Finite, Record, Usage


class Prediction(Record):
    """What a role is expected to take over a number of episodes, with its 95 % interval."""

    role: str
    unit: str
    """`usd`, or `tokens` where the role has no price."""
    episodes: int
    mean: Finite
    low: Finite
    high: float
    """Infinite where the sample has one task only: nothing is known of the spread. `null` in JSON,
    which has no such number."""

    @field_serializer("high", when_used="json")
    def _in_json(self, high: float) -> float | None:
        return high if math.isfinite(high) else None

    def off_by(self, actual: float) -> float | None:
        """How far the mean is from what it turned out to be, as a share of that."""
        return (self.mean - actual) / actual if actual else None


def predict(sample: Sample, episodes: int) -> list[Prediction]:
    """What further episodes like these will take, per role and, where all have prices, in all.

    The interval is that of a sum of new draws from tasks like the sample's: it has the error of the
    sample's mean and the luck of the new episodes, with Student's t and as many degrees of freedom
    as there are tasks, less one. What repeated attempts cost is spread over the episodes.
    """
    measured = [one for one in sample.episodes if one.usage]
    if not measured:
        raise ConfigError(
            "no episode got to a turn at the first attempt, so nothing can be predicted"
        )
    roles = [r for r in dict.fromkeys(r for one in measured for r in one.usage) if _used(sample, r)]
    known = all(_dollars(sample, role) is not None for role in roles)
    found = [_predicted(sample, measured, (role,), episodes) for role in roles]
    if known and len(roles) > 1:
        found.append(_predicted(sample, measured, tuple(roles), episodes))
    return found


def _predicted(
    sample: Sample, measured: Sequence[Episode], roles: tuple[str, ...], episodes: int
) -> Prediction:
    in_usd = all(_dollars(sample, role) is not None for role in roles)
    values = [
        math.fsum(_amount(one.usage[role], in_usd) for role in roles if role in one.usage)
        for one in measured
    ]
    others = [sample.others[role] for role in roles if role in sample.others]
    wasted = math.fsum(one.priced_usd if in_usd else one.tokens for one in others)
    # Broken episodes took only what is in `wasted`; those whose bill is in there, too.
    share = len(measured) / sample.counted
    mean = math.fsum(values) / len(values)
    per_episode = share * mean + wasted / sample.counted
    tasks = [one.task for one in measured]
    stderr, freedom = clustered_stderr(values, tasks), len(set(tasks)) - 1
    half = math.inf
    if stderr is not None:
        variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
        luck = episodes**2 * stderr**2 + episodes * variance
        half = t_quantile(freedom, 0.05) * share * math.sqrt(luck)
    total = episodes * per_episode
    return Prediction(
        role=roles[0] if len(roles) == 1 else "all",
        unit="usd" if in_usd else "tokens",
        episodes=episodes,
        mean=total,
        low=max(0.0, total - half),
        high=total + half,
    )


def _dollars(sample: Sample, role: str) -> float | None:
    """What a role has cost in the sample; None where nobody knows."""
    usages = [one.usage[role] for one in sample.episodes if role in one.usage]
    other = sample.others.get(role)
    spent = sum(usages, Usage(calls=0)).cost_usd
    if spent is None and any(not used.is_nothing for used in usages):
        return None
    if other is not None and other.usd is None:
        return None
    return (spent or 0.0) + (other.priced_usd if other else 0.0)


def _used(sample: Sample, role: str) -> bool:
    return any(not one.usage[role].is_nothing for one in sample.episodes if role in one.usage)


def _amount(usage: Usage, in_usd: bool) -> float:
    return (usage.cost_usd or 0.0) if in_usd else tokens_of(usage)
