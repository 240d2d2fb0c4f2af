"""`agentgym rollout` with a budget for the run: its end, its figures, its exit code, going on."""

from __future__ import annotations

import json

import gymnasium
import pytest

from agentgym.cli import EXIT_BUDGET
from agentgym.testing.envs import CounterEnv

ROLES = """
[policy]
base_url = "{url}"
model = "m"
prices = {{ input = 1, output = 6 }}
"""


def submits(body):
    """A policy that hands in at once."""
    call = {"name": "submit", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": call}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": tokens_of(body), "completion_tokens": 100}
    return 200, {"choices": [choice], "usage": usage}


def tokens_of(body):
    """As the client estimates them, rounded so that every task has the same."""
    return round(len(json.dumps(body)) / 3, -2)


@pytest.fixture(scope="module", autouse=True)
def counter():
    gymnasium.register("BudgetCounter-v0", entry_point=CounterEnv)
    yield
    gymnasium.registry.pop("BudgetCounter-v0")


@pytest.fixture
def run(agentgym_command, model_server, tmp_path):
    server = model_server(submits)
    (tmp_path / "roles.toml").write_text(ROLES.format(url=server.url))
    args = [
        *("rollout", "--env", "BudgetCounter-v0", "--roles", "roles.toml", "--quiet"),
        *("-n", 20, "--out", "x", "--max-tokens", 100, "--concurrency", 4),
    ]

    def play(*more):
        code, out, err = agentgym_command(*args, *more)
        folder = more[more.index("--out") + 1] if "--out" in more else "x"
        file = tmp_path / folder / "summary.json"
        return code, out, err, json.loads(file.read_text()) if file.exists() else None

    play.server = server
    code, *_, alone = play("--out", "y", "-n", 1)
    assert code == 0
    (used,) = alone["usage"].values()
    play.cost, play.tokens = used["cost_usd"], used["prompt_tokens"] + used["completion_tokens"]
    server.bodies.clear()
    return play


def test_a_budget_for_seven_of_twenty_episodes(run):
    """I08: coworld#64. Seven are done, thirteen are listed, and the exit code is its own."""
    budget = 7.6 * run.cost
    code, out, err, summary = run("--budget-usd", budget)
    assert code == EXIT_BUDGET == 3
    stop = summary["budget_stop"]
    assert stop["status"] == "budget_stop"
    assert (stop["done"], len(stop["not_run"]), stop["cut"]) == (7, 13, [])
    assert (summary["n_total"], summary["n_scored"]) == (7, 7)
    assert summary["usage"]["policy"]["cost_usd"] == pytest.approx(7 * run.cost)
    assert stop["struck"]["limit"] == pytest.approx(budget)
    assert stop["struck"]["spent"] == pytest.approx(7 * run.cost)
    assert f"stopped by the budget: ${7 * run.cost:.4f} of ${budget:.4f} are spent" in err
    assert f"--out x --resume and a --budget-usd above ${budget:.4f} (about $" in err
    assert "13 episodes, for the budget" in out


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(run):
    run("--budget-usd", 7.6 * run.cost)
    code, _, err, summary = run("--resume", "--budget-usd", 12.6 * run.cost)
    assert code == EXIT_BUDGET, err
    assert summary["n_scored"] == 12  # what the first part spent is spent
    stop = summary["budget_stop"]
    assert (stop["done"], len(stop["not_run"])) == (12, 8)  # of the run, and not of this command
    assert "12 of 20 episodes are there (5 of them new), 8 are left; the same command" in err
    assert f"and a --budget-usd above ${12.6 * run.cost:.4f} (about $" in err
    code, _, err, summary = run("--resume", "--budget-usd", 12.6 * run.cost)
    assert code == EXIT_BUDGET
    assert "12 of 20 episodes are there (none of them new), 8 are left" in err
    assert (summary["budget_stop"]["before"], summary["budget_stop"]["done"]) == (12, 12)
    code, _, _, summary = run("--resume", "--budget-usd", 100 * run.cost)
    assert code == 0
    assert (summary["n_scored"], summary["budget_stop"]) == (20, None)


@pytest.mark.thorough
def test_what_a_killed_run_had_in_flight_is_spent_though_no_trace_tells(run, tmp_path):
    run("--budget-usd", 7.6 * run.cost)
    traces = tmp_path / "x" / "traces.jsonl"
    kept = traces.read_text().splitlines(keepends=True)[:5]
    traces.write_text("".join(kept))  # as if the last two had been cut by SIGKILL
    code, _, err, summary = run("--resume", "--budget-usd", 9.6 * run.cost)
    assert code == EXIT_BUDGET, err
    assert summary["n_scored"] == 5 + 2
    assert summary["budget_stop"]["struck"]["spent"] == pytest.approx(9 * run.cost)
    (tmp_path / "x" / "spent.json").write_text("{torn")
    code, _, err, _ = run("--resume", "--budget-usd", 11 * run.cost)
    assert (code, err.count("\n"), "spent.json, which says what the run has spent" in err) == (
        *(1, 1),
        True,
    )


def test_tokens_and_roles_have_caps_of_their_own(run):
    code, _, err, summary = run(
        "--budget-usd", 5, "--budget-tokens", f"policy={5.6 * run.tokens:.0f}"
    )
    assert code == EXIT_BUDGET
    assert f"{5 * run.tokens:,} tokens of {5.6 * run.tokens:,.0f} tokens (policy) are spent" in err
    assert summary["budget_stop"]["done"] == 5


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--budget-usd", "much"], "--budget-usd takes a number or ROLE=NUMBER, got 'much'"),
        (["--budget-usd", "0"], "greater than 0"),
        (["--budget-usd", "1", "2"], "--budget-usd is given twice for the whole run"),
        (["--budget-tokens", "juge=5"], "unknown role 'juge'; did you mean 'judge'?"),
        (["--budget-tokens", "0.5"], "budget: tokens"),
    ],
)
def test_a_budget_that_is_none(run, flags, complaint):
    code, _, err, _ = run(*flags)
    assert (code, complaint in err, err.count("\n")) == (1, True, 1), err
    assert not run.server.bodies


def test_dollars_need_prices(agentgym_command, model_server, tmp_path):
    """I05: opik#7312. Nothing is asked before that is said."""
    server = model_server(submits)
    code, _, err = agentgym_command(
        *("rollout", "--env", "BudgetCounter-v0", "--base-url", server.url, "--model"),
        *("foo/bar", "-n", 2, "--budget-usd", 1, "--out", "x"),
    )
    assert code == 1
    assert "the policy 'foo/bar'" in err
    assert "has no prices" in err
    assert not server.bodies
    assert not (tmp_path / "x").exists()
