"""Which metrics there are: name, what it means, and where its values come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from agentgym.rollout.status import EngineStatus

if TYPE_CHECKING:
    from prometheus_client import Metric

Value: TypeAlias = tuple[tuple[str, ...], float]
"""The values of a metric's own labels, and the number."""


@dataclass(frozen=True)
class Family:
    """One counter or gauge.

    A counter's name stands without the `_total` that the exposition adds.
    """

    name: str
    help: str
    values: Callable[[EngineStatus], Iterable[Value]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[EngineStatus], float]) -> Callable[[EngineStatus], Iterable[Value]]:
    return lambda status: [((), value(status))]


def _per_role(field: str, *, of: str = "usage") -> Callable[[EngineStatus], Iterable[Value]]:
    return lambda status: [
        ((role,), float(value))
        for role, usage in getattr(status, of).items()
        if (value := getattr(usage, field)) is not None
    ]


def _per_stage(field: str) -> Callable[[EngineStatus], Iterable[Value]]:
    return lambda status: [
        ((stage.name,), float(value))
        for stage in status.stages
        if (value := getattr(stage, field)) is not None
    ]


def _per_replica(field: str) -> Callable[[EngineStatus], Iterable[Value]]:
    """A field of `agentgym.clients.ReplicaStatus`."""
    return lambda status: [
        ((str(replica["name"]),), float(replica[field]))
        for replica in status.replicas
        if replica.get(field) is not None
    ]


def _finished(status: EngineStatus) -> Iterator[Value]:
    yield ("none",), status.episodes.scored
    for failure_class, count in status.episodes.masked.items():
        yield (failure_class,), count


def _waiting(
    of: Callable[[EngineStatus], Mapping[tuple[str, str], float]],
) -> Callable[[EngineStatus], Iterable[Value]]:
    """Per stage and wait; the usual ones also while nobody waits, so that a graph falls to 0."""
    usual = dict.fromkeys(_USUAL_WAITS, 0.0)
    return lambda status: {**usual, **of(status)}.items()


_USUAL_WAITS = (
    *(("init", "slot"), ("init", "env"), ("run", "slot"), ("run", "policy"), ("run", "env")),
    *(("eval", "slot"), ("eval", "judge"), ("eval", "siblings")),
)


def _lag(status: EngineStatus) -> list[Value]:
    lag = status.loop_lag
    if lag is None:
        return []
    return [(("0.5",), lag.p50_s), (("0.99",), lag.p99_s), (("1",), lag.max_s)]


COUNTERS = (
    Family(
        "agentgym_episodes",
        "Episodes finished, by who broke them; none is those that have a score.",
        _finished,
        ("failure_class",),
    ),
    Family(
        "agentgym_episodes_truncated",
        "Scored episodes that a limit cut.",
        lambda status: [((limit,), n) for limit, n in status.episodes.truncated.items()],
        ("limit",),
    ),
    Family(
        "agentgym_episode_reruns",
        "Attempts that something other than the policy broke and that were made again.",
        _one(lambda status: status.episodes.reruns),
    ),
    Family(
        "agentgym_turns",
        "Answers of the policy, unfinished episodes' too.",
        _one(lambda status: status.turns),
    ),
    Family(
        "agentgym_generated_tokens",
        "Tokens in the policy's answers, unfinished episodes' too.",
        _one(lambda status: status.tokens),
    ),
    Family(
        "agentgym_input_tokens",
        "Input tokens of finished episodes, cached ones included.",
        _per_role("prompt_tokens"),
        ("role",),
    ),
    Family(
        "agentgym_cached_input_tokens",
        "Input tokens of finished episodes that a prefix cache held.",
        _per_role("cached_tokens"),
        ("role",),
    ),
    Family(
        "agentgym_output_tokens",
        "Output tokens of finished episodes, reasoning included.",
        _per_role("completion_tokens"),
        ("role",),
    ),
    Family(
        "agentgym_model_calls",
        "Requests to models, of finished episodes.",
        _per_role("calls"),
        ("role",),
    ),
    Family(
        "agentgym_model_call_retries",
        "Requests sent again after one that failed, of finished episodes.",
        _per_role("retries"),
        ("role",),
    ),
    Family(
        "agentgym_model_call_failures",
        "Calls that gave no answer after all retries, of finished episodes.",
        _per_role("failed_calls"),
        ("role",),
    ),
    Family(
        "agentgym_cost_dollars",
        "US dollars spent on finished episodes, where the endpoint has prices.",
        _per_role("cost_usd"),
        ("role",),
    ),
    Family(
        "agentgym_episodes_dropped",
        "Episodes that were cancelled, and have no trace.",
        _one(lambda status: status.episodes.dropped),
    ),
    Family(
        "agentgym_dropped_input_tokens",
        "Input tokens of dropped episodes, cached ones included.",
        _per_role("prompt_tokens", of="dropped_usage"),
        ("role",),
    ),
    Family(
        "agentgym_dropped_output_tokens",
        "Output tokens of dropped episodes, reasoning included.",
        _per_role("completion_tokens", of="dropped_usage"),
        ("role",),
    ),
    Family(
        "agentgym_dropped_cost_dollars",
        "US dollars spent on dropped episodes, where the endpoint has prices.",
        _per_role("cost_usd", of="dropped_usage"),
        ("role",),
    ),
    Family(
        "agentgym_replica_answers",
        "Answers of a server of the policy, since it joined.",
        _per_replica("answered"),
        ("replica",),
    ),
    Family(
        "agentgym_replica_failures",
        "Requests that a server of the policy didn't answer, since it joined.",
        _per_replica("failed"),
        ("replica",),
    ),
    Family(
        "agentgym_run_seconds",
        "Seconds during which a run was going on.",
        _one(lambda status: status.elapsed_s),
    ),
)

GAUGES = (
    Family("agentgym_runs", "Runs going on.", _one(lambda status: status.runs)),
    Family(
        "agentgym_episodes_in_flight",
        "Episodes begun and not over, by stage and what they wait for.",
        _waiting(lambda s: {(g.stage, g.waiting): float(g.episodes) for g in s.waiting}),
        ("stage", "waiting"),
    ),
    Family(
        "agentgym_longest_wait_seconds",
        "For how long the episode that has waited longest has waited, by stage and what for.",
        _waiting(lambda s: {(g.stage, g.waiting): g.longest.waited_s for g in s.waiting}),
        ("stage", "waiting"),
    ),
    Family("agentgym_stage_slots", "Slots of a stage.", _per_stage("slots"), ("stage",)),
    Family("agentgym_stage_active", "Slots in use.", _per_stage("active"), ("stage",)),
    Family(
        "agentgym_stage_queue", "Episodes waiting for a slot.", _per_stage("waiting"), ("stage",)
    ),
    Family(
        "agentgym_stage_occupancy_ratio",
        "Share of a stage's slot-seconds used over the last minute.",
        _per_stage("occupancy"),
        ("stage",),
    ),
    Family(
        "agentgym_loop_lag_seconds",
        "How late the event loop came to what was due, over the last minute.",
        _lag,
        ("quantile",),
    ),
    Family(
        "agentgym_replica_ready",
        "Whether a server of the policy gets requests: 1, or 0 if it is paused, leaving or dead.",
        lambda s: [((str(r["name"]),), float(r["state"] == "ready")) for r in s.replicas],
        ("replica",),
    ),
    Family(
        "agentgym_replica_in_flight",
        "Requests that a server of the policy works on.",
        _per_replica("in_flight"),
        ("replica",),
    ),
    Family(
        "agentgym_replica_capacity",
        "Requests that a server of the policy may be sent at once.",
        _per_replica("capacity"),
        ("replica",),
    ),
    Family(
        "agentgym_replica_queue",
        "Calls that wait for the server that holds their prefix.",
        _per_replica("waiting"),
        ("replica",),
    ),
    Family(
        "agentgym_replica_outstanding_tokens",
        "Tokens in flight at a server: uncached prompt, and the output expected.",
        _per_replica("outstanding_tokens"),
        ("replica",),
    ),
    Family(
        "agentgym_replica_cached_ratio",
        "Share of the prompt tokens that a server had cached.",
        _per_replica("cached_share"),
        ("replica",),
    ),
    Family(
        "agentgym_abandoned_threads",
        "Blocking calls of the process that were given up and still go on.",
        _one(lambda status: status.abandoned_threads),
    ),
)

HISTOGRAMS = (
    ("agentgym_episode_seconds", "Seconds in all stages, queues left out.", {"episode_s": ()}, ()),
    ("agentgym_episode_turns", "Turns of an episode.", {"turns": ()}, ()),
    (
        "agentgym_stage_seconds",
        "Seconds an episode held a slot of a stage.",
        {"init_s": ("init",), "run_s": ("run",), "eval_s": ("eval",)},
        ("stage",),
    ),
)


def metrics_of(
    labels: tuple[str, ...], statuses: Mapping[tuple[str, ...], EngineStatus]
) -> Iterator[Metric]:
    """Every metric, with the values of these engines.

    Args:
        labels: Names of the labels that tell engines apart.
        statuses: By the values of those.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for families, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
        for family in families:
            metric = kind(family.name, family.help, labels=(*labels, *family.labels))
            for values, status in statuses.items():
                for own, value in family.values(status):
                    metric.add_metric((*values, *own), value)
            yield metric
    yield from _histograms(labels, statuses)


def _histograms(
    labels: tuple[str, ...], statuses: Mapping[tuple[str, ...], EngineStatus]
) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, help_text, sources, own_labels in HISTOGRAMS:
        metric = HistogramMetricFamily(name, help_text, labels=(*labels, *own_labels))
        for values, status in statuses.items():
            for source, own in sources.items():
                if (found := status.histograms.get(source)) is None:
                    continue
                ends = [*map(str, found.bounds), "+Inf"]
                buckets = list(zip(ends, accumulate(found.counts), strict=True))
                metric.add_metric((*values, *own), buckets, found.total)
        yield metric
