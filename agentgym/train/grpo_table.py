"""What the table `[grpo]` may say: TRL's settings, but for those that are decided elsewhere.

TRL looks at many of them only when the model is loaded, or in the middle of the first step, and
takes some that its trainer would then ignore. Here they are looked at before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentgym.errors import ConfigError

OWNED: Mapping[str, str] = {
    "output_dir": "out",
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "micro_batch",
    "generation_batch_size": "tasks_per_step",
    "steps_per_generation": "tasks_per_step",
    "num_generations": "group_size",
    "learning_rate": "learning_rate",
    "temperature": "sampling.temperature",
    "vllm_max_model_length": "sampling.max_context",
    "seed": "seed",
    "data_seed": "seed",
    "save_strategy": "keep.checkpoints_every",
    "save_steps": "keep.checkpoints_every",
    "shuffle_dataset": "seed",
    "eval_strategy": "eval.every",
    "eval_steps": "eval.every",
    "eval_on_start": "eval.every",
    "do_eval": "eval.every",
    "num_generations_eval": "eval.samples",
    "max_tool_calling_iterations": "env_kwargs",
}
"""Names of GRPOConfig that a field of `TrainConfig` decides."""

_ONLY_TEMPERATURE = "the trainer's log-probabilities know only the temperature"
_SERVERS = "the field 'policy.servers' says where the policy is"
_ONE_REWARD = "there is one reward, whose parts the environment's judge weighs"
_LOGGED = "every step is logged as it is, and the monitors need each"
_BEST = "evaluations are the field 'eval.every', and the best checkpoint is kept"

FIXED: Mapping[str, str] = {
    "use_vllm": "rollouts come from vLLM",
    "vllm_mode": _SERVERS,
    "vllm_server_base_url": _SERVERS,
    "vllm_server_host": _SERVERS,
    "vllm_server_port": _SERVERS,
    "vllm_tensor_parallel_size": "the colocated client drives one engine per process",
    "vllm_enable_sleep_mode": "the colocated client drives an engine that stays awake",
    "mask_truncated_completions": "the field 'objective.truncated' says what becomes of those",
    "max_completion_length": (
        "'sampling.max_turn_tokens' caps a turn and 'sampling.max_context' an episode"
    ),
    "top_p": _ONLY_TEMPERATURE,
    "top_k": _ONLY_TEMPERATURE,
    "min_p": _ONLY_TEMPERATURE,
    "repetition_penalty": _ONLY_TEMPERATURE,
    "generation_kwargs": _ONLY_TEMPERATURE,
    "vllm_structured_outputs_regex": _ONLY_TEMPERATURE,
    "reward_weights": _ONE_REWARD,
    "multi_objective_aggregation": _ONE_REWARD,
    "logging_steps": _LOGGED,
    "logging_strategy": _LOGGED,
    "logging_nan_inf_filter": _LOGGED,
    "load_best_model_at_end": _BEST,
    "metric_for_best_model": _BEST,
    "greater_is_better": _BEST,
    "resume_from_checkpoint": "--resume continues a run",
    "disable_tqdm": "a run has a line of its own, which --quiet leaves out",
}
"""Names of GRPOConfig that can't be set here, and why."""

_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": (
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
    ),
}  # fmt: skip
"""Values that TRL 1.16 itself only looks at in the middle of the first step."""

_RANGES: Mapping[str, tuple[float, float]] = {
    "beta": (0, math.inf),
    "num_iterations": (1, math.inf),
    "epsilon": (0, math.inf),
    "epsilon_high": (0, math.inf),
    "delta": (1, math.inf),
    "top_entropy_quantile": (0, 1),
    "vllm_gpu_memory_utilization": (0, 1),
    "max_grad_norm": (0, math.inf),
    "weight_decay": (0, math.inf),
}
"""Smallest and largest value of numbers that TRL takes as they are."""


def check_names(table: Mapping[str, Any]) -> None:
    """Refuse settings that are decided elsewhere.

    Raises:
        ConfigError: With where.
    """
    for name in table:
        if name in OWNED:
            raise ConfigError(f"{name} is set by the field {OWNED[name]!r}")
        if name in FIXED:
            raise ConfigError(f"{name} can't be set: {FIXED[name]}")


def check_value(name: str, value: Any) -> None:
    """Refuse a value of the right type that no run could go on with.

    Raises:
        ConfigError: With what is allowed.
    """
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        allowed = ", ".join(choice for choice in choices if isinstance(choice, str))
        raise ConfigError(f"[grpo]: {name} is one of {allowed}, got {value!r}")
    if not isinstance(value, int | float):
        return
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    if not low <= value <= high:  # a NaN is nowhere
        bounds = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        allowed = bounds if name in _RANGES else "a number"
        raise ConfigError(f"[grpo]: {name} is {allowed}, got {value!r}")
