"""Episodes that were played already, and a rollout that hands them to a real TRL trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tiny_policy

from agentgym.rollout import EpisodeRequest
from agentgym.trace import Trace
from agentgym.train.objective import Settled
from agentgym.train.reward import episode_reward
from agentgym.train.rollout import Rollout
from agentgym.types import Turn, Verdict

UNSCORED = Verdict(reward=None, masked=True, failure_class="judge", judge_failed=True)


def played(
    reward: float | None,
    *,
    group: str | None = None,
    cut: Any = None,
    ids: Sequence[int] = (9, 3),
    logprobs: Sequence[float] | None = None,
    verdict: Verdict | None = None,
) -> Trace:
    """A trace of one turn; without a reward, one that the judge could not score."""
    if verdict is None:
        verdict = UNSCORED if reward is None else Verdict(reward=reward)
    turn = Turn(
        index=0,
        message={"role": "assistant", "content": "say"},
        prompt_ids=(2, 7),
        completion_ids=tuple(ids),
        logprobs=tuple(logprobs or (-1.0,) * len(ids)),
    )
    return Trace(
        trace_id="t",
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        group=group,
        terminated=cut is None,
        truncated=cut is not None,
        truncation_reason=cut,
        verdict=verdict,
        turns=(turn,),
    )


class PlayedRollout(Rollout):
    """Gives the traces in `queue`, one batch after the other, to whoever trains."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            tiny_policy.ENV_ID,
            env_kwargs={},
            max_turn_tokens=8,
            seed=0,
            traces=None,
            check_every=1,
            limits=None,
            template_kwargs={},
            seeded_sampling=True,
            **options,
        )
        self.queue: list[Trace] = []
        self.asked: list[EpisodeRequest] = []
        self.output: dict[str, Any] = {}

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        self.output = super().__call__(prompts, trainer)
        return self.output

    def _prepare(self, trainer: Any) -> Any:
        self._tasks = list(dict.fromkeys(trainer.train_dataset["prompt"]))
        return object()

    def _after_sync(self, trainer: Any) -> None:
        """There is no sampler."""
        self._step = trainer.state.global_step

    def _without_stale(self, settled: Sequence[Settled]) -> list[Settled]:
        return list(settled)

    def _play(
        self, requests: Sequence[EpisodeRequest], trainer: Any, *, more: bool = False
    ) -> list[Trace]:
        self.asked += requests
        found, self.queue = self.queue[: len(requests)], self.queue[len(requests) :]
        return [
            trace.model_copy(
                update={"group": r.group, "sample": r.sample, "task_id": r.task_id, "seed": r.seed}
            )
            for trace, r in zip(found, requests, strict=True)
        ]


def played_trainer(
    folder: Path,
    rollout: PlayedRollout,
    *,
    rows: int,
    trainer_class: Any = None,
    tasks: int = 1,
    **config: Any,
) -> Any:
    """A real `GRPOTrainer` on the tiny policy, without a sampler."""
    import trl
    from datasets import Dataset

    settings: Mapping[str, Any] = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "gradient_checkpointing": False,
        "report_to": [],
        "num_generations": 4,
        "per_device_train_batch_size": rows,
        "max_completion_length": 8,
        **config,
    }
    trainer = (trainer_class or trl.GRPOTrainer)(
        model=str(tiny_policy.save_policy(folder / "model")),
        processing_class=tiny_policy.make_tokenizer(),
        reward_funcs=episode_reward,
        train_dataset=Dataset.from_list([{"prompt": f"guess/{n}"} for n in range(tasks)]),
        args=trl.GRPOConfig(**settings),
        rollout_func=rollout,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def batch_of(
    trainer: Any, rollout: PlayedRollout, traces: Sequence[Trace], *, rows: int | None = None
) -> dict[str, Any]:
    """What TRL makes of a batch of these episodes, before any shuffling.

    Args:
        trainer: Of `played_trainer`.
        rollout: Its rollout.
        traces: In the order in which they are asked for; more than `rows` where it refills.
        rows: Of the batch; all traces by default.
    """
    size = trainer.num_generations
    rollout.queue = list(traces)
    tasks = trainer.train_dataset["prompt"]
    return trainer._generate_and_score_completions(
        [
            {"prompt": tasks[row // size % len(tasks)]}
            for row in range(len(traces) if rows is None else rows)
        ]
    )
