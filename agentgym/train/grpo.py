"""Train a policy with GRPO: from a `TrainConfig` to TRL's `GRPOTrainer` and through to the end.

Tasks are laid out before training starts, epoch after epoch in an order drawn from the seed, as one
data set of exactly the tasks the run will play. TRL then walks it without shuffling, and a resumed
run skips what was played: the same tasks, in the same order, with the same seeds.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.errors import AgentGymError, BudgetStop, ConfigError, TrainingError
from agentgym.roles import Roles
from agentgym.rollout.hosted import hosted_kwargs
from agentgym.rollout.source import EnvSource
from agentgym.train.algorithms import refill_rounds
from agentgym.train.config import TrainConfig
from agentgym.train.episode_trainer import trainer_class
from agentgym.train.files import CONFIG_FILE, MODEL_FOLDER
from agentgym.train.grpo_args import DEFAULT_CONTEXT, grpo_config
from agentgym.train.held_out import HeldOutTasks, held_out_config, held_out_tasks
from agentgym.train.interrupt import stoppable
from agentgym.train.live_weights import colocated_engine_for_cpu, require_live_weights_on_cpu
from agentgym.train.lora import check_lora, trainer_options
from agentgym.train.preflight import check_fit, load_tokenizer
from agentgym.train.rendezvous import rendezvous_of_its_own
from agentgym.train.reward import episode_reward
from agentgym.train.rollout import rollout_func
from agentgym.train.run_folder import claim, run_record
from agentgym.train.served_setup import served_policy
from agentgym.train.spending import within_budget
from agentgym.train.starts import note_budget_end, note_start
from agentgym.train.trackers import check_trackers
from agentgym.train.versions import require_training_stack
from agentgym.train.watching import watch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a finished run left behind."""

    model: Path
    """Folder of the trained model with its tokenizer."""
    steps: int
    """Training steps made in all."""
    history: list[dict[str, Any]]
    """Metrics of each step."""


def train(config: TrainConfig, *, resume: bool = False, progress: bool = True) -> TrainResult:
    """Train to the end, or until Ctrl-C.

    The first Ctrl-C ends the rollout at once, or lets an optimiser step in progress finish; either
    way a checkpoint of the last whole step is saved before `KeyboardInterrupt` goes on.

    Args:
        config: The run.
        resume: Continue from the last checkpoint in `config.out`.
        progress: Show a progress bar on stderr.

    Raises:
        ConfigError: If the config doesn't fit the environment, the model or what is in `out`.
        TrainingError: If training can't start or must stop.
        KeyboardInterrupt: After Ctrl-C, with everything saved.
    """
    require_training_stack()
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # one for every checkpoint; the run has its own line
    checkpoint = claim(config, resume=resume)
    trainer = make_trainer(config)
    try:
        return fit(trainer, config, checkpoint=checkpoint, progress=progress)
    finally:
        trainer.rollout_func.close()


def fit(
    trainer: Any, config: TrainConfig, *, checkpoint: Path | None = None, progress: bool = True
) -> TrainResult:
    """`train` with a trainer that is already there (`make_trainer`), in a claimed folder (`claim`).

    For runs that do more with the trainer than train, such as evaluating before and after.

    Raises:
        TrainingError: If training must stop.
        BudgetStop: If the config's budget is used up, with the last whole step saved.
        KeyboardInterrupt: After Ctrl-C, with everything saved.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    settings = run_record(config)
    record = json.dumps(settings, indent=2, ensure_ascii=False)
    processes = trainer.accelerator.num_processes
    if trainer.accelerator.is_main_process:
        note_start(config.out, settings, checkpoint=checkpoint, processes=processes)
        (config.out / CONFIG_FILE).write_text(record + "\n", encoding="utf-8")
    monitor = watch(trainer, config, held_out=held_out_of(config), progress=progress)
    try:
        with within_budget(trainer.rollout_func, config, processes=processes), stoppable(trainer):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BudgetStop as stop:  # never one of several processes
        note_budget_end(config.out, step=trainer.state.global_step, budget=str(stop))
        raise
    monitor.raise_if_stopped()
    model = config.out / MODEL_FOLDER
    trainer.save_model(str(model))
    return TrainResult(model, trainer.state.global_step, list(trainer.state.log_history))


def make_trainer(config: TrainConfig, **trainer_kwargs: Any) -> Any:
    """The `GRPOTrainer` of a config, ready to `train()`.

    Args:
        config: The run.
        **trainer_kwargs: Passed on to `GRPOTrainer` (`callbacks`, `peft_config`, …).

    Raises:
        ConfigError: If the config doesn't fit the environment or the model.
        TrainingError: If the chat template can't be trained on.
    """
    require_training_stack()
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_not_about_masked_rows)
    from datasets import Dataset

    check_lora(config.model, config.lora)
    args = grpo_config(config)
    check_trackers(args.report_to)
    tokenizer, model_context = load_tokenizer(config.model)
    context = config.sampling.max_context or min(model_context, DEFAULT_CONTEXT)
    if context > model_context:
        raise ConfigError(
            f"max_context={context} is more than the {model_context} tokens {config.model} takes"
        )
    args.vllm_max_model_length = context
    args.max_completion_length = context  # which is what `dr_grpo` divides by
    policy = served_policy(config, max_context=context)
    env_kwargs = training_kwargs(config)
    tasks = check_fit(
        config,
        env_kwargs=env_kwargs,
        tokenizer=tokenizer,
        context=context,
        template_kwargs=args.chat_template_kwargs,
    )
    if policy is not None:
        policy.check_servers(
            first=args.process_index == 0,
            tokenizer=tokenizer,
            env_id=config.env,
            env_kwargs=env_kwargs,
        )
    if (held_out := held_out_of(config)) is not None:
        tasks = [task for task in tasks if task not in held_out.tasks]
    if config.tasks_per_step > len(tasks):
        logger.warning(
            "tasks_per_step is %d and there are %d tasks: steps play some of them more than once",
            config.tasks_per_step,
            len(tasks),
        )
    order = task_order(tasks, config.steps * config.tasks_per_step, seed=config.seed)
    rollout = rollout_func(
        config.env,
        env_kwargs=env_kwargs,
        max_turn_tokens=config.sampling.max_turn_tokens,
        max_episode_tokens=config.sampling.max_episode_tokens,
        seed=config.seed,
        traces=config.out,
        check_every=config.policy.check_every,
        template_kwargs=args.chat_template_kwargs,
        truncated=config.objective.truncated_as,
        refill_rounds=refill_rounds(config.objective.algorithm, config.objective.refill),
        refill_tasks=tasks,
    )
    # vLLM 0.31: an engine that was dropped takes the process groups down when it is collected,
    # those of an engine made meanwhile included.
    gc.collect()
    with (
        colocated_engine_for_cpu(max_context=context)
        if policy is None
        else policy.building_trainer(),
        rendezvous_of_its_own(),
        warnings.catch_warnings(),
        _refusals_in_one_line(),
    ):
        warnings.filterwarnings(
            "ignore", message=".*rollout_func.*experimental", category=UserWarning
        )
        trainer = trainer_class(config.objective.algorithm)(
            model=run_record(config)["model"],  # adapters keep it, and are merged from anywhere
            args=args,
            processing_class=tokenizer,
            reward_funcs=episode_reward,
            train_dataset=Dataset.from_dict({"prompt": order}),
            rollout_func=rollout,
            **{**trainer_options(config.lora), **trainer_kwargs},
        )
    if policy is None:
        require_live_weights_on_cpu()
    else:
        policy.step = lambda: trainer.state.global_step
    return trainer


@contextmanager
def _refusals_in_one_line() -> Iterator[None]:
    """Tell what TRL, or what it stands on, refuses to train with as any other setting's fault."""
    try:
        yield
    except AgentGymError:
        raise
    except (ValueError, ImportError, NotImplementedError) as error:
        raise ConfigError(
            f"no trainer with these settings: {' '.join(str(error).split())}"
        ) from error


def task_order(tasks: Sequence[str], count: int, *, seed: int) -> list[str]:
    """Task ids for a whole run: every task once per epoch, each epoch in a fresh order.

    Args:
        tasks: The environment's task ids.
        count: Ids wanted.
        seed: Fixes the order; a longer run starts with the order of a shorter one.
    """
    draw = random.Random(seed)
    order: list[str] = []
    while len(order) < count:
        epoch = list(tasks)
        draw.shuffle(epoch)
        order += epoch
    return order[:count]


def training_kwargs(config: TrainConfig) -> dict[str, Any]:
    """The environment's parameters, with its models if `roles` names any.

    The split is "train" where the environment has splits and none is given.

    Raises:
        ConfigError: If there is no such environment, the roles can't be read, or a key is missing.
    """
    has_splits = EnvSource(config.env).takes("split")
    env_kwargs = {**({"split": "train"} if has_splits else {}), **config.env_kwargs}
    if config.roles is None:
        return env_kwargs
    hosted = hosted_kwargs(config.env, env_kwargs, Roles.from_toml(config.roles))
    for role in hosted.unused:
        logger.warning("%s takes no %s; [%s] is not used", config.env, role, role)
    hosted.used.check_keys()
    return hosted.env_kwargs


def held_out_of(config: TrainConfig) -> HeldOutTasks | None:
    """The tasks kept from training for evaluations, if there are to be any.

    Raises:
        ConfigError: If they can't be kept apart.
    """
    if config.eval.every is None:
        return None
    return held_out_tasks(
        config,
        env_kwargs=training_kwargs(held_out_config(config)),
        training_kwargs=training_kwargs(config),
    )


def _not_about_masked_rows(record: logging.LogRecord) -> bool:
    """Drop TRL's note on rows without a reward.

    It prints all columns of one, for every batch; a masked episode is as it should be, and counted.
    With accelerate's state set up, the rank comes first.
    """
    return "All reward functions returned None" not in str(record.msg)


def task_prompts(env_id: str, *, count: int, seed: int = 0, **env_kwargs: Any) -> list[str]:
    """The `prompt` column of a dataset for `rollout_func`: task ids in a fixed order.

    Args:
        env_id: Environment id.
        count: Tasks wanted; each is played once per generation of its group.
        seed: Fixes the order.
        **env_kwargs: The environment's parameters.

    Raises:
        TrainingError: If the environment has no tasks.
    """
    env = gymnasium.make(env_id, **env_kwargs)
    try:
        tasks = list(env.unwrapped.task_ids())  # type: ignore[attr-defined]
    finally:
        env.close()
    if not tasks:
        raise TrainingError(f"{env_id} has no tasks to train on")
    return task_order(tasks, count, seed=seed)
