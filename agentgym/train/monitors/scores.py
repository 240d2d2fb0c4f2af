"""Held-out evaluations as a run keeps them: one line each, small enough to compare any two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from agentgym.statistics import t_quantile
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


def gain(before: HeldOutScore, after: HeldOutScore) -> Interval:
    """How far success moved on the tasks that both evaluations scored, and how sure that is.

    mean_t (s'_t - s_t) ± t·s/√n over tasks: paired, so that tasks' own difficulty drops out.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 4.
    """
    common = [t for t, (_, n) in before.tasks.items() if n and after.tasks.get(t, (0, 0))[1]]
    n = len(common)
    if n < 2:
        return NOTHING
    moves = [_share(after.tasks, task) - _share(before.tasks, task) for task in common]
    mean = math.fsum(moves) / n
    stderr = math.sqrt(math.fsum((m - mean) ** 2 for m in moves) / (n - 1) / n)
    # With no task moved at all there is still the doubt of one that might.
    half = max(t_quantile(n - 1, LEVEL) * stderr, 1 / n)
    return Interval(mean, mean - half, mean + half, n)


def _share(tasks: Mapping[str, tuple[int, int]], task: str) -> float:
    solved, scored = tasks[task]
    return solved / scored


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
