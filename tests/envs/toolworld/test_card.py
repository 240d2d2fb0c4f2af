"""The environment's README says what is so."""

import inspect
import re
from pathlib import Path

import pytest

from agentgym.envs.toolworld import env as env_module
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.policies import POLICIES
from agentgym.envs.toolworld.templates import SPLITS

CARD = Path(env_module.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def card():
    return CARD.read_text(encoding="utf-8")


def test_the_examples_run(card):
    first, domain = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names = {}
    exec(first, names)
    assert names["terminated"]
    assert "list_loans" in names["names"]
    names = {}
    exec(domain, names)
    assert names["ticket"] == {"ticket_id": "tk1001", "film_id": "fm2", "guest": "Ada"}
    assert names["world"].state["film"]["fm2"]["seats"] == 1


def test_every_parameter_is_described(card):
    table = card.split("## Parameters")[1].split("## Domains")[0]
    parameters = set(inspect.signature(ToolWorldEnv).parameters) - {"render_mode"}
    assert parameters <= set(re.findall(r"`(\w+)`", table))


def test_every_reward_component_is_named(card, sampled, play):
    end = play(sampled, POLICIES["none"](sampled, 0), sampled.task_ids()[0])
    assert set(end.verdict.components) <= set(re.findall(r"`(\w+)`", card))


@pytest.mark.thorough
def test_domains_tools_and_splits_are_those_of_the_environment(card):
    env = ToolWorldEnv()
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.*?)\| (.*?)\| (.*?)\|$", card, re.MULTILINE)
    said = {
        name: (int(tools), *(set(re.findall(r"\w+", cell)) for cell in cells))
        for name, tools, *cells in rows
    }
    found = {
        catalogue.name: (
            len(catalogue.domain.actions),
            *({t.name for t in catalogue.templates if t.split == split} for split in SPLITS),
        )
        for catalogue in env.tasks.catalogues
    }
    assert said == found
    text = " ".join(card.split())
    tools = sum(count for count, *_ in found.values())
    assert f"Eight domains with {tools} tools, {len(env.tasks.families)} kinds" in text
    assert f"{len(env.task_ids())} tasks by default" in text
    references = [
        env.tasks.draw(family, n).reference
        for family in env.tasks.families.values()
        for n in range(env.tasks.per_family)
    ]
    changing = sum(bool(reference.changes) for reference in references)
    nothing = sum(not reference.answer.values for reference in references)
    assert f"{changing} want the world changed and {nothing} have `none`" in text


@pytest.mark.e2e
def test_baselines_are_those_measured(card, sampled, averages, random_policy):
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+)% \| ([\d.]+)% \| (-?[\d.]+) \|$", card, re.MULTILINE
    )
    said = {name: tuple(map(float, figures)) for name, *figures in rows}
    assert set(said) == {*POLICIES, "random"}
    assert f"({len(sampled.task_ids())} tasks" in card
    for name, figures in said.items():
        policy = random_policy if name == "random" else POLICIES[name](sampled, 0)
        found = averages(sampled, policy)
        rounded = (100 * found["solved"], 100 * found["grounded"], found["reward"])
        assert tuple(round(x, d) for x, d in zip(rounded, (1, 1, 2), strict=True)) == figures
