"""Does the sampler have the trainer's weights?

Nothing fails when it hasn't: the run goes on, samples from an old policy and corrects towards it.
So it is asked directly. The sampler continues a fixed prompt with a fixed seed, the trainer scores
the same ids, and after a weight sync both must give the same log-probabilities, at the temperature
trained with. Before the first update the same question finds a wrong dtype, a changed chat model or
log-probabilities taken before the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.errors import TrainingError
from agentgym.train.policy_source import ProbeAnswer, policy_source_of

FLOAT32_TOLERANCE = 1e-4
"""Largest difference of a token's log-probability, nats, when both sides are float32."""
LOW_PRECISION_TOLERANCE = 0.05
"""Largest mean difference, nats, when a side is bfloat16 or float16; single tokens differ more."""
PROBE_TOKENS = 32
_PLUGIN = (
    "on a CPU its plug-in `agentgym_live_weights` must be loaded: unset VLLM_PLUGINS, or name the "
    "plug-in in it"
)
_BASE = "start the server with the model that is trained, since adapters go on top of its weights"


@dataclass(frozen=True)
class LogprobGap:
    """How far sampler and trainer are apart on the probe, in nats."""

    largest: float
    mean: float
    float32: bool
    """Whether both compute in float32."""
    replica: str | None = None
    """The server that is farthest off, where there are several."""

    @property
    def breached(self) -> bool:
        """Whether they disagree by more than rounding."""
        if self.float32:
            return not self.largest <= FLOAT32_TOLERANCE
        return not self.mean <= LOW_PRECISION_TOLERANCE


def measure_gap(
    trainer: Any, prompt_ids: Sequence[int], *, tokens: int = PROBE_TOKENS
) -> LogprobGap:
    """Compare both sides on a continuation of a prompt.

    Args:
        trainer: A `GRPOTrainer` whose sampler no request is running on.
        prompt_ids: Shape `(P,)`.
        tokens: Ids to sample, at most; the context may leave room for fewer.

    Returns:
        The gap; of several replicas the widest.
    """
    source = policy_source_of(trainer)
    tokens = min(tokens, source.max_context - len(prompt_ids))
    answers = source.probe(prompt_ids, tokens=tokens, temperature=trainer.temperature)
    gaps = [_gap(trainer, prompt_ids, answer) for answer in answers]
    return max(gaps, key=lambda gap: (gap.breached, gap.largest))


def _gap(trainer: Any, prompt_ids: Sequence[int], answer: ProbeAnswer) -> LogprobGap:
    """What the trainer makes of the ids that one replica sampled."""
    import torch

    device = trainer.accelerator.device
    ids = torch.tensor([[*prompt_ids, *answer.ids]], device=device)
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad():
            ours, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), len(answer.ids)
            )
    finally:
        trainer.model.train(was_training)
    gaps = (ours[0].float().cpu() - torch.tensor(answer.logprobs)).abs()
    ours_in_float32 = next(trainer.model.parameters()).dtype == torch.float32 and not (
        trainer.args.bf16 or trainer.args.fp16
    )
    return LogprobGap(
        float(gaps.max()),
        float(gaps.mean()),
        float32=answer.float32 and ours_in_float32,
        replica=answer.replica,
    )


def require_live_weights(trainer: Any, prompt_ids: Sequence[int]) -> LogprobGap:
    """Measure the gap and stop the run if it is more than rounding.

    Raises:
        TrainingError: With the gap, what is allowed, and what to look at.
    """
    gap = measure_gap(trainer, prompt_ids)
    if gap.breached:
        served = gap.replica is not None
        who = f"the server {gap.replica}" if served else "the sampler"
        allowed = (
            f"at most {FLOAT32_TOLERANCE:g} per token in float32"
            if gap.float32
            else f"at most {LOW_PRECISION_TOLERANCE:g} on average in low precision"
        )
        raise TrainingError(
            f"at step {trainer.state.global_step} the log-probabilities of {who} differ from the "
            f"trainer's by {gap.largest:.3g} at most and {gap.mean:.3g} on average ({allowed}): "
            "vLLM does not sample with the weights that are trained; "
            f"{f'{_BASE}; {_PLUGIN}' if served else _PLUGIN}"
        )
    return gap
