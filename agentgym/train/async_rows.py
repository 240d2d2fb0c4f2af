"""From a group of episodes to what TRL's asynchronous trainer takes: rows with advantages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentgym.trace import Trace
from agentgym.train.advantages import group_advantages
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
    """Metrics of a group as TRL's trainer sums them up: numbers, or sum and count of a rate."""
    scored = [trace for trace in traces if trace.scored]
    metrics: dict[str, Any] = {
        "agentgym/masked": (float(len(traces) - len(scored)), float(len(traces))),
        "agentgym/turns": (float(sum(len(t.turns) for t in traces)), float(len(traces))),
    }
    if scored:
        completed = sum(trace.verdict.completed for trace in scored)
        correct = sum(trace.verdict.correct is True for trace in scored)
        metrics["agentgym/completed"] = (float(completed), float(len(scored)))
        metrics["agentgym/correct"] = (float(correct), float(len(scored)))
    return metrics
