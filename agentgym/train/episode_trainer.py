"""TRL's `GRPOTrainer` and two additions: RLOO's baseline, what the importance correction drops.

TRL 1.16 has no rollout function in its `RLOOTrainer`, and its GRPO subtracts the mean of the whole
group. Leaving a rollout out of its own baseline is that times n / (n - 1), n being the scored
rollouts of its group; with masked siblings n differs from group to group, so no constant will do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from agentgym.train.algorithms import Algorithm
from agentgym.train.objective import here_only


def leave_one_out_factors(rewards: Sequence[float | None], group_size: int) -> list[float]:
    """What turns "minus the group's mean" into "minus the mean of the others".

    Args:
        rewards: Shape `(N * G,)`, group after group; None where masked.
        group_size: `G`.

    Returns:
        Shape `(N * G,)`: n / (n - 1) for a group with n scored rollouts, 1 where n < 2.
    """
    factors: list[float] = []
    for start in range(0, len(rewards), group_size):
        scored = sum(r is not None for r in rewards[start : start + group_size])
        factors += [scored / (scored - 1) if scored > 1 else 1.0] * group_size
    return factors


def trainer_class(algorithm: Algorithm | None) -> Any:
    """The class of `GRPOTrainer` that trains with an algorithm of `agentgym.train.algorithms`."""
    return _trainer_class(leave_one_out=algorithm == "rloo")


@functools.cache
def _trainer_class(*, leave_one_out: bool) -> Any:
    import torch
    from accelerate.utils import gather_object
    from trl import GRPOTrainer

    class EpisodeTrainer(GRPOTrainer):
        """`GRPOTrainer` for whole episodes; see the module."""

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            if leave_one_out and self.model.training:
                self._leave_one_out(batch, [example["reward"] for example in inputs])
            self._count_dropped(batch)
            return batch

        def _leave_one_out(self, batch: dict[str, Any], rewards: list[float | None]) -> None:
            several = self.accelerator.num_processes > 1
            everywhere = (gather_object if several else here_only)(rewards)
            factors = leave_one_out_factors(everywhere, self.num_generations)
            first = self.accelerator.process_index * len(rewards)
            here = torch.tensor(
                factors[first : first + len(rewards)], device=batch["advantages"].device
            )
            batch["advantages"] = batch["advantages"] * here

        def _count_dropped(self, batch: dict[str, Any]) -> None:
            """Log the share of trained rows, or tokens, that the `*_mask` modes weigh 0."""
            ratio = batch.get("importance_sampling_ratio")
            if ratio is None:
                return
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            trained = (mask.sum(dim=1, keepdim=True) > 0) if ratio.size(1) == 1 else mask.bool()
            counts = torch.stack([((ratio == 0) & trained).sum(), trained.sum()]).float()
            dropped, of = self.accelerator.reduce(counts, reduction="sum").tolist()
            mode = "train" if self.model.training else "eval"
            name = "sampling/importance_sampling_ratio/dropped"
            self._metrics[mode][name].append(dropped / of if of else 0.0)

    return EpisodeTrainer
