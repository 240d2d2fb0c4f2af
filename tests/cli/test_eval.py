"""`agentgym eval`: result files shown, compared and planned."""

from __future__ import annotations

import json

import pytest
from made_results import h07, played, result

from agentgym.evaluate import write_result


@pytest.fixture
def shown(agentgym_command, tmp_path):
    path = tmp_path / "result.json"

    def show(evaluation, *flags):
        write_result(path, evaluation)
        return agentgym_command("eval", "show", path, *flags)

    return show


def test_show_prints_the_tables_and_the_warning(shown):
    code, out, err = shown(result(h07(), played("theirs", {"t1": [True]})))
    assert (code, err) == (0, "")
    assert "80.0% (" in out
    assert "88.9% (" in out
    assert "! ours: 10 of 100 episodes have no score" in out
    assert "! theirs: 99 of 100 episodes were not played" in out


def test_show_refuses_a_bare_accuracy_with_the_reason(shown):
    """Case H07."""
    code, out, err = shown(result(played("fine", {"a": [True]}), h07()), "--accuracy")
    assert (code, out) == (1, "")
    assert "10 of 100 episodes have no score (infra 10), more than 5%" in err
    assert err.count("\n") == 1
    assert shown(result(played("fine", {"a": [True], "b": [False]})), "--accuracy") == (
        0, "fine\t0.5000\n", ""
    )  # fmt: skip


def test_show_as_json_and_markdown(shown):
    code, out, _ = shown(result(h07()), "--json")
    assert code == 0
    assert json.loads(out)["columns"][0]["success"]["of_all"]["mean"] == 0.8
    code, out, _ = shown(result(h07()), "--markdown")
    assert "| success, of scored | 88.9% (" in out


def test_show_of_what_is_no_result_is_one_line(agentgym_command, tmp_path):
    (tmp_path / "x.json").write_text("{")
    code, out, err = agentgym_command("eval", "show", "x.json")
    assert (code, out) == (1, "")
    assert err == "agentgym: error: x.json is no evaluation result: it is no JSON\n"
