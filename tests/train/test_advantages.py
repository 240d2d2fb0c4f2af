"""What a masked episode does to its siblings: nothing, down to TRL's own advantages (case B15)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.errors import JudgeError
from agentgym.judge import Score, Scoring
from agentgym.judges.episodes import episode_from_messages
from agentgym.rollout import EpisodeRequest
from agentgym.trace import Trace
from agentgym.train.rollout import Rollout, episode_reward
from agentgym.types import Episode, Task, Turn

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


class Answers(Rollout):
    """A rollout whose episodes were played already; their answers are the tasks' names."""

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__(
            tiny_policy.ENV_ID,
            env_kwargs={},
            max_turn_tokens=8,
            seed=0,
            traces=None,
            check_every=1,
            limits=None,
            template_kwargs={},
            seeded_sampling=True,
        )
        self.answers = answers
        self.output: dict[str, Any] = {}

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        self.output = super().__call__(prompts, trainer)
        return self.output

    def _prepare(self, trainer: Any) -> Any:
        return object()

    def _after_sync(self, trainer: Any) -> None:
        """There is no sampler."""

    def _play(
        self, requests: Sequence[EpisodeRequest], trainer: Any, *, more: bool = False
    ) -> list[Trace]:
        scoring = Scoring(judge=Judged(), reward_range=(-10.0, 10.0))
        return [asyncio.run(judged(scoring, answer)) for answer in self.answers]


async def judged(scoring: Scoring, answer: str) -> Trace:
    message = {"role": "assistant", "content": answer}
    episode = episode_from_messages(
        [{"role": "user", "content": "say"}, message], task=Task(task_id="guess/0")
    )
    turn = Turn(
        index=0, message=message, prompt_ids=(2, 7), completion_ids=(9, 3), logprobs=(-1.0, -0.5)
    )
    return Trace(
        trace_id=answer,
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        terminated=True,
        verdict=await scoring.verdict(episode),
        turns=(turn,),
    )


def advantages(folder: Path, answers: Sequence[str], **config: Any) -> tuple[list[float], Answers]:
    """What TRL makes of groups of four episodes with these answers."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rollout = Answers(answers)
    args = GRPOConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        report_to=[],
        num_generations=4,
        per_device_train_batch_size=len(answers),
        max_completion_length=8,
        **config,
    )
    tokenizer = tiny_policy.make_tokenizer()
    prompts = [{"prompt": "guess/0"} for _ in answers]
    trainer = GRPOTrainer(
        model=str(tiny_policy.save_policy(folder / "model")),
        processing_class=tokenizer,
        reward_funcs=episode_reward,
        train_dataset=Dataset.from_list(prompts),
        args=args,
        rollout_func=rollout,
    )
    batch = trainer._generate_and_score_completions(prompts)
    return batch["advantages"].tolist(), rollout


def test_a_masked_sibling_neither_votes_nor_shifts_the_baseline(tmp_path: Path) -> None:
    """By hand: 1, 3, 2 have mean 2 and standard deviation 1; with a 0 they would have 1.5.

    One scored episode alone has no baseline, so the second group teaches nothing.
    """
    answers = ["1", "3", "2", "?", "5", "?", "?", "?"]
    found, rollout = advantages(tmp_path, answers)
    scaled = 1 / (1 + 1e-4)
    assert found == pytest.approx([-scaled, scaled, 0, 0, 0, 0, 0, 0])
    assert rollout.output["reward"] == [1.0, 3.0, 2.0, None, 5.0, None, None, None]
    assert [any(mask) for mask in rollout.output["env_mask"]] == [a != "?" for a in answers]


def test_a_real_zero_votes(tmp_path: Path) -> None:
    """By hand: 1, 3, 2, 0 have mean 1.5; unscaled, so that only the mean counts."""
    found, _ = advantages(tmp_path, ["1", "3", "2", "0"], scale_rewards="none")
    assert found == pytest.approx([-0.5, 1.5, 0.5, -1.5])
    masked, _ = advantages(tmp_path / "masked", ["1", "3", "2", "?"], scale_rewards="none")
    assert masked == pytest.approx([-1.0, 1.0, 0.0, 0.0])
