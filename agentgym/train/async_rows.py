"""From a group of episodes to what TRL's asynchronous trainer takes: rows with advantages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentgym.trace import Trace
from agentgym.train.advantages import group_advantages
from agentgym.train.metrics import FAILURE_CLASSES
from agentgym.train.objective import Objective
from agentgym.train.rows import training_rows

with warnings.catch_warnings():  # that it is experimental is known, and the version pinned
    warnings.filterwarnings("ignore", message=".*importing from 'trl.experimental'")
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

_UNUSED = 0
"""Stands in for an episode without ids, which makes no row here."""


def rows_of_group(traces: Sequence[Trace], *, group_id: int, version: int) -> list[RolloutSample]:
    """The rows of a group of episodes, as TRL's asynchronous trainer takes them.

    Args:
        traces: The rollouts of one task.
        group_id: The group's number.
        version: The weights that its first episode began with.

    Returns:
        Nothing for episodes without a vote (masked, or cut by the clock), and for a group with
        fewer than two others, which has no baseline. An episode whose prompts don't extend each
        other is several rows, each with the advantage of the episode.
    """
    ordered = sorted(traces, key=lambda trace: trace.sample)
    rules = Objective()
    settled = [
        [
            rules.settle(trace, filler_id=_UNUSED, row=row)
            for row in training_rows(trace, filler_id=_UNUSED, split=True)
        ]
        for trace in ordered
    ]
    # The rows of an episode are settled alike, but for their ids.
    rewards = np.array(
        [np.nan if rows[0].reward is None else rows[0].reward for rows in settled], dtype=float
    )
    scored = np.isfinite(rewards)
    if scored.sum() < 2:
        return []
    spread = float(rewards[scored].std())
    advantages = group_advantages(rewards)
    samples = []
    for trace, rows, reward, advantage in zip(ordered, settled, rewards, advantages, strict=True):
        if not np.isfinite(reward):
            continue
        first = len(trace.messages) - _said_since(trace)
        for row in (one.row for one in rows):
            if not any(row.env_mask):
                continue
            before = len(row.prompt_ids)
            samples.append(
                RolloutSample(
                    prompt=list(trace.messages[:first]),
                    completion=list(trace.messages[first:]),
                    input_ids=np.array([*row.prompt_ids, *row.completion_ids], dtype=np.int64),
                    completion_mask=np.array([*[0] * before, *row.env_mask], dtype=np.int64),
                    old_log_probs=np.array([*[0.0] * before, *row.logprobs], dtype=np.float32),
                    advantage=float(advantage),
                    model_version=version,
                    group_id=group_id,
                    metrics={
                        "reward": float(reward),
                        "reward_std": spread,
                        **{f"rewards/{k}": v for k, v in trace.verdict.components.items()},
                    },
                )
            )
    return samples


def _said_since(trace: Trace) -> int:
    """Messages after the opening."""
    return sum(1 + len(turn.replies) for turn in trace.turns)


def group_metrics(traces: Sequence[Trace]) -> dict[str, Any]:
    """Metrics of a group as TRL's trainer sums them up: sum and count of a rate.

    Those of `agentgym.train.metrics` that the monitors of how episodes end look at.
    """

    def rate(of: Sequence[Trace], has: Callable[[Trace], float]) -> tuple[float, float]:
        return float(sum(map(has, of))), float(len(of))

    scored = [trace for trace in traces if trace.scored]
    metrics: dict[str, Any] = {
        "masked": rate(traces, lambda t: not t.scored),
        "turns": rate(traces, lambda t: len(t.turns)),
    }
    for name in FAILURE_CLASSES:
        failed = [t for t in traces if not t.scored and t.verdict.failure_class == name]
        metrics[f"masked/{name}"] = (float(len(failed)), float(len(traces)))
    if scored:
        metrics["completed"] = rate(scored, lambda t: t.verdict.completed)
        metrics["malformed"] = rate(scored, lambda t: t.malformed_calls > 0)
        metrics["cut_off"] = rate(scored, lambda t: any(turn.cut_off for turn in t.turns))
        metrics["truncated/context"] = rate(scored, lambda t: t.truncation_reason == "context")
        metrics["turn_cap_unanswered"] = rate(
            scored, lambda t: t.truncation_reason == "turns" and not t.verdict.completed
        )
    if judged := [t for t in scored if t.verdict.correct is not None]:
        metrics["correct"] = rate(judged, lambda t: t.verdict.correct is True)
    return {f"agentgym/{name}": value for name, value in metrics.items()}
