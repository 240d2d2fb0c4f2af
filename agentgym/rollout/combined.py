"""Several engines' statuses as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from agentgym.metering import sum_by_role
from agentgym.rollout.status import (
    EngineStatus,
    EpisodeCounts,
    Histogram,
    LoopLag,
    Rates,
    StageStatus,
    Waiters,
)


def combined(statuses: Sequence[EngineStatus]) -> EngineStatus:
    """What the engines do together.

    What they have counted is added up, what they wait for too; slots that several engines share
    count once, and of how late the loops are the worst is told.

    Args:
        statuses: At least one.
    """
    last = {status.slots_id or id(status): status for status in statuses}.values()
    lags = [status.loop_lag for status in statuses if status.loop_lag is not None]
    replicas = {str(r.get("name", r)): r for status in statuses for r in status.replicas}
    aged = (episode for status in statuses for episode in status.oldest)
    return EngineStatus(
        runs=sum(status.runs for status in statuses),
        elapsed_s=sum(status.elapsed_s for status in statuses),
        episodes=_episodes([status.episodes for status in statuses]),
        in_flight=sum(status.in_flight for status in statuses),
        waiting=_waiting([group for status in statuses for group in status.waiting]),
        oldest=tuple(sorted(aged, key=lambda each: -each.age_s)[:5]),
        stages=_stages([stage for status in last for stage in status.stages]),
        admission=next((s.admission for s in statuses), None) if len(last) == 1 else None,
        slots_id=next(iter(last)).slots_id if len(last) == 1 else None,
        turns=sum(status.turns for status in statuses),
        tokens=sum(status.tokens for status in statuses),
        rates=_rates([status.rates for status in statuses]),
        usage=sum_by_role(*(status.usage for status in statuses)),
        dropped_usage=sum_by_role(*(status.dropped_usage for status in statuses)),
        loop_lag=_worst(lags),
        replicas=tuple(replicas.values()),
        abandoned_threads=max(status.abandoned_threads for status in statuses),
        histograms=_histograms(statuses),
    )


def history_of(status: EngineStatus) -> EngineStatus:
    """What an engine has counted, without what it does at the moment."""
    return EngineStatus(
        runs=0,
        elapsed_s=status.elapsed_s,
        episodes=status.episodes,
        in_flight=0,
        turns=status.turns,
        tokens=status.tokens,
        usage=status.usage,
        dropped_usage=status.dropped_usage,
        histograms=status.histograms,
    )


def _episodes(counts: Sequence[EpisodeCounts]) -> EpisodeCounts:
    requested = [each.requested for each in counts]
    scored = sum(each.scored for each in counts)
    rewards = sum((each.mean_reward or 0.0) * each.scored for each in counts)
    return EpisodeCounts(
        requested=None if None in requested else sum(n or 0 for n in requested),
        finished=sum(each.finished for each in counts),
        scored=scored,
        masked=_added(each.masked for each in counts),
        truncated=_added(each.truncated for each in counts),
        reruns=sum(each.reruns for each in counts),
        dropped=sum(each.dropped for each in counts),
        mean_reward=rewards / scored if scored else None,
    )


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _waiting(groups: Sequence[Waiters]) -> tuple[Waiters, ...]:
    def what(group: Waiters) -> tuple[str, str]:
        return group.stage, group.waiting

    merged = []
    for _, same in groupby(sorted(groups, key=what), key=what):
        members = list(same)
        worst = max(members, key=lambda group: group.longest.waited_s)
        episodes = sum(group.episodes for group in members)
        merged.append(worst.model_copy(update={"episodes": episodes}))
    return tuple(sorted(merged, key=lambda group: -group.episodes))


def _stages(stages: Sequence[StageStatus]) -> tuple[StageStatus, ...]:
    """Stages of different slots, added up by name."""
    names = dict.fromkeys(stage.name for stage in stages)
    return tuple(_stage([s for s in stages if s.name == name]) for name in names)


def _stage(parts: Sequence[StageStatus]) -> StageStatus:
    if len(parts) == 1:
        return parts[0]
    slots, left = sum(s.slots for s in parts), sum(s.entered - s.active for s in parts)
    held_s = sum((s.mean_s or 0.0) * (s.entered - s.active) for s in parts)
    known = [s for s in parts if s.occupancy is not None]
    used = sum((s.occupancy or 0.0) * s.slots for s in known)
    return StageStatus(
        name=parts[0].name,
        slots=slots,
        active=sum(s.active for s in parts),
        waiting=sum(s.waiting for s in parts),
        entered=sum(s.entered for s in parts),
        mean_s=held_s / left if left else None,
        occupancy=used / sum(s.slots for s in known) if known else None,
    )


def _rates(rates: Sequence[Rates]) -> Rates:
    return Rates(
        window_s=max(each.window_s for each in rates),
        tokens_per_s=sum(each.tokens_per_s for each in rates),
        turns_per_s=sum(each.turns_per_s for each in rates),
        episodes_per_s=sum(each.episodes_per_s for each in rates),
    )


def _worst(lags: Sequence[LoopLag]) -> LoopLag | None:
    if not lags:
        return None
    return LoopLag(
        p50_s=max(lag.p50_s for lag in lags),
        p99_s=max(lag.p99_s for lag in lags),
        max_s=max(lag.max_s for lag in lags),
    )


def _histograms(statuses: Sequence[EngineStatus]) -> dict[str, Histogram]:
    total: dict[str, Histogram] = {}
    for status in statuses:
        for name, found in status.histograms.items():
            known = total.get(name)
            total[name] = found if known is None else _plus(known, found)
    return total


def _plus(a: Histogram, b: Histogram) -> Histogram:
    counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
    return Histogram(bounds=a.bounds, counts=counts, total=a.total + b.total)
