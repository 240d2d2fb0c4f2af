"""The figures of an evaluation, against numbers worked by hand."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import attempt, column, h07, played, result

from agentgym.errors import ConfigError, DataError
from agentgym.evaluate.figures import figures_of
from agentgym.evaluate.result import TaskFacts
from agentgym.evaluate.tables import tables_of, warnings_of
from agentgym.statistics import share_estimate
from agentgym.types import Usage


def of(*columns, **fields):
    return figures_of(result(*columns), **fields).columns


def test_broken_episodes_stay_in_one_of_two_denominators():
    """Case H07: 0.80 of all and 0.889 of scored, and never one of them alone."""
    (found,) = of(h07())
    assert (found.n_total, found.n_scored, found.n_errors) == (100, 90, 10)
    assert found.errors == {"infra": 10}
    assert found.error_reasons == {"EndpointError: gone": 10}
    assert found.success.of_all.mean == 0.8
    assert found.success.of_scored.mean == pytest.approx(0.889, abs=5e-4)
    with pytest.raises(DataError, match=r"10 of 100 .*\(infra 10\).* 80.0% of all and 88.9% of"):
        found.accuracy()


def test_few_broken_episodes_leave_one_accuracy_and_it_counts_them_as_wrong():
    outcomes = [True] * 80 + [False] * 16 + [None] * 4
    (found,) = of(played("ours", {f"t{i}": [o] for i, o in enumerate(outcomes)}))
    assert found.why_no_accuracy is None
    assert found.accuracy() == 0.8


def test_policy_failures_are_scored_as_zero():
    """A truncated or malformed episode is the policy's doing and stays in both denominators."""
    capped = attempt("b", False, completed=False, truncation_reason="turns", malformed=2)
    (found,) = of(column("ours", [attempt("a", True), capped]))
    assert found.success.of_scored.mean == found.success.of_all.mean == 0.5
    assert (found.truncations, found.malformed.count, found.n_errors) == ({"turns": 1}, 1, 0)


def test_nothing_scored_has_no_accuracy_and_no_mean():
    (found,) = of(played("ours", {"a": [None], "b": [None]}))
    assert (found.success.of_scored, found.score, found.turns) == (None, None, None)
    assert found.success.of_all.mean == 0
    with pytest.raises(DataError, match="none of 2 episodes has a score"):
        found.accuracy()


def test_success_is_clustered_by_task():
    (found,) = of(played("ours", {"a": [True, True], "b": [False, False]}))
    assert found.success.of_scored == share_estimate([True, True, False, False], "aabb")
    assert found.success.of_scored.stderr == pytest.approx(0.5)
    assert found.success.of_scored.n_clusters == 2


def test_pass_at_k_and_pass_hat_k():
    """Tasks with 3 of 4 and 1 of 4: pass@2 = (1 + 0.5)/2, pass^2 = (0.5 + 0)/2."""
    (found,) = of(played("ours", {"a": [True, True, True, False], "b": [True] + [False] * 3}))
    assert [passes.k for passes in found.passes] == [1, 2, 4]
    assert (found.passes[1].at.mean, found.passes[1].hat.mean) == (0.75, 0.25)
    assert (found.passes[2].at.mean, found.passes[2].hat.mean) == (1.0, 0.0)


def test_an_unscored_attempt_is_wrong_in_one_pass_at_k_and_left_out_of_the_other():
    """a: 1 right, 1 unknown. Of scored, k = 2 has only b; of all, a's chance of two right is 0."""
    (found,) = of(played("ours", {"a": [True, None], "b": [True, True]}), ks=[2])
    (two,) = found.passes
    assert (two.hat.mean, two.hat.n_clusters, two.n_left_out) == (1.0, 1, 1)
    assert two.hat_of_all.mean == 0.5
    assert two.at_of_all.mean == 1.0


def test_k_larger_than_the_samples_is_one_line():
    with pytest.raises(ConfigError, match="k must be from 1 to the 2 samples .*, got 3"):
        of(played("ours", {"a": [True, True]}), ks=[1, 3])


def test_completion_and_correctness_are_two_facts():
    rows = [
        attempt("a", True, completed=True),
        attempt("b", False, completed=True),
        attempt("c", False, completed=True),
        attempt("d", False, completed=False),
        attempt("e", None),
    ]
    (found,) = of(column("ours", rows))
    assert (found.completed_wrong, found.unfinished) == (2, 1)
    assert found.completion.of_scored.mean == 0.75
    assert found.completion.of_all.mean == pytest.approx(0.6)


def test_by_family():
    one = played("ours", {"a": [True, False], "b": [True, True], "c": [False, False]})
    kinds = {"a": "easy", "b": "easy", "c": None}
    tasks = {t: TaskFacts(content=t, family=kind) for t, kind in kinds.items()}
    (found,) = figures_of(result(one, tasks=tasks)).columns
    assert list(found.families) == ["easy"]
    assert found.families["easy"].n_tasks == 2
    assert found.families["easy"].success.of_all.mean == 0.75


def test_by_turns_each_count_or_a_few_bins():
    rows = [attempt(f"t{n}", n < 3, turns=n) for n in (1, 1, 2, 3)]
    rows = [row.model_copy(update={"sample": i}) for i, row in enumerate(rows)]
    (found,) = of(column("ours", rows))
    assert [(b.low, b.high, b.success.of_all.mean) for b in found.by_turns] == [
        (1, 1, 1.0), (2, 2, 1.0), (3, 3, 0.0)
    ]  # fmt: skip
    (found,) = of(column("ours", [attempt(f"t{n}", True, turns=n) for n in range(1, 41)]))
    assert [(b.low, b.high) for b in found.by_turns] == [(i, i + 4) for i in range(1, 40, 5)]
    assert sum(b.success.n_total for b in found.by_turns) == 40


def test_turns_are_binned_alike_for_all_systems():
    quick = column("quick", [attempt(f"t{n}", True, turns=n % 3 + 1) for n in range(9)])
    slow = column("slow", [attempt(f"t{n}", n < 4, turns=10 * n + 9) for n in range(9)])
    figures = figures_of(result(slow, quick))
    table = next(t for t in tables_of(figures) if "turns" in t.title)
    assert table.rows[0] == ("1 to 12", "100.0% of 1", "100.0% of 9")
    assert [row[2] for row in table.rows[1:]] == ["-"] * (len(table.rows) - 1)
    assert sum(int(row[1].split()[-1]) for row in table.rows if row[1] != "-") == 9


def test_gates_cost_and_time():
    def spent(dollars):
        return {"policy": Usage(prompt_tokens=5, completion_tokens=2, cost_usd=dollars)}

    rows = [
        attempt("a", True, gates={"g": True, "h": False}, usage=spent(0.5), seconds=2.0),
        attempt("b", False, gates={"g": False, "h": False}, usage=spent(0.25), seconds=1.0),
        attempt("c", None, usage=spent(0.25), seconds=9.0),
    ]
    (found,) = of(column("ours", rows))
    assert (found.gates["g"].count, found.gates["h"].count) == (1, 0)
    assert found.gates["g"].of_scored.mean == 0.5
    # What was spent on failures, broken ones included, is the price of what was solved.
    assert (found.cost_usd, found.cost_per_solved_usd, found.seconds_per_solved) == (1.0, 1.0, 12.0)
    assert (found.median_seconds, found.p95_seconds) == (1.5, 2.0)
    assert found.usage["policy"].prompt_tokens == 15


def test_an_unknown_price_is_no_zero():
    """Case I05."""
    rows = [attempt("a", True, usage={"policy": Usage(prompt_tokens=5)}), attempt("b", True)]
    (found,) = of(column("ours", rows))
    assert (found.cost_usd, found.cost_per_solved_usd) == (None, None)
    (found,) = of(column("rule", [attempt("a", False)], kind="scripted"))
    assert (found.cost_usd, found.cost_per_solved_usd, found.seconds_per_solved) == (0, None, None)


def test_a_model_that_nobody_counted_was_neither_free_nor_instant():
    """A runner that writes no usage and no seconds; an episode that never started cost nothing."""
    free = {"policy": Usage(prompt_tokens=5, cost_usd=0.0)}
    rows = [attempt("a", True, usage=free), attempt("b", None)]
    (found,) = of(column("ours", rows))
    assert found.cost_usd == 0
    (found,) = of(column("ours", [*rows, attempt("c", True)]))
    assert (found.cost_usd, found.cost_per_solved_usd) == (None, None)
    assert (found.seconds, found.seconds_per_solved, found.median_seconds) == (None, None, None)
    spending = tables_of(figures_of(result(column("ours", [attempt("c", True)]))))[1]
    assert [row[1] for row in spending.rows] == ["unknown", "unknown", "-", "-", "-"]


def test_where_nothing_was_solved_there_is_no_price_of_it_known_or_not():
    rows = [attempt("a", False, usage={"policy": Usage(prompt_tokens=5, cost_usd=1.0)})]
    spending = tables_of(figures_of(result(column("ours", rows))))[1]
    assert [row for row in spending.rows if "cost" in row[0]] == [
        ("cost", "$1.0000"), ("cost per solved", "-")
    ]  # fmt: skip


def test_same_rows_in_two_tasks_stay_two():
    """Case H11: what looks the same counts as often as it was attempted."""
    (found,) = of(played("ours", {"a": [True, True], "b": [True, True]}))
    assert (found.n_total, found.success.of_all.n, found.success.of_all.n_clusters) == (4, 4, 2)


def test_episodes_that_were_not_played_are_told():
    evaluation = result(played("ours", {"a": [True]}), samples=3)
    assert figures_of(evaluation).columns[0].n_missing == 2
    assert warnings_of(figures_of(evaluation)) == [
        "ours: 2 of 3 episodes were not played; the same `agentgym eval run` plays them"
    ]


def test_attempts_that_were_not_played_are_not_wrong_ones():
    """A perfect system, stopped after 2 of 4 samples in one task and all of them in another."""
    evaluation = result(played("ours", {"a": [True] * 2, "b": [True] * 4, "c": [True] * 4}))
    (found,) = figures_of(evaluation).columns
    four = found.passes[-1]
    assert (four.hat_of_all.mean, four.hat_of_all.n_clusters, four.n_not_played) == (1.0, 2, 1)
    row = next(r for r in tables_of(figures_of(evaluation))[0].rows if r[0] == "pass^4, of all")
    assert row[1].endswith("), 2 tasks")
    (found,) = figures_of(result(played("ours", {"a": [True] * 2}), samples=4)).columns
    assert (found.passes[-1].hat_of_all, found.passes[-1].at_of_all) == (None, None)


def test_a_part_of_the_tasks_has_no_single_accuracy():
    tasks = {f"t{i}": TaskFacts(content=f"{i}") for i in range(100)}
    whole = played("ours", {f"t{i}": [i % 2 == 0] for i in range(96)})
    assert figures_of(result(whole, tasks=tasks)).columns[0].accuracy() == 0.5
    part = figures_of(result(played("ours", {"t0": [True]}), tasks=tasks))
    with pytest.raises(DataError, match="only 1 of 100 episodes were played"):
        part.columns[0].accuracy()
    assert len(warnings_of(part)) == 1  # told once


def test_a_system_without_any_episode_is_named():
    figures = figures_of(result(played("ours", {"a": [True]}), column("gone\x1b", [])))
    assert [c.name for c in figures.columns] == ["ours"]
    assert warnings_of(figures) == [
        r"gone\x1b: no episode was played; the same `agentgym eval run` plays them"
    ]


def test_of_a_system_without_any_score_no_share_is_shown():
    tasks = {"a": TaskFacts(content="a", family="f")}
    broken = result(played("ours", {"a": [None, None]}), tasks=tasks)
    tables = tables_of(figures_of(broken))
    cells = {row[0].strip(): row[1] for table in tables for row in table.rows}
    for name in ("success, of all", "success, of scored", "pass@2, of all", "pass^2, of all", "f"):
        assert cells[name] == "-"


def test_names_make_no_tags_links_or_pictures_in_markdown():
    evil = "![x](http://example.org/p.png) <img src=x>"
    for table in tables_of(figures_of(result(played(evil, {"t": [True]}), env_id=evil))):
        markdown = table.to_markdown()
        assert "<" not in markdown
        assert "](" not in markdown


def test_tables_show_both_denominators_and_survive_hostile_names():
    evil = played("a|b\n\x1b[31m", {"t": [True], "u": [None]}, model="<script>\x1b[2J")
    tables = tables_of(figures_of(result(h07(), evil)))
    main = {row[0].strip(): row[1] for row in tables[0].rows}
    assert main["success, of all"].startswith("80.0% (")
    assert main["success, of scored"].startswith("88.9% (")
    assert main["no score"] == "10 (infra 10)"
    markdown = tables[0].to_markdown()
    assert r"a\|b\n\x1b[31m" in markdown
    assert r"&lt;script>\x1b[2J" in markdown
    assert "\x1b" not in markdown
    assert len({line.count(" | ") for line in markdown.splitlines() if line.startswith("| ")}) == 1


def test_one_task_has_a_mean_and_no_interval():
    rows = [attempt("a", True, reward=1.0), attempt("a", False, 1, reward=0.0)]
    (found,) = of(column("ours", rows))
    assert math.isinf(found.reward.high)
    table = tables_of(figures_of(result(column("ours", rows))))[0]
    assert ("training reward", "0.500 (one task)") in table.rows
    assert ("success, of all", "50.0% (one task)") in table.rows


def test_values_that_all_agree_have_no_interval_of_no_width():
    rows = [attempt(task, True, turns=3, reward=0.5) for task in "abcd"]
    (found,) = of(column("ours", rows))
    # A score from 0 to 1 is a share: of 4 independent draws, z² / (n + z²) is left open.
    assert found.score.low == pytest.approx(4 / (4 + 3.8415), abs=1e-4)
    table = tables_of(figures_of(result(column("ours", rows))))[0]
    assert ("training reward", "0.500 (all alike)") in table.rows
    assert ("turns", "3.0 (all alike)") in table.rows


def test_a_score_beyond_one_is_a_mean_like_any_other():
    rows = [attempt("a", True, external=3.0), attempt("b", False, external=1.0)]
    (found,) = of(column("ours", rows))
    assert (found.score.mean, found.score.stderr) == (2.0, 1.0)


outcomes = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=3),
    min_size=1,
)


@settings(max_examples=60)
@given(tasks=outcomes)
def test_whatever_came_of_the_episodes_the_figures_fit_each_other(tasks):
    (found,) = of(played("ours", tasks))
    assert found.n_scored + sum(found.errors.values()) == found.n_total
    assert found.completed_wrong + found.unfinished + found.success.count == found.n_scored
    assert sum(each.success.n_total for each in found.by_turns) == found.n_scored
    for share in (found.success, found.completion, found.malformed):
        assert 0 <= share.of_all.low <= share.of_all.mean <= share.of_all.high <= 1
        if share.of_scored is not None:
            assert share.of_all.mean <= share.of_scored.mean
            assert share.of_scored.low <= share.of_scored.mean <= share.of_scored.high
    for passes in found.passes:
        assert passes.hat_of_all.mean <= passes.at_of_all.mean
        if passes.at is not None:
            assert passes.hat.mean <= passes.at.mean


def test_figures_are_strict_json():
    figures = figures_of(result(played("ours", {"a": [True, False]})))
    json.loads(figures.model_dump_json(), parse_constant=pytest.fail)
