"""Episodes of an untrained policy as they would have been played, without a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentgym.evaluate.base_episodes import BaseEpisode

Rate = Callable[[random.Random], float]
"""Draws a task's success rate."""


def beta(a: float, b: float) -> Rate:
    return lambda rng: rng.betavariate(a, b)


def always(p: float) -> Rate:
    return lambda rng: p


@dataclass(frozen=True)
class BaseRun:
    """What a base policy is like; by default there is nothing wrong with training it."""

    rate: Rate = beta(4, 6)  # noqa: RUF009  # a function
    tasks: int = 60
    samples: int = 8
    capped: float = 0.02
    """Share of episodes that run out of turns without an answer."""
    cut_off: float = 0.0
    malformed: float = 0.02
    masked: float = 0.0
    copies: bool = False
    """Whether all rollouts of a task say the same."""
    hacked: float = 0.0
    """Share of the failed episodes that are paid in full all the same."""
    family: str | None = None
    seed: int = 0

    def episodes(self) -> list[BaseEpisode]:
        rng = random.Random(self.seed)
        found = []
        for task in range(self.tasks):
            p = self.rate(rng)
            for sample in range(self.samples):
                capped = rng.random() < self.capped
                correct = rng.random() < p and not capped
                masked = rng.random() < self.masked
                score = None if masked else float(correct)
                paid = 1.0 if rng.random() < self.hacked else float(correct)
                found.append(
                    BaseEpisode(
                        task_id=f"{self.family or 'task'}/{task}",
                        reward=None if masked else paid - 0.5 * capped,
                        correct=None if masked else correct,
                        completed=not capped,
                        score=score,
                        unanswered_at_cap=capped,
                        cut_off=rng.random() < self.cut_off,
                        malformed=rng.random() < self.malformed,
                        failure_class="judge" if masked else None,
                        turns=5,
                        kinds={} if self.family is None else {"family": self.family},
                        said="same" if self.copies else f"{task}/{sample}",
                    )
                )
        return found
