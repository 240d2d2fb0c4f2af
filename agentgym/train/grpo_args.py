"""From a `TrainConfig` to TRL's `GRPOConfig`, with the `[grpo]` table checked against its types."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from agentgym.errors import ConfigError
from agentgym.train.algorithms import preset
from agentgym.train.config import TrainConfig
from agentgym.train.grpo_table import check_value

DEFAULT_CONTEXT = 4096
"""Tokens of an episode where the config names no limit and the model's own isn't smaller."""


def grpo_config(config: TrainConfig) -> Any:
    """TRL's config: ours by its names, the user's `[grpo]` table, defaults for what is left."""
    import torch
    from trl import GRPOConfig

    theirs = _checked_table(config.grpo, GRPOConfig)
    if theirs.get("use_liger_kernel") and find_spec("liger_kernel") is None:
        raise ConfigError("[grpo]: use_liger_kernel needs its package: pip install liger-kernel")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = not torch.cuda.is_available()
    defaults: dict[str, Any] = {
        "report_to": "none",
        "logging_steps": 1,
        "save_total_limit": 2,
        # Else a NaN loss is logged as the mean of those before, and nobody sees it.
        "logging_nan_inf_filter": False,
        "bf16": not on_cpu,
        # The constant by which `dr_grpo` divides, once the model's own limit is known, too
        # (`make_trainer`); nothing else reads it: turns have their own cap.
        "max_completion_length": config.sampling.max_context or DEFAULT_CONTEXT,
    }
    if on_cpu:
        # bfloat16 is emulated on most CPUs, ten times slower, and recomputing activations saves
        # memory that isn't short.
        defaults |= {
            "use_cpu": True,
            "model_init_kwargs": {"dtype": "float32"},
            "gradient_checkpointing": False,
        }
        if isinstance(theirs.get("model_init_kwargs"), dict):  # one more need not name the dtype
            theirs["model_init_kwargs"] = {"dtype": "float32", **theirs["model_init_kwargs"]}
    ours = settled_by_the_run(config, processes=processes)
    named = preset(config.objective.algorithm, theirs)
    try:
        return GRPOConfig(**{**defaults, **named, **theirs, **ours})
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"[grpo]: {' '.join(str(error).split())}") from error


def settled_by_the_run(config: TrainConfig, *, processes: int) -> dict[str, Any]:
    """The settings that the fields decide, by TRL's names; `[grpo]` has no word on them."""
    # An episode's row ends with its last sampled token, so TRL's "truncated" means what it says,
    # but such rows stay in (mask_truncated_completions): what a cut is worth, the gates say.
    # The importance-sampling correction stays at TRL's default; its ratios are 1 up to rounding as
    # long as the sampler has the trainer's weights.
    return {
        "output_dir": str(config.out),
        "max_steps": config.steps,
        "per_device_train_batch_size": config.micro_batch or config.group_size,
        "gradient_accumulation_steps": config.accumulation_steps(processes),
        "num_generations": config.group_size,
        "learning_rate": config.learning_rate,
        "temperature": config.sampling.temperature,
        "seed": config.seed,
        "save_strategy": "steps",
        "save_steps": config.keep.checkpoints_every,
        "shuffle_dataset": False,
        "mask_truncated_completions": False,
        "use_vllm": True,
        "vllm_mode": "server" if config.policy.servers else "colocate",
        "disable_tqdm": True,
    }


def _checked_table(table: Mapping[str, Any], grpo_config: Any) -> dict[str, Any]:
    """The `[grpo]` table, each value of the type that TRL declares; TRL checks names only."""
    known = {field.name for field in dataclasses.fields(grpo_config)}
    hints = get_type_hints(grpo_config)
    checked = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"[grpo]: {_unknown(name, known)}")
        try:
            checked[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ConfigError(f"[grpo]: {name}: {fault['msg']}, got {value!r}") from error
        except PydanticSchemaGenerationError:  # a class of TRL's own; its constructor checks it
            checked[name] = value
        check_value(name, value)
    return checked


def _unknown(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "trl.GRPOConfig's documentation lists them"
    return f"unknown field {name!r}; {hint}"
