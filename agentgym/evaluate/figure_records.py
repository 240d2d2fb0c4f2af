"""The figures of an evaluation, as they are told; `figures` works them out.

Every share has both denominators, and where too many episodes have no score a system has no single
accuracy, but the reason why.
"""

from __future__ import annotations

from pydantic import Field

from agentgym.errors import DataError
from agentgym.evaluate.result import ColumnKind
from agentgym.statistics import MAX_UNSCORED, Estimate
from agentgym.types import Finite, Record, Usage


class Share(Record):
    """How many of the episodes something is true of, with both denominators."""

    count: int
    n_scored: int
    n_total: int
    of_all: Estimate
    """Share of all episodes; one without a score counts as not."""
    of_scored: Estimate | None
    """Share of the episodes with a score; None where there are none."""


class Passes(Record):
    """pass@k and pass^k for one k."""

    k: int
    at: Estimate | None
    """pass@k over the tasks with k scored attempts; None where there are none."""
    hat: Estimate | None
    """pass^k over the same tasks."""
    at_of_all: Estimate | None
    """pass@k over the tasks with k attempts, of which one without a score counts as wrong; None
    where no task was attempted k times."""
    hat_of_all: Estimate | None
    n_left_out: int
    """Tasks with attempts, of which fewer than k have a score."""
    n_not_played: int
    """Tasks with attempts, but fewer than k: they are in no figure."""


class TurnBin(Record):
    """Episodes that took about the same number of turns."""

    low: int
    high: int
    """Inclusive."""
    success: Share


class Family(Record):
    """The tasks of one kind."""

    n_tasks: int
    success: Share
    completion: Share


class ColumnFigures(Record):
    """What came of one system's attempts."""

    name: str
    kind: ColumnKind
    model: str | None
    n_planned: int
    """Episodes that were asked for."""
    n_total: int
    """Episodes that were played."""
    n_scored: int
    n_tasks: int
    """Tasks among the episodes that were played."""
    errors: dict[str, int]
    """Episodes without a score, by failure class."""
    error_reasons: dict[str, int] = Field(default_factory=dict)
    """What the commonest of them said."""
    success: Share
    score: Estimate | None
    """Mean external score over the scored episodes."""
    reward: Estimate | None
    """Mean training reward over the episodes that have one, for comparison."""
    completion: Share
    """Episodes in which a final answer came. Not the same as success."""
    completed_wrong: int
    """Scored episodes with a final answer that was wrong."""
    unfinished: int
    """Scored episodes without a final answer."""
    malformed: Share
    """Episodes with a call that could not be read as it was."""
    truncations: dict[str, int]
    """Scored episodes that a limit cut, by limit."""
    passes: tuple[Passes, ...]
    families: dict[str, Family]
    by_turns: tuple[TurnBin, ...]
    gates: dict[str, Share]
    turns: Estimate | None
    """Turns per scored episode."""
    usage: dict[str, Usage]
    """Tokens and dollars by role, over all episodes, those without a score included."""
    cost_usd: float | None
    """US dollars; None where a role that was used has no price, or nobody counted a model's
    tokens."""
    cost_per_solved_usd: float | None
    """All that was spent, over the episodes that were solved; None with an unknown price or where
    none was solved."""
    seconds: Finite | None
    """Over all episodes; waiting in a queue is not counted. None where no episode says how long it
    took."""
    seconds_per_solved: float | None
    """All seconds over the episodes that were solved; None where none was."""
    median_seconds: float | None
    """Of the scored episodes."""
    p95_seconds: float | None
    """19 of 20 scored episodes took no longer."""

    @property
    def n_errors(self) -> int:
        """Episodes that were played and have no score."""
        return self.n_total - self.n_scored

    @property
    def n_missing(self) -> int:
        """Episodes that were asked for and not played."""
        return max(0, self.n_planned - self.n_total)

    @property
    def why_no_accuracy(self) -> str | None:
        """Why no single figure stands for the system; None where one does."""
        if self.n_total and self.n_errors <= MAX_UNSCORED * self.n_total:
            if self.n_missing <= MAX_UNSCORED * self.n_planned:
                return None
            return (
                f"{self.name}: only {self.n_total} of {self.n_planned} episodes were played, and "
                f"what was played first is seldom a random part: {self.success.of_all.mean:.1%} "
                "is of these alone; the same `agentgym eval run` plays the others"
            )
        if not self.n_scored:
            return f"{self.name}: none of {self.n_total} episodes has a score"
        classes = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        scored = self.success.of_scored
        assert scored is not None  # there are some
        return (
            f"{self.name}: {self.n_errors} of {self.n_total} episodes have no score ({classes}), "
            f"more than {MAX_UNSCORED:.0%}. What breaks is seldom a random part of the tasks, so "
            f"{self.success.of_all.mean:.1%} of all and {scored.mean:.1%} of the scored ones "
            "stand together; play the broken ones again"
        )

    def accuracy(self) -> float:
        """Success as a single number.

        Raises:
            DataError: If too many episodes have no score, or were not played, for one to say
                anything.
        """
        if self.why_no_accuracy is not None:
            raise DataError(self.why_no_accuracy)
        return self.success.of_all.mean


class EvaluationFigures(Record):
    """The figures of a whole result."""

    env_id: str
    split: str | None
    external_score: str
    n_tasks: int
    samples: int
    columns: tuple[ColumnFigures, ...]
    """The systems that have episodes."""
    without_episodes: tuple[str, ...] = ()
    """The systems that have none, and so no figures."""
