"""Playing ToolWorld with policies, and averaging what came of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.spaces import AssistantSpace


def run_episode(env, policy, task_id=None):
    """Play one episode; the last step, the conversation and the verdict."""
    _, info = env.reset(options={"task_id": task_id} if task_id else None)
    while True:
        observation, reward, terminated, truncated, info = env.step(policy(env.messages, info))
        if terminated or truncated:
            return SimpleNamespace(
                observation=observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
                verdict=info.get("verdict"),
                running=env.running,
            )


def _random(messages, info):
    """A call that is valid by its schema, decided by task and turn."""
    seed = sum(map(ord, info["task_id"])) + len(messages)
    return AssistantSpace(info["tools"], seed=seed).sample()


def _averages(env, policy):
    ends = [run_episode(env, policy, task_id) for task_id in env.task_ids()]
    parts = [end.verdict.components for end in ends]
    return {
        "solved": sum(part["task_solved"] for part in parts) / len(ends),
        "grounded": sum(part["grounded"] for part in parts) / len(ends),
        "reward": sum(end.reward for end in ends) / len(ends),
    }


@pytest.fixture(scope="session")
def play():
    return run_episode


@pytest.fixture(scope="session")
def averages():
    """Mean task_solved, grounded and reward of a policy over all tasks of an environment."""
    return _averages


@pytest.fixture(scope="session")
def random_policy():
    return _random


@pytest.fixture(scope="session")
def sampled():
    """Two tasks of every family."""
    return ToolWorldEnv(tasks_per_family=2)
