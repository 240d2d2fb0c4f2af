"""What a batch of episodes says about the run, as named numbers.

Reward components, gates and failure classes each on their own: a sum hides which part of a reward
the policy is learning to get. The monitors (`agentgym.train.monitors`) look at these numbers and at
nothing else of a batch, so that a run is judged alike while it goes and from its files.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from agentgym.metering import sum_by_role
from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch

FAILURE_CLASSES = ("simulator", "judge", "env", "infra")
"""Who may be to blame for an episode without a score."""

_STEP = re.compile(r"(?:^|step)(\d{1,18})$")


def batch_metrics(batch: PlayedBatch) -> dict[str, float]:
    """Metrics of one batch; means and rates are over its scored episodes unless named otherwise.

    Those of a reward component or a gate are over the episodes whose verdict has it.
    """
    traces, rows, rewards, seconds = batch.traces, batch.rows, batch.rewards, batch.seconds
    pairs = list(zip(traces, rewards, strict=True))
    # Rates are over all that were judged, also where the run's choice leaves them out of training.
    scored = [t for t in traces if t.scored]
    values = [reward for reward in rewards if reward is not None]
    metrics = {
        "episodes": float(len(traces)),
        "masked": 1 - len(values) / len(traces),
        "turns": _mean(len(t.turns) for t in traces),
        "rollout_s": seconds,
    }
    for name in FAILURE_CLASSES:
        failed = sum(t.verdict.failure_class == name for t in traces if not t.scored)
        metrics[f"masked/{name}"] = failed / len(traces)
    metrics["masked/rows"] = sum(row.fault is not None for row in rows) / len(rows)
    metrics["nonfinite_logprobs"] = float(sum(row.nonfinite_logprobs for row in rows))
    _add_tokens(metrics, traces, seconds)
    _add_stages(metrics, traces)
    _add_versions(metrics, traces, batch.step)
    _add_groups(metrics, pairs)
    if not scored:
        return metrics
    if values:
        metrics.update({"reward/mean": _mean(values), "reward/min": min(values)})
        metrics["reward/max"] = max(values)
    metrics["completed"] = _mean(t.verdict.completed for t in scored)
    judged = [t for t in scored if t.verdict.correct is not None]
    if judged:
        metrics["correct"] = _mean(t.verdict.correct is True for t in judged)
    if answered := [t for t in judged if t.verdict.completed]:
        metrics["correct_if_completed"] = _mean(t.verdict.correct is True for t in answered)
    metrics["malformed"] = _mean(t.malformed_calls > 0 for t in scored)
    metrics["cut_off"] = _mean(any(turn.cut_off for turn in t.turns) for t in scored)
    metrics["truncated"] = _mean(t.truncated for t in scored)
    for reason in ("turns", "tokens", "context", "time"):
        metrics[f"truncated/{reason}"] = _mean(t.truncation_reason == reason for t in scored)
    metrics["turn_cap_unanswered"] = _mean(
        t.truncation_reason == "turns" and not t.verdict.completed for t in scored
    )
    for part in ("components", "gates"):
        found: dict[str, list[float]] = defaultdict(list)
        for trace in scored:
            for name, value in getattr(trace.verdict, part).items():
                found[name].append(float(value))
        metrics.update({f"{part}/{name}": _mean(each) for name, each in found.items()})
    return metrics


def expected_without_signal(p: float, group_size: float) -> float:
    """Share of groups whose rollouts all succeed or all fail, if each succeeds with chance `p`.

    p^G + (1 - p)^G: such a group's rewards are equal, and equal rewards have no gradient.

    Args:
        p: Success rate, 0 to 1; what is beyond, as in a stranger's file, counts as the nearer end.
        group_size: G, rollouts per group.
    """
    p = min(max(p, 0.0), 1.0)
    return float(p**group_size + (1 - p) ** group_size)


def _add_tokens(metrics: dict[str, float], traces: Sequence[Trace], seconds: float) -> None:
    usages = [turn.usage for trace in traces for turn in trace.turns if turn.usage]
    sampled = _number(sum(u.completion_tokens for u in usages))
    prompt = _number(sum(u.prompt_tokens for u in usages))
    metrics["tokens"] = sampled / len(traces)
    metrics["tokens_per_s"] = sampled / seconds if seconds > 0 else 0.0
    if prompt:
        metrics["prefix_cache_share"] = _number(sum(u.cached_tokens for u in usages)) / prompt
    for role, usage in sum_by_role(*(trace.usage for trace in traces)).items():
        metrics[f"usage/{role}/tokens_in"] = _number(usage.prompt_tokens)
        metrics[f"usage/{role}/tokens_out"] = _number(usage.completion_tokens)
        if usage.cost_usd is not None:
            metrics[f"usage/{role}/usd"] = usage.cost_usd


def _add_stages(metrics: dict[str, float], traces: Sequence[Trace]) -> None:
    """Active seconds per episode, by stage; waiting in a queue is not counted."""
    for stage in sorted({stage for trace in traces for stage in trace.stage_s}):
        metrics[f"stage_s/{stage}"] = _mean(trace.stage_s.get(stage, 0.0) for trace in traces)


def _add_versions(metrics: dict[str, float], traces: Sequence[Trace], step: int) -> None:
    """How old the weights were that the turns were sampled with, where that is known.

    A weight version is the training step it was made at, `7`, or ends in it, `run-4-step7`; a turn
    that went on under new weights reads `7->8` and counts as its older part.
    """
    lags: list[int] = []
    mixed: list[bool] = []
    for trace in traces:
        made_at = [made for turn in trace.turns if (made := _steps_of(turn.weight_version))]
        lags += [max(0, step - min(made)) for made in made_at]
        if made_at:
            mixed.append(len({made for turn in made_at for made in turn}) > 1)
    if lags:
        metrics["weights/lag"] = _mean(lags)
        metrics["weights/lag_max"] = float(max(lags))
        metrics["weights/mixed"] = _mean(mixed)


def _steps_of(version: str | None) -> list[int]:
    """The training steps in a weight version; none if it names no step."""
    found = [_STEP.search(part) for part in (version or "").split("->")]
    return [int(match[1]) for match in found if match] if all(found) else []


def _add_groups(metrics: dict[str, float], pairs: Sequence[tuple[Trace, float | None]]) -> None:
    """What the groups offer to learn from.

    A group with fewer than two scored episodes has no baseline and so no signal, but says nothing
    about the tasks: `groups_equal` and the shares beside it leave such groups out. Episodes that
    name no group have none.
    """
    groups: dict[str, list[tuple[Trace, float | None]]] = defaultdict(list)
    for trace, reward in pairs:
        if trace.group is not None:
            groups[trace.group].append((trace, reward))
    if not groups:
        return
    scored = [
        [(trace, reward) for trace, reward in group if reward is not None]
        for group in groups.values()
    ]
    metrics["groups_without_signal"] = _mean(len({r for _, r in group}) < 2 for group in scored)
    compared = [group for group in scored if len(group) > 1]
    metrics["groups"] = float(len(compared))
    if not compared:
        return
    metrics["group_size"] = _mean(len(group) for group in compared)
    metrics["groups_equal"] = _mean(len({r for _, r in group}) == 1 for group in compared)
    solved = [sum(trace.verdict.correct is True for trace, _ in group) for group in compared]
    metrics["groups_identical"] = _mean(
        right < len(group) and len({_said(trace) for trace, _ in group}) == 1
        for right, group in zip(solved, compared, strict=True)
    )
    if any(trace.verdict.correct is None for group in compared for trace, _ in group):
        return
    sizes = [len(group) for group in compared]
    metrics["groups_all_failed"] = _mean(right == 0 for right in solved)
    metrics["groups_all_solved"] = _mean(r == n for r, n in zip(solved, sizes, strict=True))
    p = sum(solved) / sum(sizes)
    metrics["groups_equal_expected"] = _mean(expected_without_signal(p, n) for n in sizes)


def _said(trace: Trace) -> Hashable:
    """All that the policy said in an episode: its ids, or its messages where there are none."""
    return tuple(
        turn.completion_ids if turn.completion_ids is not None else repr(turn.message)
        for turn in trace.turns
    )


def _mean(values: Iterable[float]) -> float:
    """The mean; infinite where the sum is."""
    found = [_number(value) for value in values]
    try:
        return statistics.fmean(found)
    except (OverflowError, ValueError):  # ValueError: inf - inf
        return math.inf


def _number(value: float) -> float:
    """A count of any size as a float: servers may claim any number of tokens."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
