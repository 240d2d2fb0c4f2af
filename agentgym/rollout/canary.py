"""A judge that changes in the middle of a run, noticed.

A hosted judge may be exchanged, requantised or overloaded while a run depends on it, and nothing
in the rewards says so. So every so many episodes the judge is asked again about a fixed set of
episodes whose verdicts are known, beside the run and never in its way. How far it is from what is
known is the drift.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from agentgym.deadline import Deadline
from agentgym.errors import ConfigError
from agentgym.judge import Judge, Score
from agentgym.metering import Meter, metered
from agentgym.naming import episode_named
from agentgym.types import Episode, Record, Usage

logger = logging.getLogger(__name__)

_AT_ONCE = 4


class CanaryCheck(Record):
    """One asking of the judge about the whole set."""

    after_episodes: int
    """Episodes finished when it began."""
    judged: int
    """Episodes of the set that were scored."""
    failed: int
    """Episodes of the set that the judge could not score."""
    error: float | None
    """Mean distance of the totals from the known ones; None if nothing was scored."""
    bias: float | None
    """Mean difference from the known totals; above 0 the judge has become lenient."""
    flipped: int
    """Episodes it holds solved that are known not to be, or the other way round."""
    drifted: bool
    """Whether that is more than is tolerated."""
    spent: dict[str, Usage] = Field(default_factory=dict)
    """What the check cost, by role."""

    def __str__(self) -> str:
        if self.error is None or self.bias is None:
            return f"the judge scored none of the {self.failed} canary episodes"
        return (
            f"the judge is {self.error:.3f} off on {self.judged} canary episodes (bias "
            f"{self.bias:+.3f}, {self.flipped} flipped, {self.failed} not scored)"
        )


class Canary:
    """A set of episodes with known verdicts, to ask the judge about every so often.

    Args:
        known: Episodes and what they are known to be worth. `correct=None` in a score says that
            whether it was solved isn't known.
        every: Episodes between two checks.
        tolerance: Mean distance of the totals from the known ones above which the judge counts as
            drifted; so does one that scores less than half of the set.
        stop: Whether drift stops the run.
        judge: Who is asked; None is the env's own judge. A judge that is put together from a
            program and a model names the model here.
        timeout_s: Longest time for one episode of the set, seconds.

    Raises:
        ConfigError: If the set is empty or a number is out of range.
    """

    def __init__(
        self,
        known: Iterable[tuple[Episode, Score]],
        *,
        every: int = 500,
        tolerance: float = 0.1,
        stop: bool = False,
        judge: Judge | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self._known = tuple(known)
        if not self._known:
            raise ConfigError("a canary needs at least one episode with a known verdict")
        if every < 1:
            raise ConfigError(f"every must be at least 1 episode, got {every}")
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ConfigError(f"tolerance must be at least 0, got {tolerance}")
        self.every = every
        self.tolerance = tolerance
        self.stop = stop
        self.judge = judge
        self.checks: list[CanaryCheck] = []
        """All so far, in order."""
        self._timeout_s = timeout_s
        self._finished = 0
        self._due_at = every
        self._checking = False

    @property
    def drifts(self) -> int:
        """Checks that found drift."""
        return sum(check.drifted for check in self.checks)

    def due(self) -> int | None:
        """Count a finished episode; how many there are if a check is due, which is to be run."""
        self._finished += 1
        if self._checking or self._finished < self._due_at:
            return None
        self._checking = True
        self._due_at = self._finished + self.every
        return self._finished

    async def check(self, judge: Any, *, after_episodes: int = 0) -> CanaryCheck:
        """Ask a judge about the whole set now.

        Args:
            judge: A `Judge`.
            after_episodes: Episodes that are finished.
        """
        try:
            found = await self._check(judge, after_episodes)
        finally:
            self._checking = False
        self.checks.append(found)
        if found.drifted:
            logger.warning("judge drift after %d episodes: %s", found.after_episodes, found)
        return found

    def facts(self) -> dict[str, Any]:
        """The state of affairs, for the metadata of a trace."""
        last = self.checks[-1]
        return {
            "checks": len(self.checks),
            "drifts": self.drifts,
            "drifted": last.drifted,
            "error": last.error,
        }

    def summary(self) -> str:
        """How often the judge was asked, what was found last, and what it all cost."""
        spent: Usage = sum(
            (usage for check in self.checks for usage in check.spent.values()), Usage(calls=0)
        )
        cost = "cost unknown" if spent.cost_usd is None else f"${spent.cost_usd:,.4f}"
        return (
            f"{len(self.checks)} checks, {self.drifts} found drift; at the last, "
            f"{self.checks[-1]} ({spent.calls:,} calls, {cost})"
        )

    # --- inside -------------------------------------------------------------------------------

    async def _check(self, judge: Any, after: int) -> CanaryCheck:
        name = f"canary {len(self.checks) + 1}"  # not by `after`, which depends on timing
        places = asyncio.Semaphore(_AT_ONCE)
        meter = Meter()
        with metered(meter):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._score(judge, episode, places, f"{name}.{n}"))
                    for n, (episode, _) in enumerate(self._known)
                ]
        scores = [task.result() for task in tasks]
        pairs = [
            (score, known)
            for score, (_, known) in zip(scores, self._known, strict=True)
            if score is not None
        ]
        off = [score.total - known.total for score, known in pairs]
        error = math.fsum(map(abs, off)) / len(off) if off else None
        return CanaryCheck(
            after_episodes=after,
            judged=len(pairs),
            failed=len(scores) - len(pairs),
            error=error,
            bias=math.fsum(off) / len(off) if off else None,
            flipped=sum(
                known.correct is not None and score.correct != known.correct
                for score, known in pairs
            ),
            drifted=error is None or error > self.tolerance or len(pairs) * 2 < len(scores),
            spent=dict(meter.by_role),
        )

    async def _score(
        self, judge: Any, episode: Episode, places: asyncio.Semaphore, name: str
    ) -> Score | None:
        """One score; None if the judge has none to give."""
        async with places:
            try:
                with episode_named(name):
                    async with Deadline(self._timeout_s):
                        score = await judge.score(episode)
            except Exception as error:  # a failed judgement is counted, and is never a number
                logger.info("%s: %s: %s", name, type(error).__name__, error)
                return None
        return score if isinstance(score, Score) else None
