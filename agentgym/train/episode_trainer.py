"""TRL's `GRPOTrainer` and four additions.

RLOO's baseline; what the importance correction drops; a model card that knows local folders; a
learning rate that a longer run gets at once.

TRL 1.16 has no rollout function in its `RLOOTrainer`, and its GRPO subtracts the mean of the whole
group. Leaving a rollout out of its own baseline is that times n / (n - 1), n being the scored
rollouts of its group; with masked siblings n differs from group to group, so no constant will do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.train.algorithms import Algorithm
from agentgym.train.files import MODEL_FOLDER
from agentgym.train.gathering import gather_of


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


def renew_learning_rate(scheduler: Any) -> None:
    """Give the optimiser the rate that a schedule has for its present step.

    A checkpoint brings the rate that the schedule had then, and Transformers 5.17 keeps it until
    the first optimiser step is over. At the end of a decay that is 0, and a finished run that is
    resumed with more steps would make its first step for nothing.

    Args:
        scheduler: A `LambdaLR`, maybe in accelerate's wrapper; one of another kind is left alone.
    """
    schedule = getattr(scheduler, "scheduler", scheduler)
    factors = getattr(schedule, "lr_lambdas", None)
    if factors is None:
        return
    rates = [
        base * factor(schedule.last_epoch)
        for base, factor in zip(schedule.base_lrs, factors, strict=True)
    ]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


_NO_BASE = "[None](https://huggingface.co/None)"
_NO_MODEL = 'model="None"'


def mend_model_card(card: Path, base: str) -> None:
    """Say in TRL's model card what a model was made from that came from a folder, and where it is.

    TRL 1.16 knows models of the hub only: it writes "a fine-tuned version of None", and an example
    that loads "None".

    Args:
        card: The card, as TRL wrote it, beside the folder of the trained model.
        base: Folder of the model that training began with; its name alone is told.
    """
    text = card.read_text(encoding="utf-8")
    told = f"the model in the local folder `{Path(base).name}`" if base else "a local model"
    mended = text.replace(_NO_BASE, told).replace(_NO_MODEL, f'model="{MODEL_FOLDER}"')
    if mended != text:
        card.write_text(mended, encoding="utf-8")


def trainer_class(algorithm: Algorithm | None) -> Any:
    """The class of `GRPOTrainer` that trains with an algorithm of `agentgym.train.algorithms`."""
    return _trainer_class(leave_one_out=algorithm == "rloo")


@functools.cache
def _trainer_class(*, leave_one_out: bool) -> Any:
    import torch
    from trl import GRPOTrainer
    from trl.trainer.utils import get_config_model_id

    class EpisodeTrainer(GRPOTrainer):
        """`GRPOTrainer` for whole episodes; see the module."""

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            super().create_model_card(*args, **kwargs)
            card = Path(self.args.output_dir) / "README.md"
            if self.is_world_process_zero() and card.is_file():
                mend_model_card(card, str(get_config_model_id(self.model.config) or ""))

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None:
                renew_learning_rate(self.lr_scheduler)

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            if leave_one_out and self.model.training:
                self._leave_one_out(batch, [example["reward"] for example in inputs])
            self._count_dropped(batch)
            return batch

        def _leave_one_out(self, batch: dict[str, Any], rewards: list[float | None]) -> None:
            everywhere = gather_of(self.accelerator)(rewards)
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
