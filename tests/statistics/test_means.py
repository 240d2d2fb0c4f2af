"""Means, shares and their intervals, against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.statistics import (
    Estimate,
    Proportion,
    bounded_estimate,
    clustered_stderr,
    mean_estimate,
    share_estimate,
    wilson_interval,
)


def test_wilson_interval_of_none_in_fifty():
    """p = 0: (z²/n) / (1 + z²/n) = 3.8415/50 / (1 + 3.8415/50) = 0.07683/1.07683 = 0.0713."""
    low, high = wilson_interval(0, 50)
    assert low == 0.0
    assert high == pytest.approx(0.0713, abs=5e-5)


def test_wilson_interval_of_half():
    """n = 100, p = 0.5: 0.5 ± 1.96·sqrt(0.0025 + 3.8415/40000)/1.038415 = 0.5 ± 0.0962."""
    low, high = wilson_interval(50, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=5e-5), pytest.approx(0.5962, abs=5e-5))


@given(n=st.integers(1, 500), data=st.data())
def test_wilson_interval_holds_the_rate_and_is_symmetric(n, data):
    count = data.draw(st.integers(0, n))
    low, high = wilson_interval(count, n)
    assert 0 <= low <= count / n <= high <= 1
    other_low, other_high = wilson_interval(n - count, n)
    assert (low, high) == (pytest.approx(1 - other_high), pytest.approx(1 - other_low))


def test_nothing_tried_is_nothing_known():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert Proportion(count=0, n=0).share is None


def test_stderr_of_single_values_is_the_ordinary_one():
    # deviations -1, 0, 1: sum of squares 2; sqrt(2 * 3/2) / 3
    assert clustered_stderr([0, 1, 2], "abc") == pytest.approx(math.sqrt(3) / 3)


def test_stderr_counts_clusters_rather_than_values():
    # mean 0.5; cluster sums of deviations +1 and -1: sqrt((1 + 1) * 2/1) / 4
    assert clustered_stderr([1, 1, 0, 0], "aabb") == pytest.approx(0.5)
    assert clustered_stderr([1, 0, 1, 0], "aabb") == pytest.approx(0.0)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 0.0]])
def test_stderr_needs_two_clusters(values):
    assert clustered_stderr(values, "a" * len(values)) is None


def test_above_means_that_intervals_do_not_touch():
    def around(mean: float) -> Estimate:
        return Estimate(mean=mean, low=mean - 0.1, high=mean + 0.1, stderr=0.05, n=9, n_clusters=3)

    assert around(0.5).above(around(0.25))
    assert not around(0.5).above(around(0.35))
    assert around(0.5).overlaps(around(0.35))
    assert not around(0.25).above(around(0.5))


def test_mean_has_the_t_interval_of_its_tasks():
    # Mean 2, standard error 1/√3, two degrees of freedom: 4.3027.
    found = mean_estimate([1.0, 2.0, 3.0], "abc")
    assert (found.mean, found.n, found.n_clusters) == (2.0, 3, 3)
    assert found.high - 2.0 == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert found.low == pytest.approx(4.0 - found.high)


def test_one_task_says_nothing_of_others():
    found = mean_estimate([1.0, 0.0], "aa")
    assert (found.mean, found.low, found.high) == (0.5, -math.inf, math.inf)
    assert not found.above(mean_estimate([0.0], "a"))
    share = share_estimate([True, True], "aa")
    assert (share.low, share.high) == (wilson_interval(1, 1)[0], 1.0)


@pytest.mark.parametrize("estimate", [mean_estimate, share_estimate])
def test_nothing_has_no_mean(estimate):
    with pytest.raises(ConfigError, match="nothing was scored"):
        estimate([], [])


@pytest.mark.parametrize("spread", [(1.0, 1.0), (0.3, 0.3), (2.0, 18.0)])
def test_share_over_tasks_holds_the_truth_as_often_as_it_says(spread):
    """1,000 evaluations of 30 tasks with 4 attempts each, whose success rates are Beta-distributed.

    Without clusters the interval would hold the mean of Beta(0.3, 0.3) in some 75 % only.
    """
    rng = np.random.default_rng(0)
    truth, runs, tasks, samples = spread[0] / sum(spread), 1000, 30, 4
    clusters = [task for task in range(tasks) for _ in range(samples)]
    held = {"clustered": 0, "not": 0}
    for _ in range(runs):
        rates = rng.beta(*spread, size=tasks)
        hits = (rng.random((tasks, samples)) < rates[:, None]).ravel().tolist()
        found = share_estimate(hits, clusters)
        low, high = wilson_interval(sum(hits), len(hits))
        held["clustered"] += found.low <= truth <= found.high
        held["not"] += low <= truth <= high
    assert held["clustered"] / runs == pytest.approx(0.95, abs=0.025)
    assert held["not"] < held["clustered"]


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_share_of_few_tasks_with_many_attempts_holds_the_truth(tasks):
    """1,000 evaluations with 16 attempts at each of a few tasks, rates Beta(0.18, 0.42).

    With the effective number of draws taken as known, 81 to 86 % held the mean of 0.3.
    """
    rng = np.random.default_rng(0)
    clusters = [task for task in range(tasks) for _ in range(16)]
    held = 0
    for _ in range(1000):
        rates = rng.beta(0.18, 0.42, size=tasks)
        hits = (rng.random((tasks, 16)) < rates[:, None]).ravel().tolist()
        found = share_estimate(hits, clusters)
        held += found.low <= 0.3 <= found.high
    assert held / 1000 >= 0.92


def test_share_of_few_tasks_by_hand():
    """4 of 4 and 2 of 4: p = 0.75, standard error 0.25, so 3 draws; by (t_7 / t_1)², 0.1039."""
    found = share_estimate([True] * 6 + [False] * 2, "aaaabbbb")
    draws = 3 * (2.364624 / 12.706205) ** 2
    assert (found.low, found.high) == pytest.approx(wilson_interval(0.75 * draws, draws))
    # With one attempt each, nothing is uncertain but the share: p(1-p)/stderr² is one draw less.
    once = share_estimate([True, True, False], "abc")
    assert (once.low, once.high) == pytest.approx(wilson_interval(4 / 3, 2))


def test_equal_values_have_no_scatter_whatever_their_last_bits():
    for value in (0.1, 0.7, 1 / 3):
        found = mean_estimate([value] * 12, [i // 4 for i in range(12)])
        assert (found.stderr, found.low) == (0.0, found.high)
        bounded = bounded_estimate([value] * 12, [i // 4 for i in range(12)], most=12)
        assert bounded.low == pytest.approx(wilson_interval(3 * value, 3)[0])  # 3 tasks, not 12
