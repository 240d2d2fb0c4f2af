"""Power, against numbers worked by hand and simulated comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.statistics import (
    Spread,
    detectable_difference,
    fewest_tasks,
    paired_difference,
    spread_of,
    spread_of_success,
    t_quantile,
    tasks_needed,
)


def test_the_normal_formula_by_hand():
    """Var 0.25, difference 0.05: (1.96 + 0.8416)² · 0.25 / 0.0025 = 784.9 tasks; t adds two."""
    assert tasks_needed(0.05, spread=Spread(between=0.25)) == 787
    assert tasks_needed(-0.05, spread=Spread(between=0.25)) == 787


def test_samples_average_out_what_is_within_tasks_only():
    spread = Spread(between=0.1, within=0.4)
    assert [spread.of_difference(k) for k in (1, 2, 4)] == pytest.approx([0.5, 0.3, 0.2])
    assert tasks_needed(0.05, spread=spread, samples=100) > tasks_needed(
        0.05, spread=Spread(between=0.1)
    )


@given(difference=st.floats(0.01, 1.0), between=st.floats(0.01, 1.0), power=st.floats(0.5, 0.99))
def test_what_is_needed_is_just_what_detects(difference, between, power):
    spread = Spread(between=between)
    tasks = tasks_needed(difference, spread=spread, power=power)
    assert detectable_difference(tasks, spread=spread, power=power) <= difference * (1 + 1e-9)
    if tasks > 6:
        assert detectable_difference(tasks - 1, spread=spread, power=power) > difference


@pytest.mark.parametrize("samples", [1, 4])
def test_that_many_tasks_see_the_difference_as_often_as_said(samples):
    """3,000 simulated comparisons each: 80 % of them have an interval without 0."""
    rng = np.random.default_rng(1)
    success, tau2, truth, runs = 0.4, 0.04, 0.12, 3000
    spread = spread_of_success(success, between=tau2, correlation=1.0, difference=truth)
    tasks = tasks_needed(truth, spread=spread, samples=samples)
    # Beta(a, b) with mean 0.4 and variance 0.04: a + b = 0.24 / 0.04 - 1 = 5.
    base = rng.beta(2.0, 3.0, size=(runs, tasks))
    a = rng.binomial(samples, base) / samples
    b = rng.binomial(samples, np.clip(base + truth, 0, 1)) / samples
    moves = b - a
    stderr = moves.std(axis=1, ddof=1) / np.sqrt(tasks)
    seen = np.mean(np.abs(moves.mean(axis=1)) > t_quantile(tasks - 1, 0.05) * stderr)
    assert seen == pytest.approx(0.8, abs=0.035)


def test_the_parts_of_the_variance_are_found_again():
    """Mean of q(1-q) is 0.24 - 0.04 = 0.2 for both systems: within 0.4; the same q: between 0."""
    rng = np.random.default_rng(2)
    q = rng.beta(2.0, 3.0, size=4000)
    a, b = (dict(enumerate(rng.random((4000, 4)) < q[:, None])) for _ in range(2))
    found = spread_of(a, b)
    assert found.within == pytest.approx(0.4, abs=0.01)
    assert found.between == pytest.approx(0.0, abs=0.01)
    known = spread_of_success(0.4, between=0.04, correlation=1.0)
    assert (known.between, known.within) == pytest.approx((0.0, 0.4))
    unlike = spread_of(a, dict(enumerate(rng.random((4000, 4)) < rng.permutation(q)[:, None])))
    known = spread_of_success(0.4, between=0.04, correlation=0.0)
    assert known.between == pytest.approx(0.08)
    assert unlike.between == pytest.approx(0.08, abs=0.01)


def test_spread_by_hand():
    """Differences 1 - 0.5 and 0 - 0.5: mean 0, variance 0.5. Within: 0.5 and 0 in both tasks.

    Noise of the differences: 0.5/2 + 0/2 = 0.25; between = 0.5 - 0.25.
    """
    a = {"x": [0.0, 1.0], "y": [0.0, 1.0]}
    b = {"x": [1.0, 1.0], "y": [0.0, 0.0]}
    assert spread_of(a, b) == Spread(between=0.25, within=0.5)


def test_attempts_that_one_system_alone_has_do_not_pass_for_single_ones():
    """Same rates as above, four attempts against one, then against one in half of the tasks.

    Single attempts of both differ by a variance of 0.4. The means of four hide 0.15 of it.
    """
    rng = np.random.default_rng(3)
    q = rng.beta(2.0, 3.0, size=6000)
    a, b = (dict(enumerate(rng.random((6000, 4)) < q[:, None])) for _ in range(2))
    once = spread_of(a, {t: values[:1] for t, values in b.items()})
    assert once.within is None
    assert once.between == pytest.approx(0.4, abs=0.02)
    half = spread_of(a, {t: values[: 1 + 3 * (t % 2)] for t, values in b.items()})
    assert half.within == pytest.approx(0.4, abs=0.02)
    assert half.of_difference(1) == pytest.approx(0.4, abs=0.02)


def test_one_attempt_per_task_does_not_say_what_more_would_help():
    found = spread_of({"x": [0.0], "y": [1.0]}, {"x": [1.0], "y": [1.0]})
    assert found == Spread(between=0.5)
    assert tasks_needed(0.5, spread=found) > 2
    with pytest.raises(ConfigError, match="play two or more"):
        tasks_needed(0.5, spread=found, samples=2)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"difference": 0.0}, "difference of 0"),
        ({"power": 1.0}, "power must be"),
        ({"level": 1.0}, "level must be"),
        ({"samples": 0}, "samples per task"),
        ({"difference": 1e-6}, "needs over 10,000,000 tasks"),
    ],
)
def test_what_can_not_be_answered_is_one_line(asked, complaint):
    values = {"difference": 0.1, "spread": Spread(between=0.2, within=0.1), **asked}
    with pytest.raises(ConfigError, match=complaint):
        tasks_needed(values.pop("difference"), **values)


def test_no_scatter_at_all_is_nothing_to_plan_with():
    alike = spread_of({"x": [0.0], "y": [0.0]}, {"x": [1.0], "y": [1.0]})
    with pytest.raises(ConfigError, match="the same in every task"):
        tasks_needed(0.1, spread=alike)
    with pytest.raises(ConfigError, match="a success rate between 0 and 1"):
        detectable_difference(100, spread=spread_of_success(0.0, between=0.0, correlation=0.0))
    # Of a difference, though, the second system's own scatter is known.
    assert tasks_needed(0.1, spread=spread_of_success(0, between=0, correlation=0, difference=0.1))


def test_never_fewer_tasks_than_could_show_anything():
    """Five tasks that all differ have an exact p-value of 2/32, six of 2/64."""
    assert fewest_tasks() == 6
    assert tasks_needed(1.0, spread=Spread(between=0.001)) == 6
    for level in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        tasks = fewest_tasks(level)
        for count, shown in ((tasks, True), (tasks - 1, False)):
            a, b = ({t: [x] for t in range(count)} for x in (0.0, 1.0))
            assert (count > 1 and paired_difference(a, b).p < 1 - level) == shown
    with pytest.raises(ConfigError, match="level must be"):
        fewest_tasks(1.0)


def test_ranges():
    with pytest.raises(ConfigError, match=r"from 0 to p\(1-p\) = 0.25, got 0.3"):
        spread_of_success(0.5, between=0.3, correlation=0.0)
    with pytest.raises(ConfigError, match="with the difference, 1.1"):
        spread_of_success(0.9, between=0.0, correlation=0.0, difference=0.2)
    with pytest.raises(ConfigError, match="correlation"):
        spread_of_success(0.5, between=0.1, correlation=2.0)
    with pytest.raises(ConfigError, match="at least 6 tasks to show any difference, got 5"):
        detectable_difference(5, spread=Spread(between=0.1))
    with pytest.raises(ConfigError, match="compare at least two"):
        spread_of({"x": [1.0]}, {"x": [0.0]})
