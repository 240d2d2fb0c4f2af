"""A batch of episodes between the rollout engine and the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.trace import Trace
from agentgym.train.rows import TrainingRow


@dataclass(frozen=True)
class PlayedBatch:
    """What one process played for one training step, or for one evaluation; `B` episodes.

    The rollouts of a group share `Trace.group`. Shape of the sequences: `(B,)`, same order.
    """

    step: int
    """Training steps done before it."""
    training: bool
    """Whether it is trained on."""
    traces: Sequence[Trace]
    rows: Sequence[TrainingRow]
    rewards: Sequence[float | None]
    """What the trainer gets; None where masked."""
    seconds: float
    """Wall-clock time of the rollout."""


BatchListener: TypeAlias = Callable[[PlayedBatch], None]
"""Told of each batch before it is trained on."""
