"""Weights from the trainer to the servers that sample: a shared folder, LoRA adapters, or NCCL."""

from agentgym.train.sync.contract import InFlight, SyncListener, SyncReport, Weights, WeightSync

__all__ = ["InFlight", "SyncListener", "SyncReport", "WeightSync", "Weights"]
