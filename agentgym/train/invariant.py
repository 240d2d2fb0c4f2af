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

FLOAT32_TOLERANCE = 1e-4
"""Largest difference of a token's log-probability, nats, when both sides are float32."""
LOW_PRECISION_TOLERANCE = 0.05
"""Largest mean difference, nats, when a side is bfloat16 or float16; single tokens differ more."""
PROBE_TOKENS = 32


@dataclass(frozen=True)
class LogprobGap:
    """How far sampler and trainer are apart on the probe, in nats."""

    largest: float
    mean: float
    float32: bool
    """Whether both compute in float32."""

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
        trainer: A `GRPOTrainer` with colocated vLLM and no request running.
        prompt_ids: Shape `(P,)`.
        tokens: Ids to sample, at most; the context may leave room for fewer.
    """
    import torch

    engine = trainer.vllm_generation.llm.llm_engine
    model_config = engine.vllm_config.model_config
    tokens = min(tokens, model_config.max_model_len - len(prompt_ids))
    sampled, theirs = _sample(engine, prompt_ids, tokens, trainer.temperature)
    device = trainer.accelerator.device
    ids = torch.tensor([[*prompt_ids, *sampled]], device=device)
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad():
            ours, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), len(sampled)
            )
    finally:
        trainer.model.train(was_training)
    gaps = (ours[0].float().cpu() - torch.tensor(theirs)).abs()
    dtypes = {model_config.dtype, next(trainer.model.parameters()).dtype}
    float32 = dtypes == {torch.float32} and not (trainer.args.bf16 or trainer.args.fp16)
    return LogprobGap(float(gaps.max()), float(gaps.mean()), float32)


def _sample(
    engine: Any, prompt_ids: Sequence[int], tokens: int, temperature: float
) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a fixed-seed continuation."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
        max_tokens=tokens, seed=0, ignore_eos=True, logprobs=0, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    engine.add_request("agentgym-probe", {"prompt_token_ids": list(prompt_ids)}, params)
    finished: list[Any] = []
    while not finished:
        finished = engine.step()
    answer = finished[0].outputs[0]
    ids = list(answer.token_ids)
    return ids, [float(at[i].logprob) for i, at in zip(ids, answer.logprobs, strict=True)]


def require_live_weights(trainer: Any, prompt_ids: Sequence[int]) -> LogprobGap:
    """Measure the gap and stop the run if it is more than rounding.

    Raises:
        TrainingError: With the gap, what is allowed, and what to look at.
    """
    gap = measure_gap(trainer, prompt_ids)
    if gap.breached:
        allowed = (
            f"at most {FLOAT32_TOLERANCE:g} per token in float32"
            if gap.float32
            else f"at most {LOW_PRECISION_TOLERANCE:g} on average in low precision"
        )
        raise TrainingError(
            f"at step {trainer.state.global_step} the sampler's log-probabilities differ from the "
            f"trainer's by {gap.largest:.3g} at most and {gap.mean:.3g} on average ({allowed}): "
            "vLLM does not sample with the weights that are trained. On a CPU its plug-in "
            "`agentgym_live_weights` must be loaded: unset VLLM_PLUGINS, or name the plug-in in it"
        )
    return gap
