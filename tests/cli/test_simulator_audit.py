"""`agentgym simulator audit`: a model's tools beside an environment's own."""

from __future__ import annotations

import json

import pytest

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@pytest.fixture
def simulator(model_server):
    """A model that always answers with the same empty page."""

    def answer(body):
        page = {"answer": {"result": "Nothing was found here today."}, "changes": []}
        message = {"role": "assistant", "content": json.dumps(page)}
        return 200, {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": USAGE,
        }

    return model_server(answer)


AUDIT = ("simulator", "audit", "--env", "agentgym/WebShop-v0", "--policy", "rule", "-n", "6",
         "--env-kwargs", "num_products=50", "--quiet")  # fmt: skip


def test_it_prints_a_table_with_examples_and_writes_json(agentgym_command, simulator, tmp_path):
    code, out, _ = agentgym_command(
        *AUDIT, "--base-url", simulator.url, "--model", "m", "--out", "audit.json"
    )
    assert code == 0
    header, search = out.splitlines()[:2]
    assert header.split() == ["tool", "calls", "faults", "status", "valid", "shape", "values"]
    assert search.split()[:5] == ["search", "2", "0", "100.0%", "100.0%"]
    assert "6 calls of 2 episodes of agentgym/WebShop-v0" in out
    assert 'simulated  "Nothing was found here today."' in out
    assert "simulator: 6 calls, 600 tokens in" in out
    written = json.loads((tmp_path / "audit.json").read_text())
    assert [tool["calls"] for tool in written["tools"]] == [2, 4]
    assert written["simulator"]["model"] == "m"


def test_a_threshold_makes_it_fail(agentgym_command, simulator):
    """One page for everything fits no schema of ToolWorld's tools."""
    audit = ("simulator", "audit", "--env", "agentgym/ToolWorld-v0", "-n", "3", "--quiet")
    named = ("--base-url", simulator.url, "--model", "m")
    code, out, err = agentgym_command(*audit, *named, "--min-status", "0.5", "--json")
    assert [tool["faults"] for tool in json.loads(out)["tools"]] == [1, 1, 1]
    assert code == 1
    assert "status agrees in 0 of 3 calls, 50.0% are wanted" in err
    code, *_ = agentgym_command(*audit, *named, "--min-status", "0", "--json")
    assert code == 0


def test_a_roles_file_names_the_simulator(agentgym_command, simulator, tmp_path):
    roles = tmp_path / "roles.toml"
    roles.write_text(f'[simulator]\nbase_url = "{simulator.url}"\nmodel = "m"\n')
    code, out, _ = agentgym_command(*AUDIT, "--roles", roles)
    assert code == 0
    assert "search" in out


HERE = ("--base-url", "http://localhost:1/v1", "--model", "m")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "say who simulates"),
        (("--base-url", "http://localhost:1/v1"), "say who simulates"),
        (("--roles", "r.toml", "--model", "m"), "give either --roles"),
        (("--base-url", "ftp://x", "--model", "m"), "base_url"),
        (("--base-url", "https://api.example.com/v1", "--model", "m", "--api-key-env", "NO_KEY"),
         "NO_KEY is not set"),
        ((*HERE, "--min-status", "2"), "--min-status"),
        ((*HERE, "--policy", "x"), "no policy 'x'"),
        ((*HERE, "--max-tokens", "0"), "max_tokens"),
        ((*HERE, "-n", "0"), "at least 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_before_anything_is_asked(agentgym_command, args, says):
    code, out, err = agentgym_command(*AUDIT, *args)
    assert (code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_roles_file_without_a_simulator_is_refused(agentgym_command, tmp_path):
    roles = tmp_path / "roles.toml"
    roles.write_text('[judge]\nbase_url = "http://localhost:1/v1"\nmodel = "m"\n')
    code, _, err = agentgym_command(*AUDIT, "--roles", roles)
    assert code == 1
    assert "has no [simulator] table" in err
