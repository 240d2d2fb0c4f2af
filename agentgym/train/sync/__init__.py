"""Weights from the trainer to the servers that sample: a shared folder, LoRA adapters, or NCCL."""

from agentgym.train.sync.contract import InFlight, SyncListener, SyncReport, Weights, WeightSync
from agentgym.train.sync.folder import FolderSync
from agentgym.train.sync.info import server_command
from agentgym.train.sync.listeners import ClientListener

__all__ = [
    "ClientListener",
    "FolderSync",
    "InFlight",
    "SyncListener",
    "SyncReport",
    "WeightSync",
    "Weights",
    "server_command",
]
