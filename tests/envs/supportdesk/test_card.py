"""The environment's README says what is so."""

import inspect
import json
import re
from pathlib import Path

import pytest

from agentgym.envs.supportdesk import env as env_module
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.gates import DEFAULT_GATES
from agentgym.envs.supportdesk.tasks.table import FAMILIES, TASKS_PER_FAMILY

CARD = Path(env_module.__file__).with_name("README.md")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "supportdesk.json"


@pytest.fixture(scope="module")
def card():
    return CARD.read_text(encoding="utf-8")


def section(card, title):
    return card.split(f"## {title}\n")[1].split("\n## ")[0]


def test_example_runs(card):
    example = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    names = {}
    exec(example, names)
    assert "@example.com" in names["obs"][-1]["content"]


def test_the_example_of_a_hosted_user_makes_an_environment(card):
    example = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[1]
    names = {}
    exec(f"import gymnasium as gym\nimport agentgym\n{example}", names)
    assert not names["env"].unwrapped.simulator.inline


def test_every_parameter_is_described(card):
    parameters = set(inspect.signature(SupportDeskEnv).parameters) - {"render_mode"}
    assert parameters <= set(re.findall(r"`(\w+)`", section(card, "Parameters")))


def test_every_tool_is_described_with_its_parameters(card):
    listed = dict(re.findall(r"`(\w+)\(([\w, ]*)\)`", section(card, "Actions")))
    specs = SupportDeskEnv().toolbox.specs
    assert set(listed) == {spec["function"]["name"] for spec in specs}
    for spec in specs:
        function = spec["function"]
        given = [name.strip() for name in listed[function["name"]].split(",")]
        assert given == list(function["parameters"]["properties"])


def test_every_component_and_gate_is_described_with_its_cost(card):
    reward = section(card, "Reward")
    rows = dict(re.findall(r"^\| (`[^|]*`) \|[^|]*\| ([^|]*) \|$", reward, re.MULTILINE))
    costs = {}
    for names, cost in rows.items():
        costs.update(zip(re.findall(r"`(\w+)`", names), cost.split(", ") * 9, strict=False))
    for gate in DEFAULT_GATES:
        assert costs[gate.name] == ("floor" if gate.floor else f"{gate.penalty:g}")
    assert [costs[name] for name in ("task_solved", "state", "communicated")] == [
        "0.7",
        "0.2",
        "0.1",
    ]


def test_families_are_listed_by_split_with_their_numbers(card):
    text = section(card, "Tasks and splits")
    table = SupportDeskEnv().table
    for split, families in FAMILIES.items():
        (row,) = re.findall(rf"^\| {split} \| (.*) \|$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(families)
        for family, mark in re.findall(r"`(\w+)`([¹²³]?)", row):
            assert mark == _mark(table, family), family
    count = sum(map(len, FAMILIES.values()))
    assert f"{len(table.tasks)} tasks of {count} families, {TASKS_PER_FAMILY} each" in text
    assert f"{len(table.rows['customers'])}\ncustomers, {len(table.rows['orders'])} orders" in text


def _mark(table, family):
    references = [t.reference for t in table.tasks.values() if t.metadata["family"] == family]
    if any(reference.transfer for reference in references):
        return "³"
    if any(len(reference.outcomes) > 1 for reference in references):
        return "²"
    refused = any(told.refusal for told in references[0].told)
    return "¹" if refused and references[0].changes_nothing else ""


def test_baselines_are_those_of_the_committed_run(card):
    scores = json.loads(RESULTS.read_text(encoding="utf-8"))["scores"]
    rows = re.findall(r"^\| `(\w+)` \| (.*%.*) \|$", section(card, "Baselines"), re.MULTILINE)
    assert [name for name, _ in rows] == list(scores)
    for name, cells in rows:
        values = [cell.strip().replace("−", "-") for cell in cells.split("|")]
        for split, success, reward in zip(FAMILIES, values[:3], values[3:], strict=True):
            assert float(success.removesuffix(" %")) == round(
                100 * scores[name][split]["success"], 1
            )
            assert float(reward) == pytest.approx(scores[name][split]["reward"], abs=0.00501)


def test_speeds_are_those_of_the_committed_run(card):
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = dict(re.findall(r"^\| ([a-z ,]+) \| ([\d.]+) \|$", section(card, "Speed"), re.MULTILINE))
    assert {name: float(ms) for name, ms in rows.items()} == {
        name: pytest.approx(ms, abs=0.00501) for name, ms in result["median_ms"].items()
    }
    assert f"{len(SupportDeskEnv().table.image) / 1024:.0f} KiB" in card
    assert f"once per process in {result['loading_s']:.1f} s" in card
