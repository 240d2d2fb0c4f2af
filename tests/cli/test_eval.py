"""`agentgym eval`: result files shown, compared and planned."""

from __future__ import annotations

import json
import re

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
    assert "! ours: 10 × EndpointError: gone" in out
    assert "! theirs: 99 of 100 episodes were not played" in out


def test_show_lists_every_episode_without_a_score(shown):
    """Case H07: nothing that broke is dropped silently."""
    code, out, _ = shown(result(h07()), "--errors")
    assert code == 0
    assert out.count("EndpointError: gone") == 10
    assert "t90" in out
    assert "t89" not in out


def test_show_refuses_a_bare_accuracy_with_the_reason(shown):
    """Case H07."""
    fine = played("fine", {f"t{i}": [True] for i in range(100)})
    code, out, err = shown(result(fine, h07()), "--accuracy")
    assert (code, out) == (1, "")
    assert "10 of 100 episodes have no score (infra 10), more than 5%" in err
    assert err.count("\n") == 1
    assert shown(result(played("fine", {"a": [True], "b": [False]})), "--accuracy") == (
        0, "fine\t0.5000\n", ""
    )  # fmt: skip
    part = result(played("fine", {"a": [True]}), played("gone", {}))
    code, out, err = shown(part, "--accuracy")
    assert (code, out) == (1, "")
    assert "no episode was played by gone" in err


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


@pytest.fixture
def two_files(tmp_path):
    """The same tasks by two systems, of which the second has another temperature."""
    tasks = {f"t{i}": [i % 3 == 0, i % 3 == 1] for i in range(12)}
    better = {task: [True, True] for task in tasks}
    write_result(tmp_path / "before.json", result(played("base", tasks)))
    after = played("ours", better, sampling={"temperature": 0.5})
    write_result(tmp_path / "after.json", result(after))


def test_compare_tells_difference_and_reservations(agentgym_command, two_files):
    code, out, err = agentgym_command("eval", "compare", "before.json", "after.json")
    assert (code, err) == (0, "")
    assert "ours - base" in out
    assert "base and ours: not like with like" in out
    assert "sampling differs: temperature 1.0 and 0.5" in out
    assert "a difference is shown: +66.7" in out
    code, _, _ = agentgym_command("eval", "compare", "before.json", "after.json", "--strict")
    assert code == 1


def test_compare_as_json_and_markdown(agentgym_command, two_files):
    _, out, _ = agentgym_command("eval", "compare", "before.json", "after.json", "--json")
    (found,) = json.loads(out, parse_constant=pytest.fail)
    assert (found["a"], found["b"], found["success"]["n_tasks"]) == ("base", "ours", 12)
    _, out, _ = agentgym_command("eval", "compare", "before.json", "after.json", "--markdown")
    assert "| ours - base | 12 |" in out
    assert "\n- base and ours: not like with like" in out


def test_compare_of_other_tasks_prints_no_figure_and_fails(agentgym_command, two_files, tmp_path):
    write_result(tmp_path / "else.json", result(played("ours", {"x": [True]})))
    code, out, err = agentgym_command("eval", "compare", "before.json", "else.json")
    assert (code, err) == (1, "")
    assert "NOT comparable" in out
    assert "%" not in out


def test_compare_needs_two(agentgym_command, two_files):
    code, out, err = agentgym_command("eval", "compare", "before.json")
    assert (code, out) == (1, "")
    assert err == "agentgym: error: a comparison needs two systems; there is only base\n"


def test_power_from_files_and_from_a_guess(agentgym_command, two_files):
    code, out, _ = agentgym_command(
        "eval", "power", "before.json", "after.json", "--difference", "0.2", "--samples", "1", "4"
    )
    assert (code, out.count("as measured")) == (0, 2)
    _, out, _ = agentgym_command(
        "eval", "power", "before.json", "after.json", "--difference", "0.2", "--json"
    )
    assert json.loads(out)["question"]["samples"] == [1, 2]  # and as many as were played
    code, out, _ = agentgym_command("eval", "power", "--success", "0.3", "--difference", "0.1")
    assert (code, "356" in out) == (0, True)
    _, out, _ = agentgym_command("eval", "power", "--success", "0.3", "--tasks", "356", "--json")
    assert json.loads(out)["rows"][0]["difference"] == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--difference", "0.1"], "give one or two systems"),
        (["before.json", "--success", "0.3", "--difference", "0.1"], "give one or two systems"),
        (["--success", "0.3"], "give --difference (how many tasks?) or --tasks"),
        (["before.json", "--between", "0.1", "--tasks", "9"], "--between goes with --success"),
        (["--success", "1.3", "--difference", "0.1"], "success must be from 0 to 1, got 1.3"),
        (["before.json", "after.json", "--difference", "5"], "(0.05 is five points), got 5"),
        (["--success", "0.3", "--tasks", "1"], "a comparison needs at least 6 tasks"),
    ],
)
def test_power_says_what_is_wrong_in_one_line(agentgym_command, two_files, flags, complaint):
    code, out, err = agentgym_command("eval", "power", *flags)
    assert (code, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_compare_as_json_is_json_where_one_task_has_no_interval(agentgym_command, tmp_path):
    file = tmp_path / "result.json"
    write_result(file, result(played("a", {"t": [True]}), played("b", {"t": [False]})))
    code, out, _ = agentgym_command("eval", "compare", file, "--json")
    assert code == 0
    (found,) = json.loads(out, parse_constant=pytest.fail)
    assert found["success"]["low"] == "-Infinity"  # as in `show --json`


def _wide(tmp_path):
    """Two systems whose comparison has every column as wide as it gets."""
    path = tmp_path / "r.json"
    tasks = {f"t{n}": [n % 3 == 0, n % 2 == 0] for n in range(40)}
    better = {task: [True, each[1]] for task, each in tasks.items()}
    write_result(path, result(played("base", tasks), played("step-400", better)))
    return path


@pytest.mark.parametrize("columns", [None, 80, 60])
def test_tables_fit_the_columns_there_are_and_lose_nothing(
    agentgym_command, tmp_path, monkeypatch, columns
):
    path = _wide(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    code, whole, _ = agentgym_command("eval", "compare", path)
    assert max(len(line.rstrip()) for line in whole.splitlines() if "┃" in line) > 100
    if columns is None:
        monkeypatch.delenv("COLUMNS")  # and no terminal: a pipe
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    assert code == 0
    code, fitted, _ = agentgym_command("eval", "compare", path)
    assert code == 0
    table = fitted.partition("Second minus first")[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= (columns or 100)
    words = set(re.findall(r"[^\s│┃━─┏┓┡┩╇┳└┘┴]+", whole.partition("Second minus first")[0]))
    assert words <= set(re.findall(r"\S+", table))
    if columns is None:
        assert table.count("step-400") == 1, "one table, and not several"


def test_show_of_many_systems_fits_too(agentgym_command, tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    names = [f"system-{n}" for n in range(7)]
    tasks = {f"t{n}": [n % 3 == 0] for n in range(20)}
    write_result(path, result(*(played(name, tasks) for name in names)))
    monkeypatch.delenv("COLUMNS", raising=False)
    code, out, _ = agentgym_command("eval", "show", path)
    assert code == 0
    rows = [
        line.rstrip() for line in out.splitlines() if not line.startswith(("95 %", "Per solved"))
    ]
    assert max(map(len, rows)) <= 100
    assert all(name in out for name in names)
