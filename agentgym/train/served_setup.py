"""From a `TrainConfig` to the policy on its servers, and to the command that starts them."""

from __future__ import annotations

from agentgym.train.config import TrainConfig
from agentgym.train.served import ServedPolicy
from agentgym.train.sync import FolderSync, LoraSync, NcclSync, WeightSync, server_command


def served_policy(config: TrainConfig, *, max_context: int) -> ServedPolicy | None:
    """The policy on a run's servers; None for a colocated one.

    Args:
        config: The run.
        max_context: Tokens of a whole episode, which the servers must have room for.

    Raises:
        ConfigError: If a URL is none.
    """
    if not config.policy.servers:
        return None
    return ServedPolicy(
        config.policy.servers,
        sync=weight_sync(config),
        model=config.policy.served_name,
        max_context=max_context,
        service=config.policy.service,
    )


def weight_sync(config: TrainConfig) -> WeightSync:
    """What brings a run's weights to its servers."""
    if config.policy.sync == "nccl":
        return NcclSync()
    assert config.policy.sync_folder is not None  # the config has seen to it, as to the next one
    if config.policy.sync == "folder":
        return FolderSync(config.policy.sync_folder)
    assert config.lora is not None
    return LoraSync(config.policy.sync_folder, rank=config.lora.rank)


def command_for_servers(config: TrainConfig) -> str:
    """The command that starts a server for a run, as far as the config tells."""
    import torch

    on_cpu = not torch.cuda.is_available()
    return server_command(
        config.model,
        kind=config.policy.sync,
        served_name=config.policy.served_name,
        dtype="float32" if on_cpu else "bfloat16",
        max_context=config.sampling.max_context,
        rank=config.lora.rank if config.lora is not None else 16,
        cpu=on_cpu,
    )
