"""What TRL is handed of a batch of settled episodes, and its one reward function.

The combined reward travels beside the rows, and `episode_reward` gives it back: TRL masks a row
only when *every* reward function returned None for it, so there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym.errors import TrainingError
from agentgym.train.objective import Settled


def columns_of(played: Sequence[Settled]) -> dict[str, Any]:
    """The rows of a batch, by column, as a `rollout_func` returns them; each of shape `(B,)`."""
    traces, rows = [s.trace for s in played], [s.row for s in played]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.env_mask for row in rows],
        "reward": [s.reward for s in played],
        "task_id": [trace.task_id for trace in traces],
        "components": [trace.verdict.components for trace in traces],
        "gates": [trace.verdict.gates for trace in traces],
        "truncation_reason": [trace.truncation_reason for trace in traces],
        "turns": [len(trace.turns) for trace in traces],
        "sampled_tokens": [sum(row.env_mask) for row in rows],
    }


def episode_reward(
    prompts: Sequence[str],
    *,
    reward: list[float | None] | None = None,
    batch_metrics: Sequence[Mapping[str, float]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """The one reward function: the verdicts' combined reward, None where masked.

    Raises:
        TrainingError: If the episodes did not come from `rollout_func`.
    """
    if reward is None:
        raise TrainingError(
            "this batch has no episodes: pass rollout_func=agentgym.train.rollout_func(env_id) to "
            "the trainer; without it TRL would train on single answers"
        )
    if batch_metrics and log_metric is not None:
        for name, value in batch_metrics[0].items():
            log_metric(f"agentgym/{name}", value)
    return reward
