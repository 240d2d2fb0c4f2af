"""Weights from the trainer to the servers that sample: a shared folder, LoRA adapters, or NCCL."""

from agentgym.train.sync.contract import InFlight, SyncListener, SyncReport, Weights, WeightSync
from agentgym.train.sync.folder import FolderSync
from agentgym.train.sync.info import server_command
from agentgym.train.sync.listeners import ClientListener
from agentgym.train.sync.lora import LoraSync
from agentgym.train.sync.nccl import NcclSync
from agentgym.train.sync.staleness import Admission, Staleness, Taken, oldest_version

__all__ = [
    "Admission",
    "ClientListener",
    "FolderSync",
    "InFlight",
    "LoraSync",
    "NcclSync",
    "Staleness",
    "SyncListener",
    "SyncReport",
    "Taken",
    "WeightSync",
    "Weights",
    "oldest_version",
    "server_command",
]
