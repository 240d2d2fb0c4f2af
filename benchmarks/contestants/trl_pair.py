"""GRPO trainers on one colocated vLLM: with `rollout_func`, and with TRL's own tool loop.

Same model, same tasks, same engine; a step here is a rollout with its rewards, weight sync
included, without the optimiser. What each played is counted, so that a ratio compares like with
like.
"""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from shop_walk import ScriptedPolicy
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation

from agentgym.train import (
    colocated_engine_for_cpu,
    environment_factory,
    episode_reward,
    rollout_func,
    task_rows,
)

GROUP = 4
OURS, UNSEEDED, THEIRS = "rollout_func", "rollout_func, unseeded", "environment_factory"
NAMES = (OURS, UNSEEDED, THEIRS)
"""With a seed of its own for every request, without, and TRL's loop, which has none."""


class Step(NamedTuple):
    """One rollout."""

    seconds: float
    cpu_s: float
    """Of this process, all threads: what the step costs whoever else is on the machine."""
    sampled: int
    """Tokens that the policy sampled."""
    turns: int
    """Requests to vLLM."""


class _Played(Exception):
    """The rollout and its rewards are there; what follows is training."""


class Trainers:
    """The trainers of a comparison.

    Args:
        model: Folder of the model.
        context: Tokens of the longest episode.
        max_turn_tokens: Tokens of the longest turn.
        episodes: Episodes per step.
        out: For the trainers' files.
        engine_kwargs: More parameters of vLLM's `LLM`.
    """

    def __init__(
        self,
        model: Path,
        *,
        context: int,
        max_turn_tokens: int,
        episodes: int,
        out: Path,
        engine_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = str(model)
        self._context = context
        self._max_turn_tokens = max_turn_tokens
        self._episodes = episodes
        self._out = str(out)
        self._kwargs = {"logits_processors": [ScriptedPolicy], **(engine_kwargs or {})}
        self._llm: Any = None
        self.trainers: dict[str, GRPOTrainer] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._outputs = 0
        self._tokens = 0

    def play_on(self, env_id: str, env_kwargs: Mapping[str, Any], *, tasks: Sequence[str]) -> None:
        """Make the trainers for an environment; vLLM stays.

        Args:
            env_id: The environment.
            env_kwargs: Its parameters.
            tasks: Tasks of all steps, a group each.
        """
        self._close()
        dataset = Dataset.from_dict({"prompt": list(tasks)})
        for name, seeded in ((OURS, True), (UNSEEDED, False)):
            rollout = rollout_func(
                env_id,
                env_kwargs=env_kwargs,
                max_turn_tokens=self._max_turn_tokens,
                check_every=10**9,
                seeded_sampling=seeded,
            )
            self._rows[name] = list(dataset)
            self.trainers[name] = self._trainer(
                train_dataset=dataset, reward_funcs=episode_reward, rollout_func=rollout
            )
        dataset = Dataset.from_list(task_rows(env_id, tasks, **env_kwargs))
        self._rows[THEIRS] = list(dataset)
        made = environment_factory(env_id, dataset, **env_kwargs)
        self.trainers[THEIRS] = self._trainer(train_dataset=dataset, environment_factory=made)

    def step(self, name: str, number: int) -> Step:
        """One step of one of the trainers, timed.

        Args:
            name: One of `NAMES`.
            number: Which tasks are played.
        """
        trainer = self.trainers[name]
        groups = self._episodes // GROUP
        rows = self._rows[name][number * groups : (number + 1) * groups]
        inputs = [row for row in rows for _ in range(GROUP)]
        trainer.state.global_step += 1  # so that the weights are synced
        self._outputs = self._tokens = 0
        gc.collect()
        started, computed = time.perf_counter(), time.process_time()
        with contextlib.suppress(_Played):
            trainer._generate_and_score_completions(inputs)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - computed
        return Step(seconds, cpu_s, self._tokens, self._outputs)

    def _trainer(self, **arguments: Any) -> GRPOTrainer:
        on_cpu = not torch.cuda.is_available()
        args = GRPOConfig(
            output_dir=self._out,
            max_steps=1000,
            per_device_train_batch_size=self._episodes,
            num_generations=GROUP,
            max_completion_length=self._context,  # what a whole episode may take
            shuffle_dataset=False,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=self._context,
            vllm_importance_sampling_correction=False,  # a forward pass, which is no rollout
            use_cpu=on_cpu,
            bf16=not on_cpu,
            model_init_kwargs={"dtype": "float32"} if on_cpu else None,
            gradient_checkpointing=False,
            report_to="none",
        )
        with warnings.catch_warnings(), self._one_engine():
            warnings.simplefilter("ignore")
            trainer = _Timed(model=self._model, args=args, **arguments)
        trainer.model.train()
        return trainer

    @contextlib.contextmanager
    def _one_engine(self) -> Iterator[None]:
        """Have every trainer take the one vLLM."""
        with colocated_engine_for_cpu(max_context=self._context):
            made = vllm_generation.LLM

            def build(**kwargs: Any) -> Any:
                if self._llm is None:
                    self._llm = made(**kwargs, **self._kwargs)
                    self._count(self._llm.llm_engine)
                return self._llm

            vllm_generation.LLM = build
            try:
                yield
            finally:
                vllm_generation.LLM = made

    def _count(self, engine: Any) -> None:
        """Count what is sampled, whoever asked."""
        step = engine.step

        def counted() -> Any:
            outputs = step()
            for output in outputs:
                if output.finished:
                    self._outputs += 1
                    self._tokens += len(output.outputs[0].token_ids)
            return outputs

        engine.step = counted

    def _close(self) -> None:
        for name in (OURS, UNSEEDED):
            if name in self.trainers:
                self.trainers[name].rollout_func.close()
        self.trainers = {}
        gc.collect()


class _Timed(GRPOTrainer):
    """Ends a step when the rewards are there."""

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        super()._calculate_rewards(*args, **kwargs)
        raise _Played
