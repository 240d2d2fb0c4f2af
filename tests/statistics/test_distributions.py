"""Quantiles and tails against printed tables."""

from __future__ import annotations

import pytest

from agentgym.statistics import normal_quantile, t_p_value, t_quantile


@pytest.mark.parametrize(
    ("freedom", "beyond", "printed"),
    [(1, 0.05, 12.706), (2, 0.05, 4.303), (5, 0.05, 2.571), (10, 0.01, 3.169), (30, 0.05, 2.042)],
)
def test_t_quantiles_are_those_of_the_tables(freedom: int, beyond: float, printed: float) -> None:
    assert t_quantile(freedom, beyond) == pytest.approx(printed, abs=5e-4)
    assert t_p_value(t_quantile(freedom, beyond), freedom) == pytest.approx(beyond)


@pytest.mark.parametrize(("level", "printed"), [(0.95, 1.95996), (0.9, 1.64485), (0.99, 2.57583)])
def test_normal_quantiles_are_those_of_the_tables(level: float, printed: float) -> None:
    assert normal_quantile(level) == pytest.approx(printed, abs=1e-5)


@pytest.mark.parametrize("freedom", [1001, 5000])
@pytest.mark.parametrize("beyond", [0.5, 0.05, 0.0027, 1e-6])
def test_quantiles_of_many_degrees_of_freedom_have_the_chance_they_are_asked_for(freedom, beyond):
    """The expansion against the whole sum."""
    assert t_p_value(t_quantile(freedom, beyond), freedom) == pytest.approx(beyond, rel=1e-5)


def test_a_quantile_of_a_million_degrees_of_freedom_is_the_normal_one():
    assert t_quantile(10**6, 0.05) == pytest.approx(normal_quantile(0.95), abs=1e-5)
