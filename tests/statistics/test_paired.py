"""Paired differences, against numbers worked by hand, brute force and simulation."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.statistics import (
    holm_adjusted,
    paired_difference,
    sign_flip_p_value,
    t_quantile,
    wilson_interval,
)


def test_by_hand():
    """Task means 0.5, 0, 1 against 1, 0.5, 1: differences 0.5, 0.5, 0; mean 1/3, s² = 1/12.

    Standard error sqrt(1/12/3) = 1/6, t = 2 with 2 degrees of freedom: p = 1 - 2/sqrt(6) = 0.1835.
    """
    a = {"x": [0.0, 1.0], "y": [0.0], "z": [1.0]}
    b = {"z": [1.0], "y": [0.0, 1.0], "x": [1.0]}
    found = paired_difference(a, b)
    assert found.mean == pytest.approx(1 / 3)
    assert found.stderr == pytest.approx(1 / 6)
    assert found.p_value == pytest.approx(1 - 2 / math.sqrt(6))
    assert found.mean - found.low == pytest.approx(4.3027 / 6, abs=1e-4)
    assert found.high == 1.0  # 1/3 + 4.3027/6 would be more than there is
    # Signs of two halves: +1, 0, 0, -1; two of four are as far out as the sum 1.
    assert found.p_exact == 0.5
    assert (found.n_tasks, found.n_better, found.n_worse, found.shown) == (3, 2, 0, False)


def test_only_tasks_scored_on_both_sides_count():
    a = {"x": [1.0], "y": [0.0], "gone": [0.0], "unscored": []}
    b = {"x": [1.0], "y": [1.0], "new": [1.0], "unscored": [1.0]}
    assert paired_difference(a, b).n_tasks == 2
    with pytest.raises(ConfigError, match="no task was scored on both sides"):
        paired_difference({"x": [1.0]}, {"y": [1.0]})


def test_a_system_with_itself_differs_by_nothing_but_is_not_known_to():
    same = {task: [1.0] for task in range(20)}
    found = paired_difference(same, same)
    assert (found.mean, found.p_value, found.p_exact) == (0.0, None, 1.0)
    assert found.high == pytest.approx(wilson_interval(0, 20)[1])
    assert found.low == -found.high


def test_no_interval_reaches_beyond_the_largest_difference():
    all_up = paired_difference({t: [0.0] for t in "abc"}, {t: [1.0] for t in "abc"})
    assert (all_up.mean, all_up.high) == (1.0, 1.0)
    # Tasks not seen may go down by 1 as well: two off.
    assert all_up.low == pytest.approx(1 - 2 * wilson_interval(0, 3)[1])
    few = paired_difference({t: [0.0] for t in "abc"}, {"a": [1.0], "b": [1.0], "c": [0.0]})
    assert few.low < 0 < few.high == 1.0


@pytest.mark.parametrize("tasks", [3, 5])
def test_tasks_that_all_moved_alike_do_not_promise_the_rest(tasks):
    """Of tasks that go up with 60 % and down with 40 %, some samples are all up: counted exactly.

    With the interval of "1 less what 0 hits allow" only 70 % of 3 tasks held the truth of 0.2.
    """
    held = 0.0
    for up in range(tasks + 1):
        a = {t: [float(t >= up)] for t in range(tasks)}
        b = {t: [float(t < up)] for t in range(tasks)}
        found = paired_difference(a, b)
        chance = math.comb(tasks, up) * 0.6**up * 0.4 ** (tasks - up)
        held += chance * (found.low <= 0.2 <= found.high)
    assert held >= 0.9


def test_one_task_says_nothing():
    found = paired_difference({"x": [0.0]}, {"x": [1.0]})
    assert (found.mean, found.low, found.high) == (1.0, -math.inf, math.inf)
    assert found.p_value is None
    assert found.p_exact == 1.0


small = st.lists(st.sampled_from([-1.0, -0.75, -0.5, 0.0, 0.25, 0.5, 1.0]), max_size=9)


@given(moves=small)
def test_sign_flips_are_all_that_there_are(moves):
    flipped = [
        sum(s * m for s, m in zip(signs, moves, strict=True))
        for signs in product((1, -1), repeat=len(moves))
    ]
    as_far = sum(abs(total) >= abs(sum(moves)) - 1e-9 for total in flipped)
    assert sign_flip_p_value(moves) == pytest.approx(as_far / len(flipped))


def test_sign_flips_by_hand_and_where_there_are_too_many():
    # All six one way: only that combination and its mirror image, 2 of 64.
    assert sign_flip_p_value([0.25] * 6 + [0.0] * 50) == 2 / 64
    assert sign_flip_p_value([]) == 1.0
    assert sign_flip_p_value([1.0] * 21) is None


def test_holm_by_hand():
    # Ordered 0.01, 0.02, 0.04 times 3, 2, 1: 0.03, 0.04, 0.04; and never below the one before.
    assert holm_adjusted([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm_adjusted([0.5, 0.4]) == [0.8, 0.8]
    assert holm_adjusted([]) == []


attempts = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3)
)


@given(a=attempts, b=attempts)
def test_the_other_way_round_is_the_same_with_the_other_sign(a, b):
    if not a.keys() & b.keys():
        return
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert (there.p_value, there.p_exact) == (
        pytest.approx(back.p_value), pytest.approx(back.p_exact)
    )  # fmt: skip
    assert (there.n_better, there.n_worse, there.shown) == (back.n_worse, back.n_better, back.shown)
    assert there.low <= there.mean <= there.high


def test_interval_and_p_value_hold_what_they_promise():
    """2,000 comparisons of two systems whose tasks move by 0.05 on average: 95 % hold it.

    And of equal systems, 5 % have a p-value below 0.05.
    """
    rng = np.random.default_rng(0)
    tasks, samples, runs, truth = 40, 4, 2000, 0.05
    base = rng.uniform(0.1, 0.8, size=(runs, tasks))
    moved = base + truth + rng.uniform(-0.05, 0.05, size=(runs, tasks))
    a, b, same = (rng.binomial(samples, p) / samples for p in (base, moved, base))
    held = falsely = 0
    for row in range(runs):
        mean, stderr = _t_pieces(b[row] - a[row])
        held += abs(mean - truth) <= t_quantile(tasks - 1, 0.05) * stderr
        mean, stderr = _t_pieces(same[row] - a[row])
        falsely += abs(mean) > t_quantile(tasks - 1, 0.05) * stderr
    assert held / runs == pytest.approx(0.95, abs=0.015)
    assert falsely / runs == pytest.approx(0.05, abs=0.015)
    # The pieces above are the function's own.
    found = paired_difference(dict(enumerate(a[0][:, None])), dict(enumerate(b[0][:, None])))
    assert (found.mean, found.stderr) == pytest.approx(_t_pieces(b[0] - a[0]))


def _t_pieces(moves):
    return float(moves.mean()), float(moves.std(ddof=1) / math.sqrt(len(moves)))
