"""Distributions of turns: that they are ones, and what follows from them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agentgym.cost.turns import (
    ConstantTurns,
    GeometricTurns,
    HistogramTurns,
    LogNormalTurns,
    Turns,
    expected_longest,
    mean_and_sd,
    turns_of_traces,
)

means = st.floats(1, 40)
DISTRIBUTIONS = st.one_of(
    st.builds(ConstantTurns, turns=st.integers(1, 50)),
    st.builds(
        HistogramTurns,
        counts=st.dictionaries(
            st.integers(1, 50).map(float), st.floats(0.01, 100), min_size=1, max_size=8
        ),
    ),
    st.builds(GeometricTurns, mean=means, max_turns=st.integers(1, 60)),
    st.builds(LogNormalTurns, mean=means, sd=st.floats(0.1, 30), max_turns=st.integers(1, 60)),
)


@given(DISTRIBUTIONS)
def test_probabilities_sum_to_one_over_at_least_one_turn(turns):
    outcomes = turns.outcomes
    assert math.fsum(outcomes.values()) == pytest.approx(1)
    assert min(outcomes) >= 1
    assert min(outcomes.values()) > 0


@given(DISTRIBUTIONS, st.floats(0.3, 1), st.floats(1, 3))
def test_scaling_keeps_the_order_of_the_means(turns, less, more):
    lower, mean, higher = (mean_and_sd(turns.scaled(f).outcomes)[0] for f in (less, 1, more))
    assert lower <= mean + 1e-9
    assert mean <= higher + 1e-9


@given(DISTRIBUTIONS, st.integers(1, 2000))
def test_longest_of_many_lies_between_the_mean_and_the_most(turns, episodes):
    longest = expected_longest(turns.outcomes, episodes)
    assert mean_and_sd(turns.outcomes)[0] - 1e-6 <= longest <= max(turns.outcomes) + 1e-6


def test_longest_of_two_by_hand():
    # 1 or 3 turns: both short in a quarter of the pairs.
    assert expected_longest({1.0: 0.5, 3.0: 0.5}, 2) == 0.25 * 1 + 0.75 * 3


def test_geometric_by_hand():
    outcomes = GeometricTurns(mean=2, max_turns=3).outcomes
    assert outcomes == {1: 0.5, 2: 0.25, 3: 0.25}  # the rest ends at the cap


def test_geometric_without_a_near_cap_has_its_mean_and_deviation():
    mean, sd = mean_and_sd(GeometricTurns(mean=5, max_turns=500).outcomes)
    assert mean == pytest.approx(5)
    assert sd == pytest.approx(math.sqrt(5 * 4))


def test_lognormal_without_a_near_cap_has_about_its_mean_and_deviation():
    mean, sd = mean_and_sd(LogNormalTurns(mean=12, sd=6, max_turns=1000).outcomes)
    assert mean == pytest.approx(12, rel=0.01)
    assert sd == pytest.approx(6, rel=0.02)


def test_a_number_is_a_constant_and_a_histogram_may_have_keys_as_text():
    adapter = TypeAdapter(Turns)
    assert adapter.validate_python(5) == ConstantTurns(turns=5)
    found = adapter.validate_python({"kind": "histogram", "counts": {"3": 10, "5": 30}})
    assert found.outcomes == {3: 0.25, 5: 0.75}


@pytest.mark.parametrize("mean", [5.5, {"kind": "constant", "turns": 5.5}])
def test_a_mean_is_no_constant(mean):
    with pytest.raises(ValidationError, match=r"no episode takes 5\.5 turns; .*geometric"):
        TypeAdapter(Turns).validate_python(mean)


def test_turns_of_traces_leave_out_what_something_else_broke():
    traces = [
        SimpleNamespace(failure_class=failure, turns=[None] * turns)
        for failure, turns in [(None, 2), (None, 2), ("policy", 5), ("infra", 1), (None, 0)]
    ]
    assert turns_of_traces(traces).counts == {2: 2, 5: 1}


@pytest.mark.parametrize(
    "wrong",
    [
        0,
        {"kind": "histogram", "counts": {}},
        {"kind": "histogram", "counts": {"3": 0}},
        {"kind": "histogram", "counts": {"0": 1}},
        {"kind": "geometric", "mean": 0.5, "max_turns": 3},
        {"kind": "geometric", "mean": float("nan"), "max_turns": 3},
        {"kind": "poisson", "mean": 3},
    ],
)
def test_what_is_no_distribution_is_refused(wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(Turns).validate_python(wrong)
