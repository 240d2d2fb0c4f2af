"""GRPO training of a policy on any agentgym environment: TRL's trainer on vLLM.

The only home of torch, transformers, trl and vllm. Names are imported at first use, because vLLM
loads `agentgym.train.live_weights` as a plug-in in every one of its processes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym.train.config import TrainConfig
    from agentgym.train.factory import environment_factory, task_rows
    from agentgym.train.final_messages import final_messages
    from agentgym.train.grpo import make_trainer, task_prompts, train
    from agentgym.train.live_weights import colocated_engine_for_cpu
    from agentgym.train.reward import episode_reward
    from agentgym.train.rollout import rollout_func
    from agentgym.train.served import ServedPolicy

__all__ = [
    "ServedPolicy",
    "TrainConfig",
    "colocated_engine_for_cpu",
    "environment_factory",
    "episode_reward",
    "final_messages",
    "make_trainer",
    "rollout_func",
    "task_prompts",
    "task_rows",
    "train",
]

_HOME_OF = {
    "ServedPolicy": "agentgym.train.served",
    "TrainConfig": "agentgym.train.config",
    "episode_reward": "agentgym.train.reward",
    "colocated_engine_for_cpu": "agentgym.train.live_weights",
    "environment_factory": "agentgym.train.factory",
    "final_messages": "agentgym.train.final_messages",
    "task_rows": "agentgym.train.factory",
    "make_trainer": "agentgym.train.grpo",
    "task_prompts": "agentgym.train.grpo",
    "rollout_func": "agentgym.train.rollout",
    "train": "agentgym.train.grpo",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "TrainConfig":  # which is plain data; the others need the stack
        from agentgym.train.versions import require_training_stack

        require_training_stack()
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
