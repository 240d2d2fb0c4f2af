from __future__ import annotations

import math

import pytest

from agentgym.statistics.exact import beta_cdf, exact_interval, exact_side


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        (1, 1, 0.025, 1.0),  # p = .025 gives one hit of one with chance .025
        (0, 20, 0.0, 1 - 0.025 ** (1 / 20)),
        (5, 10, 0.18709, 0.81291),  # tables of Clopper and Pearson
        (2, 100, 0.00243, 0.07038),
        (0, 0, 0.0, 1.0),
    ],
)
def test_exact_bounds_are_those_of_the_tables(
    count: float, n: float, low: float, high: float
) -> None:
    assert exact_interval(count, n) == pytest.approx((low, high), abs=2e-5)


def test_the_incomplete_beta_function_is_the_tail_of_a_binomial() -> None:
    n, p = 30, 0.2
    for k in range(1, n + 1):
        tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
        assert beta_cdf(p, k, n - k + 1) == pytest.approx(tail, rel=1e-9)


@pytest.mark.thorough
def test_a_limit_is_passed_by_mistake_no_more_often_than_it_says() -> None:
    for limit in (0.05, 0.1, 0.5):
        for n in range(1, 40):
            wrongly = sum(
                math.comb(n, k) * limit**k * (1 - limit) ** (n - k)
                for k in range(n + 1)
                if exact_interval(k, n)[0] > limit
            )
            assert wrongly <= 0.025


def test_the_side_of_a_limit_is_that_of_the_interval() -> None:
    for n in (1, 3, 20, 33.3):
        for count in (0, 0.4, 1, n / 2, n):
            for limit in (0.05, 0.1, 0.5):
                low, high = exact_interval(min(count, n), n)
                side = 1 if low >= limit else -1 if high < limit else 0
                assert exact_side(min(count, n), n, limit) == side
