"""Comparisons: like with like or why not, and what the difference can bear."""

from __future__ import annotations

import math

import pytest
from made_results import attempt, column, played, result

from agentgym.errors import ConfigError, DataError
from agentgym.evaluate import TaskFacts, write_result
from agentgym.evaluate.comparable import System, reasons_between
from agentgym.evaluate.compare import compare, compare_all
from agentgym.evaluate.compare_tables import plain, verdict_lines
from agentgym.evaluate.systems import systems_of
from agentgym.statistics import paired_difference, tasks_needed
from agentgym.statistics.power import Spread

BEFORE = {"a": [False, False], "b": [True, False], "c": [False, False], "d": [True, True]}
AFTER = {"a": [True, True], "b": [True, True], "c": [True, False], "d": [True, True]}


def system(label, tasks=BEFORE, *, facts=None, **fields):
    evaluation = result(played(label, tasks, **fields), **(facts or {}))
    return System(label, evaluation, evaluation.columns[0])


def grades(a, b):
    return {(reason.grade, reason.what) for reason in reasons_between(a, b)}


def test_difference_is_the_paired_one_of_the_common_tasks():
    """a moves by 1, b and c by a half, d by 0: 0.5 on average."""
    found = compare(system("before"), system("after", AFTER))
    assert found.comparable
    assert found.reasons == ()
    assert (found.success_a.mean, found.success_b.mean) == (0.375, 0.875)
    as_floats = [
        {t: [float(v) for v in values] for t, values in side.items()} for side in (BEFORE, AFTER)
    ]
    assert found.success == paired_difference(*as_floats)
    assert found.success.mean == 0.5
    # All three that moved went up: 2 of 8 sign combinations are as far out.
    assert found.success.p == 0.25


def test_it_says_how_many_tasks_would_show_the_difference_seen():
    found = compare(system("before"), system("after", AFTER))
    # Differences 1, 0.5, 0.5, 0: variance 1/6, for which the t test alone would take 8. Of 8 tasks
    # some are equal, and the exact test asks for 6 that differ, all the same way.
    assert tasks_needed(0.5, spread=Spread(between=1 / 6)) == 8
    assert 8 < found.tasks_needed < 20
    assert any(f"{found.tasks_needed} tasks would show it" in line for line in verdict_lines(found))
    same = compare(system("before"), system("again"))
    assert (same.tasks_needed, same.success.shown) == (None, False)


def test_the_exact_p_value_overrules_an_interval_of_few_tasks():
    """5 of 20 tasks differ, all one way: t leaves out 0, 2 of 32 sign combinations don't."""
    before = {f"t{i}": [i < 5] for i in range(20)}
    found = compare(system("before", before), system("after", {t: [False] for t in before}))
    assert found.success.leaves_out_zero
    assert found.success.p == 2 / 32
    assert not found.success.shown
    lines = verdict_lines(found)
    assert "  a difference is not shown: -25.0 (-45.8 to -4.2) points over 20 tasks" in lines
    assert "  only 5 tasks differ, too few for that interval: exact p = 0.0625" in lines


def test_scores_without_bounds_that_all_move_alike_have_no_interval():
    def scored(label, score):
        rows = [attempt(task, True, external=score) for task in "abc"]
        evaluation = result(column(label, rows))
        return System(label, evaluation, evaluation.columns[0])

    found = compare(scored("a", 2.0), scored("b", 5.0))
    assert plain(found.score) == "+3.000 (all alike)"
    assert found.score.high == math.inf


def test_unpaired_tasks_are_listed_and_in_no_figure():
    other = {**AFTER, "new": [False, False]}
    del other["d"]
    found = compare(system("before"), system("after", other))
    assert (found.only_a, found.only_b) == (("d",), ("new",))
    assert found.success.n_tasks == 3
    assert found.comparable
    assert "  left out, since only after has them: new" in verdict_lines(found)


def test_other_tasks_are_no_comparison():
    found = compare(system("before"), system("after", {"x": [True]}))
    assert (found.blocked, found.success, found.tasks_needed) == (True, None, None)
    lines = verdict_lines(found)
    assert lines[0] == "before and after: NOT comparable, no figures"
    assert "no task in common: before has a, b, c, … (4) and after has x" in lines[1]


def test_a_task_of_the_same_name_with_another_content_is_another_task():
    tasks = {t: TaskFacts(content=f"hash of {t}") for t in BEFORE}
    changed = {**tasks, "a": TaskFacts(content="edited")}
    found = compare(system("before"), system("after", AFTER, facts={"tasks": changed}))
    assert found.changed == ("a",)
    assert found.success.n_tasks == 3
    assert ("confounds", "tasks") in {(r.grade, r.what) for r in found.reasons}
    every = {t: TaskFacts(content="edited") for t in BEFORE}
    assert compare(system("before"), system("after", facts={"tasks": every})).blocked


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"facts": {"env_id": "agentgym/Other-v0"}}, ("blocks", "env")),
        ({"facts": {"external_score": "test/lenient"}}, ("blocks", "external")),
        ({"hashes": {"external": "2", "judge": "1"}}, ("blocks", "external")),
        ({"facts": {"env_spec": '{"kwargs": {"max_turns": 9}}'}}, ("confounds", "env")),
        ({"facts": {"env_spec": '{"kwargs": {}, "max_episode_steps": 9}'}}, ("confounds", "env")),
        ({"facts": {"env_spec": "rules of 2027"}}, ("confounds", "env")),
        ({"sampling": {"temperature": 0.0}}, ("confounds", "sampling")),
        ({"hashes": {"external": "1", "judge": "2"}}, ("confounds", "judge")),
        ({"hashes": {"external": "1"}}, ("confounds", "judge")),
        ({"code_version": "0.2.0"}, ("confounds", "code")),
        ({"facts": {"limits": {"max_turns": 2}}}, ("confounds", "limits")),
        ({"facts": {"samples": 3}}, ("notes", "samples")),
        ({"facts": {"seed": 7}}, ("notes", "seed")),
    ],
)
def test_every_reason_is_found_and_named(fields, expected):
    alike = {"hashes": {"external": "1", "judge": "1"}, "facts": {"seed": 0}}
    assert grades(system("a", **alike), system("b", **alike)) == set()
    found = grades(system("a", **alike), system("b", **{**alike, **fields}))
    assert expected in found
    assert found - {expected} <= {("notes", "missing")}


def test_a_reason_has_both_values():
    a, b = system("a"), system("b", sampling={"temperature": 0.0, "top_p": 0.9})
    (reason,) = reasons_between(a, b)
    assert reason.text == "sampling differs: temperature 1.0 and 0.0, top_p nothing and 0.9"


def test_the_systems_themselves_are_no_reason():
    other = system("b", model="another", endpoint="http://x", weight_version="7", kind="baseline")
    assert grades(system("a"), other) == set()
    scripted = system("rule", kind="scripted", model=None, sampling={}, hashes={"judge": "1"})
    assert grades(system("a"), scripted) == set()
    assert grades(system("a", sampling={"seed": 1}), system("b", sampling={"seed": 2})) == set()


def test_many_episodes_without_a_score_may_make_the_difference():
    """Case H07: the scored ones look better; counted as unsolved, they look worse."""
    rows = [attempt(f"t{i}", None if i < 3 else i % 2 == 0) for i in range(10)]
    evaluation = result(column("broken", rows))
    broken = System("broken", evaluation, evaluation.columns[0])
    whole = system("whole", {f"t{i}": [i % 2 == 0] for i in range(10)})
    found = compare(whole, broken)
    assert ("confounds", "unscored") in grades(whole, broken)
    assert found.unscored == ("t0", "t1", "t2")
    assert (found.success.n_tasks, found.success.mean) == (7, 0.0)
    # t0 and t2 were solved by the other one.
    assert found.success_of_all.mean == pytest.approx(-0.2)


def test_the_two_shares_differ_by_the_difference():
    """t0 is scored on one side only, and t1 was attempted thrice by the other: neither tilts it."""
    a = system("a", {"t0": [True], "t1": [True], "t2": [False], "t3": [True]})
    b = system("b", {"t0": [None], "t1": [True, True, True], "t2": [False], "t3": [False]})
    found = compare(a, b)
    assert found.success_a.mean == pytest.approx(2 / 3)
    assert found.success_b.mean == pytest.approx(1 / 3)
    assert found.success_b.mean - found.success_a.mean == pytest.approx(found.success.mean)


def test_too_few_tasks_to_show_anything_say_so():
    found = compare(system("before"), system("after", AFTER))
    assert found.detectable is None
    assert "  fewer than 6 tasks can't show any difference" in verdict_lines(found)
    up = {f"t{i}": [i % 2 == 0] for i in range(8)}
    down = {f"t{i}": [i % 2 == 1] for i in range(8)}
    apart = compare(system("up", up), system("down", down))
    assert apart.detectable is None  # 122 points, of 100
    assert any("not even the largest difference" in line for line in verdict_lines(apart))


def test_nothing_scored_in_common_has_no_difference():
    found = compare(system("a", {"t": [None]}), system("b", {"t": [True]}))
    assert (found.success, found.success_of_all, found.blocked) == (None, None, False)
    assert "there is no difference to see" in verdict_lines(found)[-1]


def test_several_with_the_first_have_p_values_that_hold_together():
    systems = [system(name, tasks) for name, tasks in
               (("base", BEFORE), ("x", AFTER), ("y", BEFORE))]  # fmt: skip
    found = compare_all(systems)
    assert [(each.a, each.b) for each in found] == [("base", "x"), ("base", "y")]
    assert [each.p_together for each in found] == [0.5, 1.0]
    pairs = compare_all(systems, all_pairs=True)
    assert [(each.a, each.b) for each in pairs] == [("base", "x"), ("base", "y"), ("x", "y")]
    with pytest.raises(ConfigError, match="needs two systems; there is only base"):
        compare_all(systems[:1])


# --- naming systems ---------------------------------------------------------------------------


def test_systems_have_the_shortest_names_that_tell_them_apart(tmp_path):
    one, other = tmp_path / "one" / "result.json", tmp_path / "other" / "result.json"
    write_result(one, result(played("rule", BEFORE), played("ours", AFTER)))
    write_result(other, result(played("rule", AFTER)))

    def labels(*names):
        return [each.label for each in systems_of([str(name) for name in names])]

    assert labels(one) == ["rule", "ours"]
    assert labels(f"{one}:ours", other) == ["ours", "rule"]
    assert labels(one, other) == ["one:rule", "one:ours", "other:rule"]
    copy = tmp_path / "copy.json"
    write_result(copy, result(played("rule", AFTER)))
    assert labels(other, copy) == ["result:rule", "copy:rule"]
    with pytest.raises(ConfigError, match="unknown column 'our'; did you mean 'ours'"):
        labels(f"{one}:our")
    assert labels(one.parent, f"{other.parent}:rule") == ["one:rule", "one:ours", "other:rule"]
    with pytest.raises(ConfigError, match="named twice"):
        labels(one, f"{one.parent}:ours")
    with pytest.raises(DataError, match="can't read"):
        labels(tmp_path / "gone.json")


def test_a_column_may_have_colons_and_one_without_episodes_is_named(tmp_path):
    file = tmp_path / "result.json"
    write_result(file, result(played("qwen3:8b", BEFORE), column("gone", [])))
    assert [each.label for each in systems_of([f"{file}:qwen3:8b"])] == ["qwen3:8b"]
    assert [each.label for each in systems_of([f"{tmp_path}:qwen3:8b"])] == ["qwen3:8b"]
    with pytest.raises(ConfigError, match="no episode of 'gone' was played"):
        systems_of([f"{file}:gone"])
    with pytest.raises(DataError, match="can't read"):
        systems_of([f"{tmp_path}/other.json:x"])
