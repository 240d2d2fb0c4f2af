"""The environment's README says what is so."""

import inspect
import re
from pathlib import Path

import pytest

from agentgym.envs.webshop import env as env_module
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.policies import rule_policy

CARD = Path(env_module.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def card():
    return CARD.read_text(encoding="utf-8")


def test_example_runs(card):
    (example,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names = {}
    exec(example, names)
    assert "Total results" in names["obs"][-1]["content"]


def test_every_parameter_is_described(card):
    table = card.split("## Parameters")[1].split("## Reward")[0]
    parameters = set(inspect.signature(WebShopEnv).parameters) - {"render_mode"}
    assert parameters <= set(re.findall(r"`(\w+)`", table))


def test_every_reward_component_is_named(card, make_env, play):
    env = make_env()
    play(env, rule_policy, "webshop/human/0")
    components = set(env.outcome()["details"]) | {"task_score"}
    assert components <= set(re.findall(r"`(\w+)`", card))
