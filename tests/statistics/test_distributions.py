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
