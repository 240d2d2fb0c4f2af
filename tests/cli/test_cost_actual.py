"""`agentgym cost actual` and `calibrate` on a run with a policy that is a real HTTP endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest

from agentgym.testing.envs import CounterEnv

ROLES = """
[policy]
base_url = "{url}"
model = "DeepSeek-V4-Flash-0731"
prices = {{ input = 1, cached = 0.1, output = 6 }}
"""


def counts(body):
    """Adds once per turn and submits in the fourth; a third of each prompt is cached."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    call = ("submit", "{}") if turn == 3 else ("add", '{"amount": 1}')
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": dict(zip(("name", "arguments"), call, strict=True)),
            }
        ],
    }
    usage = {
        "prompt_tokens": 300 + 90 * turn,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 100 + 30 * turn},
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return 200, {"choices": [choice], "usage": usage}


@pytest.fixture(scope="module", autouse=True)
def counter():
    gymnasium.register("CostCounter-v0", entry_point=CounterEnv)
    yield
    gymnasium.registry.pop("CostCounter-v0")


@pytest.fixture
def run(agentgym_command, model_server, tmp_path):
    (tmp_path / "roles.toml").write_text(ROLES.format(url=model_server(counts).url))
    code, _, err = agentgym_command(
        *("rollout", "--env", "CostCounter-v0", "--roles", "roles.toml", "--quiet"),
        *("-n", 6, "--out", "x", "--max-tokens", 100),
    )
    assert code == 0, err
    return agentgym_command


# Four prompts of 300, 390, 480, 570 are 1,740 in, of which 580 are cached, and 200 out.
EPISODE = (1160 * 1 + 580 * 0.1 + 200 * 6) / 1e6


def test_a_bill_and_a_plan_made_from_it(run):
    code, out, _ = run("cost", "actual", "x", "--json")
    bill = json.loads(out)
    assert code == 0
    policy = bill["roles"]["policy"]
    assert (policy["input_tokens"], policy["cached_tokens"]) == (6 * 1740, 6 * 580)
    assert bill["usd"] == pytest.approx(6 * EPISODE)
    assert bill["usd_per_episode"] == pytest.approx(EPISODE)
    code, out, _ = run(
        *("cost", "calibrate", "x", "--first", 3, "--episodes", 6, "--write", "w.toml"),
        *("--prices", "--model", "policy=DeepSeek-V4-Flash-0731", "--json"),
    )
    found = json.loads(out)
    assert code == 0
    assert found["workload"]["tokens"] == {"setup": 300.0, "output": 50.0, "reply": 40.0}
    code, out, _ = run("cost", "actual", "x", "--prices", "--plan", "w.toml")
    assert code == 0
    assert "Actual over planned: 1.00" in out
    assert "6 episodes were planned, 6 are there" in out


def test_the_table_says_what_there_is(run):
    code, out, _ = run("cost", "actual", "x")
    assert code == 0
    assert "6 episodes, 6 scored" in out
    assert "$0.002418 per episode" in out
    code, out, _ = run("cost", "calibrate", "x", "--episodes", 100)
    assert code == 0
    assert "expected of 100 episodes like these" in out
    assert "$0.2418" in out


def test_a_calibrated_plan_has_the_prices_of_the_run(run):
    code, _, _ = run("cost", "calibrate", "x", "--episodes", 6, "--write", "own.toml")
    assert code == 0
    _, out, _ = run("cost", "plan", "--workload", "own.toml", "--json")
    assert json.loads(out)["total_usd"] == pytest.approx(6 * EPISODE)
    # With --prices they are the book's, by the model that the traces name: 0.08, 0.016 and 0.18.
    run("cost", "calibrate", "x", "--episodes", 6, "--prices", "--write", "book.toml")
    _, out, _ = run("cost", "plan", "--workload", "book.toml", "--json")
    assert 0 < json.loads(out)["total_usd"] < EPISODE
    # A file that was moved has no settings beside it.
    Path("moved.jsonl").write_bytes(Path("x/traces.jsonl").read_bytes())
    _, out, _ = run("cost", "calibrate", "moved.jsonl", "--episodes", 6)
    assert "plan with --roles FILE or --policy-model NAME" in out


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["actual", "nowhere"], "there is no nowhere"),
        (["actual", "x", "--model", "judge=m"], "--model goes with --prices"),
        (["actual", "x", "--prices", "--model", "judge"], "--model takes ROLE=NAME"),
        (["actual", "x", "--prices", "--model", "jduge=m"], "did you mean 'judge'"),
        (["actual", "x", "--prices", "--model", "policy=Nemo"], "no price for the model 'Nemo'"),
        (["actual", "x", "--plan", "none.toml"], "can't read none.toml"),
        (["calibrate", "x", "--first", "0"], "--first must be at least 1"),
        (["calibrate", "x", "--episodes", "5", "--steps", "2"], "give either --episodes"),
    ],
)
def test_complaints_are_one_line(run, args, complaint):
    code, _, err = run("cost", *args)
    assert (code, err.count("\n")) == (1, 1)
    assert complaint in err
