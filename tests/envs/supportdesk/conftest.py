import json

import pytest

from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.expert import expert


@pytest.fixture
def env():
    made = SupportDeskEnv()
    yield made
    made.close()


@pytest.fixture(scope="session")
def play():
    """Play a task with a policy and give the last info."""

    def run(env, policy, task_id, *, seed=0):
        _, info = env.reset(seed=seed, options={"task_id": task_id})
        while True:
            action = policy(env.messages, info)
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                return info

    return run


@pytest.fixture(scope="session")
def until():
    """Let the expert play until a condition on its next action holds; give that action."""

    def run(env, task_id, condition, *, seed=0):
        _, info = env.reset(seed=seed, options={"task_id": task_id})
        while True:
            action = expert(env.messages, info)
            if condition(action):
                return action
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                pytest.fail("the condition never held")

    return run


@pytest.fixture(scope="session")
def calls():
    """Whether an action calls a tool (of this name)."""

    def condition(name=None):
        def holds(action):
            if isinstance(action, str):
                return False
            return name in (None, action["tool_calls"][0]["function"]["name"])

        return holds

    return condition


@pytest.fixture(scope="session")
def call():
    """An action that calls one tool."""

    def make(name, **arguments):
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }

    return make
