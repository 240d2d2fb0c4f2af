"""How much at once, how long at most, and when to give up on a batch."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from agentgym.errors import RolloutStopped
from agentgym.trace import Trace
from agentgym.types import Finite, Record


class Limits(Record):
    """Concurrency, deadlines and budgets of an engine.

    Every clock runs only while its stage works on the episode: waiting for a slot is free, and so
    is a call's wait for its turn in the client (`max_concurrency`, rate limits).
    """

    concurrency: int = Field(default=64, ge=1)
    """Episodes taking turns at once (RUN)."""
    init_concurrency: int = Field(default=16, ge=1)
    """Environments made or reset at once (INIT)."""
    eval_concurrency: int = Field(default=64, ge=1)
    """Episodes judged at once (EVAL)."""
    init_timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest time to make and reset an environment, seconds."""
    episode_timeout_s: Finite = Field(default=1800.0, gt=0)
    """Longest time for all turns of an episode, seconds. Passing it between turns truncates the
    episode (`time`); in the middle of an env step it fails it (`infra`)."""
    turn_timeout_s: Finite = Field(default=600.0, gt=0)
    """Longest wait for one answer of the policy, or for one env step, seconds."""
    eval_timeout_s: Finite = Field(default=300.0, gt=0)
    """Longest time for a verdict, seconds; passing it masks the episode (`judge`)."""
    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Tokens the policy may generate per episode; at the limit the episode is truncated
    (`tokens`). None is no limit."""
    max_turns: int | None = Field(default=None, ge=1)
    """Assistant messages per episode, where that is tighter than the env's own cap."""
    max_failure_rate: Finite = Field(default=0.5, ge=0, le=1)
    """Share of episodes that may fail through no fault of the policy; above it the run stops."""
    min_failures: int = Field(default=20, ge=1)
    """Failures before that share is looked at; 1 with a rate of 0 stops at the first failure."""


class FailureWatch:
    """Counts failures that are not the policy's, and says when they are too many."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._finished = 0
        self._failures: Counter[str] = Counter()

    def count(self, trace: Trace) -> None:
        """Count a finished episode.

        Raises:
            RolloutStopped: If the failures are abnormally many.
        """
        self._finished += 1
        if trace.scored:
            return
        self._failures[trace.failure_class or "unknown"] += 1
        failed = self._failures.total()
        rate = failed / self._finished
        if failed < self._limits.min_failures or rate <= self._limits.max_failure_rate:
            return
        classes = ", ".join(f"{name} {count}" for name, count in self._failures.most_common())
        last = (trace.error or trace.verdict.reason or "no reason given").strip().splitlines()[-1]
        raise RolloutStopped(
            f"stopped: {failed} of {self._finished} episodes failed ({classes}), more than "
            f"max_failure_rate={self._limits.max_failure_rate:g}; the last one: {last}"
        )
