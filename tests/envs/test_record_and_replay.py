"""A recorded simulator plays a plain Gymnasium loop again, without engine and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import agentgym  # noqa: F401  # registers the environments
from agentgym.clients import RecordingClient, ReplayClient, ScriptedClient
from agentgym.judge import Score


class _NoJudge:
    inline = True

    async def score(self, episode: Any) -> Score:
        return Score(total=0.0)


def rooms(messages: list[dict[str, Any]]) -> str:
    """Answers any tool with an error of its own, so that no two calls look the same."""
    return json.dumps({"answer": {"error": f"Closed today ({len(str(messages))})."}, "changes": []})


def talk(messages: list[dict[str, Any]]) -> str:
    said = f"I have {sum(m['role'] == 'assistant' for m in messages)} questions left."
    return json.dumps({"say": said, "end": "no"})


def play(env_id: str, client: Any, judge: Any) -> list[Any]:
    env = gym.make(env_id, simulator=client, judge=judge, max_turns=4)
    heard: list[Any] = []
    for seed in (1, 2):
        opening, _ = env.reset(seed=seed)
        heard.append(opening)
        env.action_space.seed(seed)
        for turn in range(3):
            action = env.action_space.sample() if "ToolWorld" in env_id else f"Question {turn}?"
            messages, *_ = env.step(action)
            heard.append(messages)
    env.close()
    return heard


@pytest.mark.parametrize(
    ("env_id", "script", "judge"),
    [
        ("agentgym/ToolWorld-v0", rooms, _NoJudge()),
        ("agentgym/SupportDesk-v0", talk, None),
    ],
)
def test_a_recorded_simulator_says_the_same_again(
    env_id: str, script: Any, judge: Any, tmp_path: Path
) -> None:
    model = ScriptedClient(script)
    path = tmp_path / "calls.jsonl"
    first = play(env_id, RecordingClient(model, path, role="simulator"), judge)
    assert model.calls >= 6
    assert play(env_id, ReplayClient(path, role="simulator"), judge) == first
