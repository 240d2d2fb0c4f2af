"""One learning run of the tiny policy: evaluate on held-out tasks, train with GRPO, evaluate again.

`agentgym demo` shows one; `benchmarks/learning.py` repeats it over seeds and with shuffled rewards.
Both evaluations sample at temperature 1, as training does, with the same tasks and the same seeds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.rollout import Progress, derived_seed
from agentgym.trace import Trace
from agentgym.train.config import KeepSettings, SamplingSettings, TrainConfig
from agentgym.train.evaluation import Evaluation, evaluate
from agentgym.train.grpo import fit, make_trainer
from agentgym.train.run_folder import claim
from agentgym.train.tiny.demonstrations import ENV_ID, ENV_KWARGS
from agentgym.train.tiny.model import MAX_CONTEXT
from agentgym.types import Finite, Record

WARM_START = Path(__file__).parent / "weights"
"""The warm-started policy that comes with the package; `build.py` makes it."""
HELD_OUT = "validation"
"""Split of the evaluations; training uses the split `train`."""
STEPS = 30
SAMPLES = 3
"""Evaluation episodes per held-out task."""
MAX_TURN_TOKENS = 12
"""The longest sensible action, a search with every word of the instruction, has 7."""

Stage = Callable[[str], AbstractContextManager[Any]]


class LearningResult(Record):
    """What one run showed."""

    seed: int
    steps: int
    shuffled: bool
    """Whether rewards were dealt to the wrong episodes on purpose."""
    before: Evaluation
    after: Evaluation
    train_reward: tuple[Finite, ...]
    """Mean reward of each step's rollouts."""
    train_success: tuple[Finite, ...]
    """Share of each step's rollouts with the task solved."""
    seconds: dict[str, Finite]
    """Wall-clock time of each phase."""


def learning_config(
    out: Path,
    *,
    model: Path = WARM_START,
    steps: int = STEPS,
    seed: int = 0,
    env: str = ENV_ID,
    env_kwargs: Mapping[str, Any] = ENV_KWARGS,
) -> TrainConfig:
    """The training run: 16 groups of 8 episodes a step, no KL term, constant learning rate."""
    return TrainConfig(
        env=env,
        env_kwargs={**env_kwargs, "split": "train"},
        model=str(model),
        out=out,
        steps=steps,
        tasks_per_step=16,
        group_size=8,
        micro_batch=64,
        learning_rate=5e-4,
        sampling=SamplingSettings(max_turn_tokens=MAX_TURN_TOKENS, max_context=MAX_CONTEXT),
        seed=seed,
        keep=KeepSettings(checkpoints_every=max(1, steps // 2)),
        grpo={"beta": 0.0, "lr_scheduler_type": "constant"},
    )


class ShuffledRewards:
    """A rollout function that deals the batch's rewards to random episodes: the control.

    Everything else stays: the rewards' distribution, the number of steps, the learning rate.

    Args:
        rollout: The rollout function to spoil.
        seed: Fixes the shuffles.
    """

    def __init__(self, rollout: Callable[..., dict[str, Any]], *, seed: int) -> None:
        self._rollout = rollout
        self._rng = random.Random(derived_seed(seed, "shuffled rewards"))

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Play the batch and shuffle its rewards."""
        output = self._rollout(prompts, trainer)
        self._rng.shuffle(output["reward"])
        return output


def _no_stage(_: str) -> AbstractContextManager[Any]:
    return nullcontext()


def learn(
    folder: Path,
    *,
    model: Path = WARM_START,
    steps: int = STEPS,
    seed: int = 0,
    samples: int = SAMPLES,
    tasks: int | None = None,
    shuffled: bool = False,
    env: str = ENV_ID,
    env_kwargs: Mapping[str, Any] = ENV_KWARGS,
    held_out_kwargs: Mapping[str, Any] | None = None,
    stage: Stage = _no_stage,
    progress: bool | Progress = True,
    on_evaluation: Callable[[str, Evaluation, Sequence[Trace]], None] | None = None,
) -> LearningResult:
    """Evaluate, train, evaluate.

    Args:
        folder: Takes `before.jsonl`, `after.jsonl` and the training run in `train/`.
        model: The policy to start from.
        steps: Training steps.
        seed: Fixes task order and sampling.
        samples: Evaluation episodes per held-out task.
        tasks: Held-out tasks, the first ones of the split; None is all.
        shuffled: Whether to spoil the rewards.
        env: What is trained on.
        env_kwargs: Its parameters; the split is set here.
        held_out_kwargs: Those of the evaluations; default: `env_kwargs`.
        stage: Entered around each phase, with its name.
        progress: Whether to show the progress of evaluations and training, or who shows it.
        on_evaluation: Told each result, as soon as it is there, with its name.
    """
    config = learning_config(
        folder / "train", model=model, steps=steps, seed=seed, env=env, env_kwargs=env_kwargs
    )
    seconds: dict[str, float] = {}
    evaluated = {**(env_kwargs if held_out_kwargs is None else held_out_kwargs), "split": HELD_OUT}
    shop: Any = gymnasium.make(env, **evaluated).unwrapped
    held_out = shop.task_ids()[:tasks]

    def play(name: str) -> Evaluation:
        with stage(name), _timed(seconds, name):
            traces = evaluate(
                trainer,
                env,
                tasks=held_out,
                env_kwargs=evaluated,
                samples=samples,
                seed=derived_seed(seed, "evaluation"),
                max_turn_tokens=MAX_TURN_TOKENS,
                traces=folder / f"{name}.jsonl",
                progress=progress,
            )
        evaluation = Evaluation.of(traces)
        if on_evaluation is not None:
            on_evaluation(name, evaluation, traces)
        return evaluation

    claim(config)
    with stage("start"), _timed(seconds, "start"):
        trainer = make_trainer(config)
    if shuffled:
        trainer.rollout_func = ShuffledRewards(trainer.rollout_func, seed=seed)
    before = play("before")
    with stage("train"), _timed(seconds, "train"):
        history = fit(trainer, config, progress=bool(progress)).history
    after = play("after")
    logs = [entry for entry in history if "reward" in entry]
    return LearningResult(
        seed=seed,
        steps=steps,
        shuffled=shuffled,
        before=before,
        after=after,
        train_reward=tuple(entry["reward"] for entry in logs),
        train_success=tuple(entry["agentgym/correct"] for entry in logs),
        seconds=seconds,
    )


class _timed:  # noqa: N801  # reads like a function
    """Notes how long a block took."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._seconds[self._name] = round(time.monotonic() - self._started, 1)
