"""The figures, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from agentgym.statistics import cohen_kappa, correlation, pooled_spread


def test_kappa_of_a_table_worked_by_hand():
    """20 both yes, 5 and 10 apart, 15 both no: p_o = 0.7, p_e = 0.5·0.6 + 0.5·0.4 = 0.5, kappa 0.4.

    The table is the usual textbook example for Cohen (1960).
    """
    judged = [1.0] * 20 + [1.0] * 5 + [0.0] * 10 + [0.0] * 15
    expected = [1.0] * 20 + [0.0] * 5 + [1.0] * 10 + [0.0] * 15
    assert cohen_kappa(judged, expected) == pytest.approx(0.4)


def test_kappa_forgives_a_small_miss_more_than_a_large_one():
    """Labels 0, 0.5, 1; one miss by 0.5: 1 - (0.25/3) / (mean over the 9 pairs).

    Judged 0.5, 0.5, 1: the pairs' squared distances are 0.25, 0, 0.25 twice and 1, 0.25, 0, so
    their mean is 2.25/9 = 0.25, and kappa = 1 - 0.08333/0.25 = 2/3.
    """
    small = cohen_kappa([0.5, 0.5, 1.0], [0.0, 0.5, 1.0])
    large = cohen_kappa([1.0, 0.5, 1.0], [0.0, 0.5, 1.0])
    assert small == pytest.approx(2 / 3)
    assert large is not None
    assert large < small


def test_kappa_of_constants():
    assert cohen_kappa([1.0] * 4, [1.0] * 4) is None
    assert cohen_kappa([], []) is None
    assert cohen_kappa([1.0] * 4, [1.0, 0.0, 1.0, 0.0]) == pytest.approx(0.0)


def test_correlation_and_its_interval_by_hand():
    """x = 1..5, y = 2, 1, 4, 3, 5: r = 8/10 = 0.8; atanh 0.8 = 1.0986; ± 1.96/sqrt(2) = 1.3859.

    tanh(-0.2873) = -0.2796 and tanh(2.4845) = 0.9862.
    """
    found = correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    assert found is not None
    assert found.r == pytest.approx(0.8)
    assert found.low == pytest.approx(-0.2796, abs=1e-4)
    assert found.high == pytest.approx(0.9862, abs=1e-4)
    assert not found.is_significant


def test_correlation_is_none_where_there_can_be_none():
    assert correlation([1, 2, 3], [1, 2, 3]) is None
    assert correlation([1, 1, 1, 1], [1, 2, 3, 4]) is None
    assert correlation([1, 2, 3, 4], [0, 0, 0, 0]) is None
    perfect = correlation([1, 2, 3, 4], [2, 4, 6, 8])
    assert perfect is not None
    assert perfect.r == pytest.approx(1.0)
    assert perfect.is_significant


def test_pooled_spread_by_hand():
    """Groups 0, 1 and 0, 0, 1: squares 0.5 and 2/3, freedom 1 + 2; sqrt(1.16667/3) = 0.6236."""
    found = pooled_spread([[0.0, 1.0], [0.0, 0.0, 1.0], [7.0]])
    assert found == pytest.approx(math.sqrt((0.5 + 2 / 3) / 3))
    assert pooled_spread([[1.0], []]) is None
