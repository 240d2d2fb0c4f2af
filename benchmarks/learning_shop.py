"""The tiny policy's shop in the variants that `benchmarks/learning.py` trains on.

Each changes one thing: how hard the shop is, whether gates act, and what becomes of judgements that
fail. Importing this registers them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Judge, Score
from agentgym.types import Episode

ENV_ID = "benchmarks/LearningShop-v0"


@cache
def _luck(seed: int) -> random.Random:
    """One for all copies of the shop, or those would fail together."""
    return random.Random(seed)


class FailingJudge:
    """A judge some of whose judgements fail, at random.

    Args:
        judge: Whose verdict it is where it doesn't fail.
        rate: Share of judgements that fail, of those that can.
        from_turns: Only episodes of so many turns or more can, as with a judge whose context is
            too short for them.
        seed: Fixes which.
        scored_zero: Whether a failure passes for reward 0, as it silently does where exceptions
            become numbers; otherwise it is raised, and the episode is masked.
    """

    inline = True

    def __init__(
        self, judge: Judge, *, rate: float, from_turns: int, seed: int, scored_zero: bool
    ) -> None:
        self._judge = judge
        self._rate = rate
        self._from_turns = from_turns
        self._luck = _luck(seed)
        self._scored_zero = scored_zero

    async def score(self, episode: Episode) -> Score:
        """Score one episode, or fail."""
        score = await self._judge.score(episode)
        if len(episode.turns) < self._from_turns or self._luck.random() >= self._rate:
            return score
        if self._scored_zero:
            return score.model_copy(update={"total": 0.0})
        raise JudgeError("the judge gave no verdict")


class LearningShop(WebShopEnv):
    """The shop, with one thing changed.

    Args:
        harder: Whether only those tasks are left that ask for an option, which takes a click more.
        failing: Share of judgements that fail, of those of episodes with `failing_from` turns or
            more.
        failing_from: See there; 0 is all of them.
        failing_seed: Fixes which.
        failed: What becomes of those: `masked`, or `zero`.
        **kwargs: See `WebShopEnv`.
    """

    def __init__(
        self,
        *,
        harder: bool = False,
        failing: float = 0.0,
        failing_from: int = 0,
        failing_seed: int = 0,
        failed: str = "masked",
        **kwargs: Any,
    ) -> None:
        if failed not in ("masked", "zero"):
            raise ConfigError(f"failed is 'masked' or 'zero', got {failed!r}")
        super().__init__(**kwargs)
        self._harder = harder
        if failing:
            judge = FailingJudge(
                self.scoring.judge,
                rate=failing,
                from_turns=failing_from,
                seed=failing_seed,
                scored_zero=failed == "zero",
            )
            self.scoring = self.scoring.model_copy(update={"judge": judge})

    def task_ids(self) -> Sequence[str]:
        """Ids of the tasks of this split, in order."""
        ids = super().task_ids()
        return [task for task in ids if self.goal_of(task).options] if self._harder else ids


gymnasium.register(ENV_ID, entry_point=LearningShop, disable_env_checker=True)
