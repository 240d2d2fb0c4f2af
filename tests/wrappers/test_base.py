"""One hook, both faces."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit, TransformReward

from agentgym.errors import ConfigError, EnvFault
from agentgym.testing.envs import CounterEnv, SlowCounterEnv
from agentgym.testing.messages import calling, tool_call
from agentgym.wrappers import AgentWrapper

ADD = calling(tool_call("add", amount=1))


class Doubling(AgentWrapper):
    """Doubles what is added, shouts what is observed and counts what it saw."""

    def __init__(self, env):
        super().__init__(env)
        self.seen = []

    def on_reset(self, seed, options):
        return {"task_id": "counter/4", **(options or {})}

    def after_reset(self, observation, info):
        self.seen.append("reset")
        return observation, {**info, "wrapped": True}

    def on_step(self, action):
        return calling(tool_call("add", amount=2))

    def after_step(self, result):
        self.seen.append("step")
        observation, *rest = result
        return ({**observation[0], "content": observation[0]["content"].upper()}, *rest)

    def on_error(self, error):
        self.seen.append(type(error).__name__)


@pytest.mark.parametrize("env_class", [CounterEnv, SlowCounterEnv])
@pytest.mark.parametrize("between", [lambda e: e, OrderEnforcing, lambda e: TimeLimit(e, 99)])
async def test_hooks_work_on_both_faces(env_class, between):
    plain, through_async = Doubling(between(env_class())), Doubling(between(env_class()))
    expected = plain.reset(seed=1)
    assert expected[1]["task_id"] == "counter/4"
    assert expected[1]["wrapped"]
    assert await through_async.areset(seed=1) == expected
    result = plain.step(ADD)
    assert result[0]["content"] == "THE COUNTER STANDS AT 2."
    assert await through_async.astep(ADD) == result
    assert plain.seen == through_async.seen == ["reset", "step"]


async def test_nothing_in_between_is_skipped_by_the_async_face():
    """A Gymnasium wrapper has no async face; its own steps run, in a thread."""
    env = AgentWrapper(TransformReward(TimeLimit(CounterEnv(), 2), lambda r: r + 10))
    await env.areset(seed=0)
    assert (await env.astep(ADD))[1] == 10.0
    assert (await env.astep(ADD))[3] is True


def test_pass_through_changes_nothing():
    plain, wrapped = CounterEnv(), AgentWrapper(CounterEnv())
    assert wrapped.reset(seed=5) == plain.reset(seed=5)
    assert wrapped.step(ADD) == plain.step(ADD)
    assert wrapped.observation_space == plain.observation_space
    assert wrapped.action_space == plain.action_space


async def test_truncation_reaches_the_env_and_the_hooks():
    for between in (lambda e: e, OrderEnforcing):
        env = AgentWrapper(between(CounterEnv()))
        env.reset(seed=0)
        env.step(ADD)
        assert env.truncate("tokens")[4]["truncation_reason"] == "tokens"
        await env.areset(seed=0)
        assert (await env.atruncate("time"))[4]["truncation_reason"] == "time"


async def test_errors_are_shown_to_the_hook_and_go_on():
    env = Doubling(CounterEnv())

    def crash():
        raise RuntimeError("disk full")

    env.reset()
    env.unwrapped.toolbox.find("add").function = lambda amount: crash()
    with pytest.raises(EnvFault):
        env.step(ADD)
    await env.areset()
    with pytest.raises(EnvFault):
        await env.astep(ADD)
    with pytest.raises(ConfigError):
        env.reset(options={"nonsense": 1})
    with pytest.raises(ConfigError):
        await env.areset(options={"nonsense": 1})
    faults = ["EnvFault", "reset", "EnvFault", "ConfigError", "ConfigError"]
    assert env.seen == ["reset", *faults]


def test_other_envs_cannot_be_cut_short():
    env = AgentWrapper(gymnasium.make("CartPole-v1"))
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="only an AgentEnv"):
        env.truncate("tokens")
