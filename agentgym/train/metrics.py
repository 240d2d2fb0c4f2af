"""What a batch of episodes says about the run, as named numbers.

Reward components, gates and failure classes each on their own: a sum hides which part of a reward
the policy is learning to get.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch


def batch_metrics(batch: PlayedBatch) -> dict[str, float]:
    """Metrics of one batch; means and rates are over its scored episodes unless named otherwise."""
    traces, rows, rewards, seconds = batch.traces, batch.rows, batch.rewards, batch.seconds
    scored = [t for t, reward in zip(traces, rewards, strict=True) if reward is not None]
    metrics = {
        "masked": 1 - len(scored) / len(traces),
        "turns": _mean(len(t.turns) for t in traces),
        "rollout_s": seconds,
    }
    for name in ("simulator", "judge", "env", "infra"):
        failed = sum(t.verdict.failure_class == name for t in traces if not t.scored)
        metrics[f"masked/{name}"] = failed / len(traces)
    metrics["masked/rows"] = sum(row.fault is not None for row in rows) / len(rows)
    metrics["nonfinite_logprobs"] = float(sum(row.nonfinite_logprobs for row in rows))
    _add_tokens(metrics, traces, seconds)
    metrics["groups_without_signal"] = _groups_without_signal(traces, rewards)
    if not scored:
        return metrics
    metrics["completed"] = _mean(t.verdict.completed for t in scored)
    judged = [t.verdict.correct for t in scored if t.verdict.correct is not None]
    if judged:
        metrics["correct"] = _mean(judged)
    metrics["malformed"] = _mean(t.malformed_calls > 0 for t in scored)
    metrics["cut_off"] = _mean(any(turn.cut_off for turn in t.turns) for t in scored)
    metrics["truncated"] = _mean(t.truncated for t in scored)
    for reason in ("turns", "tokens", "context", "time"):
        metrics[f"truncated/{reason}"] = _mean(t.truncation_reason == reason for t in scored)
    for part in ("components", "gates"):
        values: dict[str, list[float]] = defaultdict(list)
        for trace in scored:
            for name, value in getattr(trace.verdict, part).items():
                values[name].append(float(value))
        metrics.update({f"{part}/{name}": _mean(found) for name, found in values.items()})
    return metrics


def _add_tokens(metrics: dict[str, float], traces: Sequence[Trace], seconds: float) -> None:
    usages = [turn.usage for trace in traces for turn in trace.turns if turn.usage]
    sampled = sum(u.completion_tokens for u in usages)
    prompt = sum(u.prompt_tokens for u in usages)
    metrics["tokens"] = sampled / len(traces)
    metrics["tokens_per_s"] = sampled / seconds if seconds > 0 else 0.0
    if prompt:
        metrics["prefix_cache_share"] = sum(u.cached_tokens for u in usages) / prompt


def _groups_without_signal(traces: Sequence[Trace], rewards: Sequence[float | None]) -> float:
    """Share of groups whose scored rewards are all equal, or fewer than two."""
    groups: dict[str | None, set[float]] = defaultdict(set)
    for trace, reward in zip(traces, rewards, strict=True):
        groups[trace.group].update(() if reward is None else (reward,))
    return _mean(len(distinct) < 2 for distinct in groups.values())


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
