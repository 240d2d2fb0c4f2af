"""What a reward is worth against its siblings': the baselines of GRPO, Dr.GRPO and RLOO.

TRL computes these on its own tensors when it trains (RLOO's with `agentgym.train.episode_trainer`).
Here they stand in the open, for trainers of one's own and as what the tests hold TRL against.
A masked rollout is NaN: it has no vote in mean, deviation or leave-one-out baseline, and no
advantage of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from agentgym.errors import ConfigError, unknown_name

FloatArray: TypeAlias = npt.NDArray[np.float64]
Baseline: TypeAlias = Literal["grpo", "dr_grpo", "dapo", "rloo"]

SAME_REWARD = 1e-6
"""Rewards that differ by no more are equal: rounding is nothing to learn from."""


def informative(rewards: Sequence[float | None]) -> bool:
    """Whether a group has something to compare: two scored rollouts that differ.

    Args:
        rewards: Length `G`, one per rollout of the same task; None where masked.
    """
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) > 1 and max(scored) - min(scored) > SAME_REWARD


def group_advantages(
    rewards: FloatArray, *, algorithm: Baseline = "grpo", eps: float = 1e-4
) -> FloatArray:
    """Compare the rewards of one group with each other.

    | algorithm | advantage of rollout i, over the n scored ones |
    |---|---|
    | `grpo`, `dapo` | (r_i - mean) / (std + eps), std with n - 1 |
    | `dr_grpo` | r_i - mean |
    | `rloo` | r_i - mean of the others = n / (n - 1) * (r_i - mean) |

    Args:
        rewards: Shape `(G,)`, one per rollout of the same task; NaN where masked.
        algorithm: Which baseline.
        eps: Added to the standard deviation, so that an all-equal group stays at zero.

    Returns:
        Shape `(G,)`, mean 0 over the scored rollouts; 0 where masked. A group with fewer than two
        scored rollouts is all 0: one alone has no baseline.

    Raises:
        ConfigError: If there is no such algorithm.

    Source: GRPO, arXiv:2402.03300, section 4.1; Dr.GRPO, arXiv:2503.20783; DAPO, arXiv:2503.14476;
        RLOO, arXiv:2402.14740.
    """
    if algorithm not in get_args(Baseline):
        raise ConfigError(unknown_name("algorithm", algorithm, get_args(Baseline)))
    scored = np.isfinite(rewards)
    count = int(scored.sum())
    if count < 2:
        return np.zeros_like(rewards, dtype=float)
    centred = rewards - rewards[scored].mean()
    if algorithm == "rloo":
        centred = centred * (count / (count - 1))
    elif algorithm != "dr_grpo":
        centred = centred / (rewards[scored].std(ddof=1) + eps)
    return np.where(scored, centred, 0.0)
