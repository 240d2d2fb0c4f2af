"""How good the policy in a trainer is on tasks it isn't trained on.

Played by the same engine, with the same policy behind it, with the same ids and sampling as the
training rollouts, so a difference between two evaluations is a difference between two policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import TrainingError
from agentgym.rollout import EpisodeRequest, Limits, Progress, derived_seed
from agentgym.statistics import Estimate, mean_estimate, share_estimate
from agentgym.tokens.codec import ChatCodec
from agentgym.trace import Trace
from agentgym.traces import TraceWriter
from agentgym.train.policy_source import EngineSettings, played_by, policy_source_of, sampling_of
from agentgym.types import Record, Verdict


class Evaluation(Record):
    """What a policy achieved on a set of tasks; masked episodes are counted and left out."""

    success: Estimate
    """Share of episodes with the task solved."""
    reward: Estimate
    turns: float
    """Mean turns per episode."""
    truncated: float
    """Share of episodes cut by a limit."""
    malformed: float
    """Share of episodes with a call that could not be read."""
    n_masked: int

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Evaluation:
        """Add up traces.

        Raises:
            TrainingError: If fewer than two tasks have a scored episode: there is no interval then.
        """
        scored = [trace for trace in traces if trace.scored]
        n = len(scored)
        if len({trace.task_id for trace in scored}) < 2:
            errors = [trace.error.strip().splitlines()[-1] for trace in traces if trace.error]
            raise TrainingError(
                f"{n} of {len(traces)} evaluation episodes were scored; an interval needs at least "
                f"two tasks{f'. The first failure: {errors[0]}' if errors else ''}"
            )
        tasks = [trace.task_id for trace in scored]
        return cls(
            success=share_estimate([t.verdict.correct is True for t in scored], tasks),
            reward=mean_estimate([t.reward or 0.0 for t in scored], tasks),
            turns=sum(len(t.turns) for t in scored) / n,
            truncated=sum(t.truncated for t in scored) / n,
            malformed=sum(t.malformed_calls > 0 for t in scored) / n,
            n_masked=len(traces) - n,
        )


def evaluate(
    trainer: Any,
    env_id: str,
    *,
    tasks: Sequence[str],
    env_kwargs: Mapping[str, Any] | None = None,
    samples: int = 1,
    seed: int = 0,
    max_turn_tokens: int = 256,
    max_episode_tokens: int | None = None,
    traces: Path | None = None,
    progress: bool | Progress | None = None,
) -> list[Trace]:
    """Play tasks with the trainer's present weights, sampled as it samples to train.

    Args:
        trainer: A `GRPOTrainer`, before, between or after training steps.
        env_id: Environment id.
        tasks: Task ids.
        env_kwargs: The environment's parameters, such as the split.
        samples: Episodes per task.
        seed: Fixes every sampling seed.
        max_turn_tokens: Tokens the policy may sample per turn.
        max_episode_tokens: And per episode; None is no limit.
        traces: File that takes the traces.
        progress: See `agentgym.rollout.Engine`.

    Returns:
        The traces. Those of a server that turned out to have other weights are masked; the file has
        them as they were played.
    """
    trainer.vllm_generation.sync_weights()
    source = policy_source_of(trainer)
    source.after_sync(str(trainer.state.global_step))
    codec = ChatCodec(
        trainer.processing_class,
        stop_ids=trainer.eos_token_ids,
        template_kwargs=trainer.args.chat_template_kwargs,
    )
    requests = [
        EpisodeRequest(task_id=task, seed=derived_seed(seed, task), group=task, sample=sample)
        for task in tasks
        for sample in range(samples)
    ]
    writer = TraceWriter(traces) if traces is not None else None
    settings = EngineSettings(
        env_id,
        env_kwargs=dict(env_kwargs or {}),
        sampling=sampling_of(trainer, max_turn_tokens),
        limits=Limits(
            concurrency=256,
            init_concurrency=64,
            eval_concurrency=256,
            max_episode_tokens=max_episode_tokens,
        ),
        writer=writer,
        progress=progress,
        policy_name=trainer.model.name_or_path,
        template_kwargs=trainer.args.chat_template_kwargs or {},
        ledger=getattr(getattr(trainer, "rollout_func", None), "ledger", None),
    )
    engine = source.engine(settings, codec)
    try:
        played = engine.run_blocking(requests)
    finally:
        engine.close()
        if writer is not None:
            writer.close()
    stale = source.stale()
    return [_unscored(t) if t.scored and played_by(t, stale) else t for t in played]


def _unscored(trace: Trace) -> Trace:
    """An episode of an unknown policy."""
    reason = "a policy server had other weights than the trainer"
    verdict = {**trace.verdict.model_dump(), "masked": True, "reward": None, "reason": reason}
    return trace.model_copy(update={"verdict": Verdict.model_validate(verdict)})
