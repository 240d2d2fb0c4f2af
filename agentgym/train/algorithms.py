"""Algorithms by name, each a handful of TRL's own settings.

A name stands for what the papers differ in: the baseline (`scale_rewards`), what a token weighs
(`loss_type`), the clipping, and whether groups without signal are played anew. Everything else
stays as it is, and a setting in `[grpo]` wins over the name's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Algorithm: TypeAlias = Literal["grpo", "dr_grpo", "dapo", "rloo"]

PRESETS: Mapping[Algorithm, Mapping[str, Any]] = {
    "grpo": {"loss_type": "grpo", "scale_rewards": "group"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2, "epsilon_high": 0.28},
    # TRL's RLOOTrainer takes no rollout function. On the policy's own samples `luspo`, which sums
    # each row and takes the mean of the rows, has REINFORCE's gradient, and that is RLOO's.
    # Its ratio, one per row, is clipped as a whole, as RLOO's is.
    "rloo": {
        "loss_type": "luspo", "scale_rewards": "none", "importance_sampling_level": "sequence",
    },
}  # fmt: skip
"""By TRL 1.16's names; docs/objective.md has the formulas."""

DAPO_REFILL = 4
"""Rounds in which DAPO plays further tasks, unless the config names its own number."""

logger = logging.getLogger(__name__)


def preset(algorithm: Algorithm | None, table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an algorithm, without those that the `[grpo]` table has an own word on.

    What the table changes about a named algorithm is logged: the run is then something else than
    its name says.

    Args:
        algorithm: None leaves TRL's own defaults.
        table: The user's `[grpo]` table.
    """
    if algorithm is None:
        return {}
    named = dict(PRESETS[algorithm])
    for name in sorted(named.keys() & table.keys()):
        if table[name] != named[name]:
            logger.warning(
                "[grpo] %s=%r takes the place of %r, which algorithm=%s stands for",
                name,
                table[name],
                named[name],
                algorithm,
            )
        del named[name]
    return named


def refill_rounds(algorithm: Algorithm | None, refill: int | None) -> int:
    """Rounds of further tasks per step: what the config says, else what the algorithm does."""
    if refill is not None:
        return refill
    return DAPO_REFILL if algorithm == "dapo" else 0
