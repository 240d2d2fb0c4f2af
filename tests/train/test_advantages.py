"""What a masked episode does to its siblings: nothing, down to TRL's own advantages (case B15)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from played import PlayedRollout, batch_of, played, played_trainer

from agentgym.errors import JudgeError
from agentgym.judge import Score, Scoring
from agentgym.judges.episodes import episode_from_messages
from agentgym.trace import Trace
from agentgym.train.config_reading import read_config
from agentgym.train.grpo_args import grpo_config
from agentgym.types import Episode, Task

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and torch's own
]


class Judged:
    """A judge that gives each episode the score that its answer names, and fails on "?"."""

    inline = True

    async def score(self, episode: Episode) -> Score:
        if episode.answer == "?":
            raise JudgeError("no verdict")
        return Score(total=float(episode.answer or ""))


def judged(answer: str) -> Trace:
    scoring = Scoring(judge=Judged(), reward_range=(-10.0, 10.0))
    messages = [{"role": "user", "content": "say"}, {"role": "assistant", "content": answer}]
    episode = episode_from_messages(messages, task=Task(task_id="guess/0"))
    return played(None, verdict=asyncio.run(scoring.verdict(episode)))


def advantages(
    folder: Path, answers: Sequence[str], **config: Any
) -> tuple[list[float], PlayedRollout]:
    """What TRL makes of groups of four episodes with these answers."""
    rollout = PlayedRollout()
    trainer = played_trainer(folder, rollout, rows=len(answers), **config)
    batch = batch_of(trainer, rollout, [judged(answer) for answer in answers])
    return batch["advantages"].tolist(), rollout


def test_a_masked_sibling_neither_votes_nor_shifts_the_baseline(tmp_path: Path) -> None:
    """By hand: 1, 3, 2 have mean 2 and standard deviation 1; with a 0 they would have 1.5.

    One scored episode alone has no baseline, so the second group teaches nothing.
    """
    answers = ["1", "3", "2", "?", "5", "?", "?", "?"]
    found, rollout = advantages(tmp_path, answers)
    scaled = 1 / (1 + 1e-4)
    assert found == pytest.approx([-scaled, scaled, 0, 0, 0, 0, 0, 0])
    assert rollout.output["reward"] == [1.0, 3.0, 2.0, None, None, None, None, None]
    trained = [True, True, True, False, False, False, False, False]
    assert [any(mask) for mask in rollout.output["env_mask"]] == trained


def test_a_real_zero_votes(tmp_path: Path) -> None:
    """By hand: 1, 3, 2, 0 have mean 1.5; unscaled, so that only the mean counts."""
    found, _ = advantages(tmp_path, ["1", "3", "2", "0"], scale_rewards="none")
    assert found == pytest.approx([-0.5, 1.5, 0.5, -1.5])
    masked, _ = advantages(tmp_path / "masked", ["1", "3", "2", "?"], scale_rewards="none")
    assert masked == pytest.approx([-1.0, 1.0, 0.0, 0.0])


def test_algorithm_sets_what_trl_takes_and_an_own_setting_wins(tmp_path: Path) -> None:
    def of(algorithm: str | None, **grpo: Any) -> Any:
        values = {"env": "e", "model": "m", "out": tmp_path, **grpo}
        return grpo_config(read_config({**values, "objective.algorithm": algorithm}))

    assert (of("dapo").epsilon, of("dapo").epsilon_high) == (0.2, 0.28)
    assert of("grpo").epsilon_high is None
    assert of("dapo", grpo={"epsilon_high": 0.4}).epsilon_high == 0.4
    assert of(None).loss_type == "dapo"  # TRL's own default, which docs/objective.md names
