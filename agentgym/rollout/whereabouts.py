"""Where an episode is at the moment, so that a run that is stuck can say so.

One small mutable object per episode in flight, written by whoever moves the episode on and read by
whoever wants to know: progress, metrics, the watchdog, `Engine.status()`. Writing costs two
attributes; nothing is added up until somebody asks.
"""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from agentgym.trace import Stage

Waiting: TypeAlias = Literal["slot", "policy", "env", "judge", "siblings", "retry"]
"""What an episode waits for: a slot of its stage, an answer of the policy, the environment (its
making, reset, step or end), a verdict, the other rollouts of its group, the pause before it is
played again."""


class Whereabouts:
    """One episode's stage and what it waits for.

    Args:
        name: The episode's, as in recordings: `task@seed.sample`.
    """

    __slots__ = ("attempt", "began", "name", "node", "replica", "since", "stage", "turn", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stage: Stage = "init"
        self.waiting: Waiting = "slot"
        self.since = time.monotonic()
        """When this wait began, on `time.monotonic`."""
        self.began = self.since
        """When the episode began, on `time.monotonic`."""
        self.turn = 0
        """0-based turn it is in."""
        self.attempt = 0
        """0 for the first time it is played."""
        self.replica: str | None = None
        """The policy's replica that it was last answered by, where there are several."""
        self.node: str | None = None
        """The node and process that plays it, where there are several."""

    def moves(self, stage: Stage, waiting: Waiting) -> None:
        """The episode now waits for something else."""
        self.stage = stage
        self.waiting = waiting
        self.since = time.monotonic()

    def follow(self, stage: Stage, waiting: Waiting, *, waited_s: float) -> None:
        """Take on what another process says of the episode.

        Args:
            stage: Its stage.
            waiting: What it waits for.
            waited_s: For how long it has waited for that, seconds.
        """
        since = time.monotonic() - waited_s
        same = (stage, waiting) == (self.stage, self.waiting)
        if not same or since - self.since > 1.0:  # less is how long the news took
            self.since = since
        self.stage = stage
        self.waiting = waiting

    @property
    def waited_s(self) -> float:
        """Seconds since it began to wait for this."""
        return time.monotonic() - self.since

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began
