"""How many tasks, from what was played or from a guess."""

from __future__ import annotations

import numpy as np
import pytest
from made_results import played, result

from agentgym.errors import ConfigError
from agentgym.evaluate.comparable import System
from agentgym.evaluate.power import power_of_rate, power_of_systems, power_table
from agentgym.evaluate.scatter import Question, measured_scatter
from agentgym.statistics import (
    Spread,
    chance_shown,
    moves_of_rates,
    spread_of,
    tasks_needed,
    variance_between,
)


def system(label, seed, *, samples=4, tasks=200):
    """Tasks of Beta(2, 3) success rates: mean 0.4, variance between tasks 0.04."""
    rates = np.random.default_rng(0).beta(2, 3, size=tasks)
    drawn = np.random.default_rng(seed).random((tasks, samples)) < rates[:, None]
    evaluation = result(
        played(label, {f"t{i}": list(map(bool, row)) for i, row in enumerate(drawn)})
    )
    return System(label, evaluation, evaluation.columns[0])


def test_a_guess_gives_the_upper_bound():
    """p = 0.3 and 0.4, unrelated: 0.3·0.7 + 0.4·0.6 = 0.45 per task."""
    report = power_of_rate(0.3, None, Question(differences=(0.1,)))
    (row,) = report.rows
    assert row.tasks == tasks_needed(0.1, spread=Spread(between=0.45))
    assert "only the upper bound" in report.caveats[0]


def test_a_guess_with_variance_between_tasks_gives_both_ends():
    """p = 0.5, τ² = 0.1: within 0.15 per attempt of each; the same tasks hard: 0.3 / 4 samples."""
    report = power_of_rate(0.5, 0.1, Question(tasks=(1_000_000,), samples=(4,)))
    least, most = report.rows
    assert least.difference < most.difference
    expected = (least.difference / most.difference) ** 2
    assert expected == pytest.approx((0.3 / 4) / (0.2 + 0.3 / 4), rel=1e-3)
    assert report.caveats == ()


def test_one_system_bounds_what_two_measure():
    a, b = system("a", 1), system("b", 2)
    question = Question(differences=(0.1,), samples=(4,))
    least, most = (row.tasks for row in power_of_systems([a], question).rows)
    (measured,) = (row.tasks for row in power_of_systems([a, b], question).rows)
    # The two have the very same rates: as near to the lower end as 200 tasks can tell.
    assert measured == pytest.approx(least, rel=0.25)
    assert measured < most / 1.3


def test_what_is_measured_is_the_variance_between_tasks():
    a = system("a", 1, tasks=3000)
    values = {}
    for each in a.column.attempts:
        values.setdefault(each.task_id, []).append(float(each.correct))
    assert variance_between(values) == pytest.approx(0.04, abs=0.005)
    assert variance_between({"x": [1.0], "y": [0.0]}) is None


def test_attempted_once_gives_the_upper_bound_only():
    report = power_of_systems([system("a", 1, samples=1)], Question(differences=(0.1,)))
    assert len(report.rows) == 1
    assert len(report.caveats) == 1
    with pytest.raises(ConfigError, match="play two or more"):
        power_of_systems([system("a", 1, samples=1)], Question(differences=(0.1,), samples=(2,)))


def test_table_has_the_answer_last():
    table = power_table(power_of_rate(0.3, None, Question(differences=(0.1,))))
    assert table.header[2:] == ("difference", "tasks needed")
    assert table.rows[0][2:] == ("10.0 points", "356")
    table = power_table(power_of_rate(0.3, None, Question(tasks=(356,))))
    assert table.header[2:] == ("tasks", "difference they show")
    assert table.rows[0][2] == "356"


@pytest.mark.parametrize("success", [0.0, 0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("between", "samples"), [(None, 1), (0.0, 4)])
def test_what_so_many_tasks_show_needs_so_many(success, between, samples):
    """The scatter is that of the difference found, and not that of no difference."""
    question = Question(tasks=(200,), samples=(samples,))
    for row in power_of_rate(success, between, question).rows:
        again = Question(differences=(row.difference,), samples=(samples,))
        needed = {r.assumption: r.tasks for r in power_of_rate(success, between, again).rows}
        assert needed[row.assumption] in (199, 200)


def test_no_difference_is_shown_that_there_can_not_be():
    """7 tasks would have to differ by 56 points of 50; above 95 % there are 5 points left."""
    for success, tasks in ((0.5, 7), (0.95, 50), (1.0, 100)):
        report = power_of_rate(success, None, Question(tasks=(tasks,)))
        assert report.rows[0].difference is None
        assert "no difference that a better system can have" in report.caveats[-1]
        assert power_table(report).rows[0][-1] == "none"


def test_of_few_tasks_the_chance_is_that_of_the_rule():
    """30 % and 70 %: the t test alone would take 23 tasks, which show it in 68 % of evaluations.

    Counted out: (0.7·0.7, 0.3·0.3) of a task's differences are (+1, -1); 28 tasks show it in 79 %,
    29 in 80 %.
    """
    report = power_of_rate(0.3, None, Question(differences=(0.4,)))
    assert tasks_needed(0.4, spread=Spread(between=0.42)) == 23
    assert report.rows[0].tasks == pytest.approx(29, abs=1)
    assert not any("under" in line for line in report.caveats)
    (row,) = power_of_rate(0.3, None, Question(tasks=(29,))).rows
    assert row.difference == pytest.approx(0.4, abs=0.01)


@pytest.mark.thorough
def test_two_that_were_played_need_more_of_few_tasks_than_the_t_test_says():
    a, b = system("a", 1), system("b", 2)
    for samples in (1, 4):
        question = Question(differences=(0.35,), samples=(samples,))
        (row,) = power_of_systems([a, b], question).rows
        spread = spread_of(*(_by_task(each) for each in (a, b)))
        assert row.tasks > tasks_needed(0.35, spread=spread, samples=samples)
        back = Question(tasks=(row.tasks,), samples=(samples,))
        assert power_of_systems([a, b], back).rows[0].difference == pytest.approx(0.35, abs=0.02)


@pytest.mark.parametrize("correlation", [0.0, 1.0])
def test_what_is_measured_gives_the_chance_of_the_tasks_it_was_drawn_from(correlation):
    """400 tasks, 4 attempts; half of the variance is between tasks, alike for both or not."""
    rng = np.random.default_rng(0)
    a, b = (np.sort(rng.beta(p, 1 - p, size=50_000)) for p in (0.3, 0.55))
    one = rng.integers(50_000, size=400)
    other = one if correlation else rng.integers(50_000, size=400)
    drawn = [
        {f"t{t}": list(map(float, row)) for t, row in enumerate(rng.random((400, 4)) < q[:, None])}
        for q in (a[one], b[other])
    ]
    known = moves_of_rates(0.3, 0.55, share=(0.5, 0.5), correlation=correlation, attempts=4)
    measured = measured_scatter(*drawn).moves(0.25, 4)
    for tasks in (10, 20, 40):
        expected = chance_shown(known, tasks)
        assert chance_shown(measured, tasks) == pytest.approx(expected, abs=0.06)


def _by_task(one):
    found = {}
    for attempt in one.column.attempts:
        found.setdefault(attempt.task_id, []).append(float(attempt.correct))
    return found


def test_a_chance_out_of_range_is_refused_of_few_tasks_too():
    with pytest.raises(ConfigError, match="power must be"):
        power_of_rate(0.3, None, Question(tasks=(20,), power=1.0))
    with pytest.raises(ConfigError, match="at least 6 tasks"):
        power_of_rate(0.3, None, Question(tasks=(5,)))


def test_a_system_that_always_does_the_same_has_bounds():
    """Two of eight tasks solved, in all samples: 0.214 between tasks, more than p(1-p) = 0.1875."""
    evaluation = result(played("rule", {f"t{i}": [i < 2] * 4 for i in range(8)}))
    rule = System("rule", evaluation, evaluation.columns[0])
    least, most = power_of_systems([rule], Question(differences=(0.1,), samples=(4,))).rows
    assert least.tasks < most.tasks


def test_bad_questions_are_one_line():
    with pytest.raises(ConfigError, match="needs --between"):
        power_of_rate(0.3, None, Question(differences=(0.1,), samples=(4,)))
    three = [system(name, 1, tasks=2) for name in "abc"]
    with pytest.raises(ConfigError, match="one or two systems as FILE:COLUMN; these are a, b, c"):
        power_of_systems(three, Question(differences=(0.1,)))
    evaluation = result(played("x", {"t": [None]}))
    with pytest.raises(ConfigError, match="no episode of x has a score"):
        power_of_systems([System("x", evaluation, evaluation.columns[0])], Question(tasks=(9,)))
