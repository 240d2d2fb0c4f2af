"""Policies by name."""

from __future__ import annotations

import sys
import types

import gymnasium
import pytest

from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.rollout.policies import named_policy, policies_of
from agentgym.testing.envs import CounterEnv


async def test_random_plays_any_env_by_the_seed():
    client = ScriptedClient(named_policy(CounterEnv(), "random", seed=0))
    engine = Engine(CounterEnv, client=client)
    requests = [EpisodeRequest(seed=k) for k in range(10)]
    first = {t.seed: t.messages async for t in engine.run(requests)}
    again = {t.seed: t.messages async for t in engine.run(requests)}
    assert first == again
    assert len({str(messages) for messages in first.values()}) > 5
    await engine.aclose()


@pytest.mark.parametrize("name", ["random", "rule", "oracle"])
def test_webshop_has_its_own(name):
    env = gymnasium.make("agentgym/WebShop-v0", num_products=50).unwrapped
    assert callable(named_policy(env, name, seed=0))


def test_unknown_policy_is_refused_with_those_there_are():
    assert set(policies_of(CounterEnv())) == {"random"}
    with pytest.raises(ConfigError, match="no policy 'wise'; it has random"):
        named_policy(CounterEnv(), "wise", seed=0)


def test_an_env_of_one_file_has_its_policies_in_it(monkeypatch):
    class MyEnv(CounterEnv):
        pass

    MyEnv.__module__ = "my_env"
    module = types.ModuleType("my_env")
    monkeypatch.setitem(sys.modules, "my_env", module)
    with pytest.raises(ConfigError, match="others go into a dict POLICIES in my_env"):
        named_policy(MyEnv(), "fixed", seed=0)
    module.POLICIES = {"fixed": lambda env, seed: lambda messages: str(seed)}
    assert named_policy(MyEnv(), "fixed", seed=3)(()) == "3"
