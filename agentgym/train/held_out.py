"""Held-out evaluations while a run trains: does it get better at what it isn't trained on?

Every so many steps the trainer's present weights play tasks that are kept apart, through the same
engine, and are scored by whether the task was solved (`verdict.correct`), never by the reward that
is trained on. Where that score and the training reward part, the reward is being gamed.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from agentgym.durable import LineFile
from agentgym.errors import ConfigError, TrainingError
from agentgym.rollout import derived_seed
from agentgym.rollout.source import EnvSource
from agentgym.trace import Trace
from agentgym.train.config import TrainConfig
from agentgym.train.evaluation import Evaluation, evaluate
from agentgym.train.files import EVALUATIONS_FILE
from agentgym.train.gathering import gather_of
from agentgym.train.monitors.history import OURS
from agentgym.train.monitors.scores import HeldOutScore, gain, read_scores

SPLIT = "validation"
"""Where the held-out tasks come from unless the config says otherwise."""


@dataclass(frozen=True)
class HeldOutTasks:
    """Tasks kept apart for evaluations."""

    env_kwargs: dict[str, Any]
    """The environment's parameters for them."""
    tasks: tuple[str, ...]


def held_out_config(config: TrainConfig) -> TrainConfig:
    """The run's config with the environment's parameters of the held-out tasks."""
    split = {"split": SPLIT} if EnvSource(config.env).takes("split") else {}
    return config.model_copy(
        update={"env_kwargs": {**config.env_kwargs, **split, **config.eval.env_kwargs}}
    )


def held_out_tasks(
    config: TrainConfig, *, env_kwargs: Mapping[str, Any], training_kwargs: Mapping[str, Any]
) -> HeldOutTasks:
    """Choose the tasks; the same ones for every run of the same environment.

    Where the environment has no splits, some of its tasks are kept from training.

    Args:
        config: The run.
        env_kwargs: The environment's parameters in evaluations.
        training_kwargs: Its parameters in training.

    Raises:
        ConfigError: If they can't be kept apart from the training tasks, or are too few.
    """
    known = _task_ids(config.env, env_kwargs)
    draw = random.Random(0)
    if dict(env_kwargs) == dict(training_kwargs):
        if len(known) < 4:
            raise ConfigError(
                f"{config.env} has {len(known)} tasks and no splits: too few to keep some for "
                "evaluations; leave out eval.every"
            )
        count = min(config.eval.tasks, len(known) // 2)
        return HeldOutTasks(dict(env_kwargs), tuple(sorted(draw.sample(known, count))))
    shared = set(known) & set(_task_ids(config.env, training_kwargs))
    if shared and "split" in env_kwargs:
        raise ConfigError(
            f"{len(shared)} held-out tasks are trained on, too, such as {min(shared)!r}; name "
            "another split in eval.env_kwargs"
        )
    if len(known) < 2:
        raise ConfigError(
            f"{config.env} has {len(known)} held-out task(s); an interval needs at least two"
        )
    count = min(config.eval.tasks, len(known))
    return HeldOutTasks(dict(env_kwargs), tuple(sorted(draw.sample(known, count))))


def _task_ids(env_id: str, env_kwargs: Mapping[str, Any]) -> list[str]:
    env = EnvSource(env_id, env_kwargs).make()
    try:
        return list(env.unwrapped.task_ids())  # type: ignore[attr-defined]
    finally:
        env.close()


class HeldOut(TrainerCallback):
    """Evaluates before the first step, every `eval.every` steps, and after the last.

    Args:
        trainer: The `GRPOTrainer`.
        config: The run.
        held_out: What to play.
        tell: Shows a line to whoever watches.
        listener: Told of each score.
        play: Plays tasks with the trainer's present weights.
    """

    def __init__(
        self,
        trainer: Any,
        config: TrainConfig,
        held_out: HeldOutTasks,
        *,
        tell: Callable[[str], None],
        listener: Callable[[HeldOutScore], None],
        play: Callable[..., list[Trace]] = evaluate,
    ) -> None:
        assert config.eval.every is not None
        self._trainer = trainer
        self._config = config
        self._held_out = held_out
        self._every = config.eval.every
        self._tell = tell
        self._listener = listener
        self._play = play
        self._path = config.out / EVALUATIONS_FILE
        self._best: HeldOutScore | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate the policy before it is trained; a resumed run takes up what it knew."""
        step = state.global_step  # at 0 what is there was left by another attempt
        known = [s for s in read_scores(self._path) if s.step <= step] if step else []
        for score in known:
            if _beats(score, self._best):
                self._best = score
        if not self._is_due(step, state) or step in {score.step for score in known}:
            return
        found = self._evaluate(step) if step == 0 else self._evaluate_or_tell(step)
        if found is not None:
            self._keep(found, state)
            # TRL's own metrics of the next step would be averaged with it.
            self._trainer.log(self._metrics(found))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate when it is time, and keep the checkpoint of the best."""
        step = state.global_step
        if control.should_training_stop and step < state.max_steps:
            return
        if not self._is_due(step, state) or (found := self._evaluate_or_tell(step)) is None:
            return
        score = self._keep(found, state)
        for name, value in self._metrics(score).items():
            self._trainer._metrics["train"][name].append(value)
        if score.best:
            control.should_save = True

    def _is_due(self, step: int, state: Any) -> bool:
        return step % self._every == 0 or step == state.max_steps

    def _evaluate_or_tell(self, step: int) -> HeldOutScore | None:
        """Evaluate; a judge or a server that is away for a while is no reason to end a run."""
        try:
            return self._evaluate(step)
        except TrainingError as error:
            self._tell(f"held-out evaluation at step {step} failed: {error}")
            return None

    def _evaluate(self, step: int) -> HeldOutScore:
        """Play the held-out tasks; every process takes its share."""
        started = time.perf_counter()
        trainer, config = self._trainer, self._config
        accelerator = trainer.accelerator
        rank, processes = accelerator.process_index, accelerator.num_processes
        traces_file = config.out / (
            f"traces-held-out{step:06d}" + (f"-rank{rank}" if rank else "") + ".jsonl"
        )
        traces_file.unlink(missing_ok=True)  # of an evaluation that was cut short
        playing = getattr(trainer.rollout_func, "while_playing", nullcontext)
        with playing(), random_state_restored():
            traces = self._play(
                trainer,
                config.env,
                tasks=self._held_out.tasks[rank::processes],
                env_kwargs=self._held_out.env_kwargs,
                samples=config.eval.samples,
                seed=derived_seed(config.seed, "held out"),
                max_turn_tokens=config.sampling.max_turn_tokens,
                max_episode_tokens=config.sampling.max_episode_tokens,
                traces=traces_file,
            )
        traces = gather_of(accelerator)(traces)
        return score_of(traces, step=step, seconds=time.perf_counter() - started)

    def _keep(self, score: HeldOutScore, state: Any) -> HeldOutScore:
        """Write a score down, tell it, and note whether it is the best."""
        if _beats(score, self._best):
            score = score.model_copy(update={"best": True})
            self._best = score
            if score.step:
                # What the trainer calls best is not deleted with older checkpoints.
                folder = self._config.out / f"checkpoint-{score.step}"
                state.best_metric, state.best_global_step = score.success, score.step
                state.best_model_checkpoint = str(folder)
        if state.is_world_process_zero:
            file = LineFile(self._path)
            file.append(f"{score.model_dump_json()}\n".encode())
            file.close()
            self._tell(f"held-out at step {score.step}: {score.text()}" + " · best" * score.best)
        self._listener(score)
        return score

    def _metrics(self, score: HeldOutScore) -> dict[str, float]:
        values = {
            "success": score.success, "success_low": score.low, "success_high": score.high,
            "reward": score.reward, "masked": score.n_masked / (score.n_episodes + score.n_masked),
            "seconds": score.seconds,
        }  # fmt: skip
        return {f"{OURS}held_out/{name}": value for name, value in values.items()}


def _beats(score: HeldOutScore, best: HeldOutScore | None) -> bool:
    """Whether a score is better than the best so far, by the tasks that both have.

    With most tasks masked it may be of the easy ones only, and beats nothing.
    """
    if best is None:
        return True
    common = [task for task in best.tasks if task in score.tasks]
    return 2 * len(common) >= len(best.tasks) and gain(best, score).mean > 0


def score_of(traces: Sequence[Trace], *, step: int, seconds: float) -> HeldOutScore:
    """The score of an evaluation's episodes.

    Raises:
        TrainingError: If fewer than two tasks have a scored episode.
    """
    found = Evaluation.of(traces)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for trace in traces:
        if trace.scored:
            counts[str(trace.task_id)][0] += trace.verdict.correct is True
            counts[str(trace.task_id)][1] += 1
    return HeldOutScore(
        step=step,
        success=found.success.mean,
        low=found.success.low,
        high=found.success.high,
        n_episodes=found.success.n,
        n_masked=found.n_masked,
        reward=found.reward.mean,
        reward_low=found.reward.low,
        reward_high=found.reward.high,
        turns=found.turns,
        truncated=found.truncated,
        malformed=found.malformed,
        seconds=seconds,
        tasks={task: (solved, scored) for task, (solved, scored) in sorted(counts.items())},
    )


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Leave Python's, NumPy's and torch's random numbers as they were.

    So a run draws the same whether it is evaluated or not.
    """
    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
