"""Held-out evaluations as a run keeps them: one line each, small enough to compare any two."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from agentgym.statistics import paired_difference
from agentgym.train.monitors.evidence import LEVEL, NOTHING, Interval
from agentgym.train.monitors.json_lines import read_json_lines
from agentgym.types import Finite, Record


class HeldOutScore(Record):
    """What the policy achieved on tasks it isn't trained on, by `verdict.correct`.

    Never the training reward: a reward that is being gamed rises, and this does not.
    """

    step: int
    """Training steps done before it."""
    success: Finite
    """Share of scored episodes with the task solved."""
    low: Finite
    """Lower end of its 95 % interval."""
    high: Finite
    """Upper end of its 95 % interval."""
    n_episodes: int
    n_masked: int = 0
    """Episodes without a score, not in any figure."""
    reward: Finite
    """Mean reward of the same episodes, for comparison."""
    reward_low: Finite | None = None
    """Lower end of its 95 % interval, clustered by task; None in files of before it was kept."""
    reward_high: Finite | None = None
    turns: Finite
    truncated: Finite
    malformed: Finite
    seconds: Finite
    """Wall-clock time of the evaluation."""
    tasks: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Task id to solved and scored episodes; comparing evaluations task by task is what finds
    small differences."""
    best: bool = False
    """Whether it was the best so far; the checkpoint of that step is kept."""

    def text(self) -> str:
        """The score in a few words."""
        masked = f", {self.n_masked} masked" if self.n_masked else ""
        return (
            f"{self.success:.1%} solved ({self.low:.1%} to {self.high:.1%}; {self.n_episodes} "
            f"episodes{masked})"
        )


def gain(before: HeldOutScore, after: HeldOutScore, *, level: float = LEVEL) -> Interval:
    """How far success moved on the tasks that both evaluations scored, and how sure that is.

    The paired difference that `agentgym eval compare` has, at the level of the alarms.

    Args:
        before: An evaluation.
        after: Another.
        level: Chance that the interval leaves out the move.
    """
    shares = [
        {task: [solved / scored] for task, (solved, scored) in each.tasks.items() if scored}
        for each in (before, after)
    ]
    if len(shares[0].keys() & shares[1].keys()) < 2:
        return NOTHING
    found = paired_difference(*shares, level=1 - level)
    return Interval(found.mean, found.low, found.high, found.n_tasks)


def read_scores(path: Path) -> list[HeldOutScore]:
    """The evaluations in a file, oldest first, the last one of each step.

    None if there is no file; what a crash tore is left out. A resumed run may have gone back: what
    followed the step it went back to doesn't count.
    """
    found: list[HeldOutScore] = []
    for line in read_json_lines(path):
        try:
            score = HeldOutScore.model_validate(line)
        except ValidationError:
            continue
        while found and found[-1].step >= score.step:
            found.pop()
        found.append(score)
    return found
