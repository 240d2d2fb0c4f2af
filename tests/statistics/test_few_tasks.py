"""The chance to see a difference with few tasks, against the comparison itself played out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.statistics import (
    FEW_TASKS,
    chance_shown,
    fewest_that_show,
    moves_of_rates,
    moves_of_single,
    paired_difference,
    sign_flip_p_value,
)
from agentgym.statistics.few_tasks import _exact_p


def test_single_attempts_by_hand():
    """30 % and 60 %, unrelated: +1 with 0.7·0.6 = 0.42, -1 with 0.3·0.4 = 0.12."""
    moves = moves_of_rates(0.3, 0.6, share=(0.0, 0.0), correlation=0.0, attempts=1)
    assert moves.chances == pytest.approx([0.12, 0.46, 0.42])
    variance = 0.54 - 0.3**2
    assert moves_of_single(0.3, variance).chances == pytest.approx([0.12, 0.46, 0.42])


def test_six_tasks_by_hand():
    """All six have to be +1: 0.8^6. Of seven, six and one that is equal will do as well."""
    moves = moves_of_single(0.8, 0.8 - 0.64)
    assert moves.chances == pytest.approx([0.0, 0.2, 0.8])
    assert chance_shown(moves, 5) == 0.0
    assert chance_shown(moves, 6) == pytest.approx(0.8**6, abs=0.02)
    assert chance_shown(moves, 7) == pytest.approx(0.8**7 + 7 * 0.8**6 * 0.2, abs=0.02)
    down = moves_of_single(-0.8, 0.16)
    assert chance_shown(down, 6) == pytest.approx(0.8**6, abs=0.02)


def test_tasks_that_are_easy_or_hopeless_differ_by_nothing():
    """Rates of 0 and 1 alone, the same tasks hard for both: a tenth moves from 0 to 1."""
    moves = moves_of_rates(0.3, 0.4, share=(1.0, 1.0), correlation=1.0, attempts=4)
    assert moves.chances == pytest.approx([0, 0, 0, 0, 0.9, 0, 0, 0, 0.1])
    apart = moves_of_rates(0.3, 0.4, share=(1.0, 1.0), correlation=0.0, attempts=4)
    assert apart.chances[[0, 4, 8]] == pytest.approx([0.18, 0.54, 0.28])


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12).filter(lambda x: sum(x) > 0))
def test_the_exact_p_is_that_of_the_comparison(moves):
    (found,) = _exact_p(np.array([moves]), np.array([sum(moves)]), 3)
    assert found == pytest.approx(sign_flip_p_value([x / 3 for x in moves]), abs=1e-9)


def test_more_attempts_than_are_drawn_keep_mean_and_variance():
    many = moves_of_rates(0.3, 0.5, share=(0.4, 0.2), correlation=0.0, attempts=64)
    k, values = many.attempts, np.arange(-many.attempts, many.attempts + 1) / many.attempts
    assert k == 16
    assert many.mean == pytest.approx(0.2, abs=0.005)
    variance = many.chances @ values**2 - many.mean**2
    expected = 0.21 * (0.4 + 0.6 / 64) + 0.25 * (0.2 + 0.8 / 64)
    assert variance == pytest.approx(expected, rel=0.03)


MODELS = [
    # First rate, lead, the tasks' share of the variance, correlation, attempts.
    (0.3, 0.4, 0.5, 0.0, 1),
    (0.3, 0.3, 0.5, 1.0, 1),
    (0.3, 0.3, 0.8, 1.0, 2),
    (0.1, 0.2, 0.6, 1.0, 4),
    (0.5, 0.3, 0.5, 0.0, 4),
    (0.3, 0.3, 0.5, 0.5, 4),
    (0.3, 0.3, 0.8, 1.0, 16),
]


def played_out(model, tasks, *, runs, seed):
    """How often `paired_difference` shows the lead in evaluations of that many tasks."""
    success, lead, share, correlation, attempts = model
    rng = np.random.default_rng(seed)
    size = 1 / share - 1
    first, second = (
        np.sort(rng.beta(p * size, (1 - p) * size, size=50_000)) for p in (success, success + lead)
    )
    shown = 0
    for _ in range(runs):
        one = rng.integers(50_000, size=tasks)
        other = np.where(rng.random(tasks) < correlation, one, rng.integers(50_000, size=tasks))
        a = rng.binomial(attempts, first[one]) / attempts
        b = rng.binomial(attempts, second[other]) / attempts
        found = paired_difference(*({t: [x] for t, x in enumerate(side)} for side in (a, b)))
        shown += found.shown and found.mean > 0
    return shown / runs


def moves_of(model):
    success, lead, share, correlation, attempts = model
    return moves_of_rates(
        success,
        success + lead,
        share=(share, share),
        correlation=correlation,
        attempts=attempts,
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tasks", [6, 11])
def test_the_chance_is_that_of_the_comparison(model, tasks):
    runs = 600
    simulated = played_out(model, tasks, runs=runs, seed=tasks)
    chance = chance_shown(moves_of(model), tasks)
    assert chance == pytest.approx(simulated, abs=0.015 + 3 * math.sqrt(0.25 / runs) * 0.8)


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tasks", [5, 8, 15, 20, 30, 50])
def test_the_chance_is_that_of_the_comparison_from_5_to_50_tasks(model, tasks):
    simulated = played_out(model, tasks, runs=500, seed=tasks)
    assert chance_shown(moves_of(model), tasks) == pytest.approx(simulated, abs=0.065)


def test_as_many_as_it_says_show_it_and_fewer_do_not():
    moves = moves_of_rates(0.3, 0.7, share=(0.0, 0.0), correlation=0.0, attempts=1)
    tasks = fewest_that_show(moves, power=0.8)
    assert chance_shown(moves, tasks) >= 0.8 > chance_shown(moves, tasks - 1)
    assert all(chance_shown(moves, n) >= 0.8 for n in range(tasks, FEW_TASKS + 1, 7))
    small = moves_of_rates(0.3, 0.4, share=(0.0, 0.0), correlation=0.0, attempts=1)
    assert fewest_that_show(small, power=0.8) is None


def test_of_many_tasks_the_chance_is_not_played_out():
    with pytest.raises(ConfigError, match=f"2 to {FEW_TASKS} tasks, got 61"):
        chance_shown(moves_of_single(0.2, 0.3), 61)
