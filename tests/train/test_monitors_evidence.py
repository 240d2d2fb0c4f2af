"""Formulas against printed tables and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.statistics import t_quantile, wilson_interval
from agentgym.train.monitors.evidence import (
    LEVEL,
    NOTHING,
    Interval,
    change,
    mean_of,
    rise_of,
    share_of,
)
from agentgym.train.monitors.scores import HeldOutScore, gain


def test_mean_has_its_t_interval() -> None:
    # 1, 2, 3: mean 2, s = 1, standard error 1/√3; t for 2 degrees of freedom.
    found = mean_of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(t_quantile(2, LEVEL) / math.sqrt(3))


def test_agreeing_steps_leave_the_doubt_of_their_units() -> None:
    # 0 of 40 units: Wilson with z = 3 reaches up to 9 / (40 + 9).
    found = share_of([0.0] * 10, units=4)
    assert (found.mean, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(9 / 49)


def test_change_by_hand() -> None:
    # Means 2 and 5, variances 1 and 1 over 3: standard error √(1/3 + 1/3), 4 degrees of freedom.
    found = change([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert found.mean == 3.0
    assert found.mean - found.low == pytest.approx(t_quantile(4, LEVEL) * math.sqrt(2 / 3))


def test_rise_is_that_of_the_least_squares_line() -> None:
    values = [0.0, 1.0, 1.0, 2.0, 4.0, 3.0]
    slope, _ = np.polyfit(range(6), values, 1)
    assert rise_of(values).mean == pytest.approx(slope * 5)
    assert rise_of([3.0, 5.0, 7.0, 9.0])[:3] == pytest.approx((6.0, 6.0, 6.0))


def test_too_little_says_nothing() -> None:
    assert mean_of([1.0]) == share_of([], units=3) == change([1.0], [2.0, 3.0]) == NOTHING
    assert rise_of([1.0, 2.0]) == NOTHING
    assert not NOTHING.mean > 0
    assert not NOTHING.low > 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.integers(1, 50))
@settings(deadline=None)
def test_share_stays_in_its_bounds(shares: list[float], units: int) -> None:
    found = share_of(shares, units)
    assert 0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1


def test_intervals_hold_what_they_should() -> None:
    """Of 2,000 means of 8 normal numbers some 0.27 % miss; 3 % would be a two-sigma interval."""
    draw = np.random.default_rng(0)
    misses = 0
    for _ in range(2000):
        found = mean_of(list(draw.normal(size=8)))
        misses += not found.low <= 0 <= found.high
    assert misses <= 20


def test_difference_of_independent_estimates() -> None:
    found = Interval(5, 2, 8, 9).minus(Interval(1, -3, 5, 7))
    assert found == Interval(4, -1, 9, 7)


def score(step: int, **tasks: tuple[int, int]) -> HeldOutScore:
    return HeldOutScore(
        step=step, success=0.5, low=0.4, high=0.6, n_episodes=9, reward=0.0, turns=1.0,
        truncated=0.0, malformed=0.0, seconds=1.0, tasks=tasks,
    )  # fmt: skip


def test_gain_is_paired_by_task() -> None:
    # a: 0.5 -> 1, b: 0 -> 0, c only once. Moves 0.5 and 0: mean 0.25, standard error 0.25.
    found = gain(score(0, a=(1, 2), b=(0, 2), c=(2, 2)), score(9, a=(2, 2), b=(0, 1), d=(1, 1)))
    assert (found.mean, found.n) == (0.25, 2)
    assert (found.low, found.high) == (-1.0, 1.0)  # 59 either way, and there is no more than 1
    # 40 tasks, of which 20 move by a half: standard error 0.25·sqrt(40/39)/sqrt(40).
    before = {f"t{i}": (i % 2, 2) for i in range(40)}
    after = {f"t{i}": (1, 2) for i in range(40)}
    found = gain(score(0, **before), score(9, **after))
    half = t_quantile(39, LEVEL) * 0.25 / math.sqrt(39)
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half))
    assert gain(score(0, a=(1, 1)), score(9, a=(1, 1))) == NOTHING


def test_no_move_in_any_task_leaves_what_tasks_not_seen_may_do() -> None:
    tasks = {f"t{i}": (1, 2) for i in range(10)}
    found = gain(score(0, **tasks), score(9, **tasks))
    assert found.high == pytest.approx(wilson_interval(0, 10, z=3)[1])
    assert found.low == -found.high
