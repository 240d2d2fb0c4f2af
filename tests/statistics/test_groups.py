from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from agentgym.errors import ConfigError
from agentgym.statistics.groups import (
    all_equal,
    forecast_groups,
    informative_groups_seen,
    informative_share,
)


@pytest.mark.parametrize(
    ("p", "share"),
    [(0.01, 0.08), (0.02, 0.15), (0.05, 0.34), (0.10, 0.57), (0.20, 0.83), (0.50, 0.99)],
)
def test_share_at_a_known_rate(p: float, share: float) -> None:
    assert informative_share(p, 8) == pytest.approx(share, abs=0.005)
    assert informative_share(1 - p, 8) == pytest.approx(informative_share(p, 8))


def test_all_equal_is_the_beta_binomials_two_ends() -> None:
    # Beta(1, 1): each number of successes of G is equally likely, two of G + 1 are the ends.
    assert all_equal(1, 1, 8) == pytest.approx(2 / 9)
    # Beta(2, 1) has density 2p: ∫ 2p·p² + ∫ 2p(1-p)² = 1/2 + 1/6.
    assert all_equal(2, 1, 2) == pytest.approx(2 / 3)


def test_tasks_that_differ_have_fewer_informative_groups_than_their_mean_says() -> None:
    alike = forecast_groups([(8, 4)] * 40, 8)
    apart = forecast_groups([(8, 8)] * 20 + [(8, 0)] * 20, 8)
    assert alike.at_mean == apart.at_mean == pytest.approx(informative_share(0.5, 8))
    assert alike.low > 0.95
    assert apart.high < 0.2


def test_tasks_played_once_cannot_show_how_they_differ() -> None:
    once = forecast_groups([(1, 1)] * 20 + [(1, 0)] * 80, 8)
    assert once.repeated == 0
    assert once.low < 0.1
    assert once.high > 0.8


def test_no_success_is_not_a_rate_of_zero() -> None:
    seen = forecast_groups([(2, 0)] * 10, 8)
    assert seen.at_mean == 0
    assert seen.share > 0.1
    assert [(each.n, each.solved, each.tasks) for each in seen.by_count] == [(2, 0, 10)]
    assert forecast_groups([(2, 0)] * 1000, 8).high < 0.03


def test_solved_and_failed_are_mirror_images() -> None:
    few = forecast_groups([(4, 0)] * 15 + [(4, 1)] * 5, 8)
    many = forecast_groups([(4, 4)] * 15 + [(4, 3)] * 5, 8)
    assert few.share == pytest.approx(many.share, abs=1e-9)
    assert (few.low, few.high) == pytest.approx((many.low, many.high), abs=1e-9)


def test_each_count_of_solved_episodes_has_a_forecast_of_its_own() -> None:
    found = forecast_groups([(3, 0), (3, 1), (3, 2), (3, 3)], 4)
    shares = {each.solved: each.share for each in found.by_count}
    assert found.n_episodes == 12
    assert shares[0] < shares[1]
    assert shares[1] == pytest.approx(shares[2], abs=1e-9)
    assert shares[0] == pytest.approx(shares[3], abs=1e-9)


@pytest.mark.parametrize(("a", "b", "samples"), [(0.5, 0.5, 2), (2, 8, 4), (0.2, 1.8, 8)])
def test_interval_holds_the_truth_about_as_often_as_it_says(
    a: float, b: float, samples: int
) -> None:
    rng = np.random.default_rng(7)
    truth = 1 - all_equal(a, b, 8)
    held = 0
    for _ in range(100):
        solved = rng.binomial(samples, rng.beta(a, b, 40))
        found = forecast_groups([(samples, int(c)) for c in solved], 8)
        held += found.low <= truth <= found.high
    assert held >= 88  # 95 expected, standard deviation 2.2


def test_groups_that_could_be_drawn_are_counted_as_by_hand() -> None:
    tasks = [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    by_hand = [
        np.mean([len(set(pair)) > 1 for pair in itertools.combinations(task, 2)]) for task in tasks
    ]
    seen = informative_groups_seen(tasks, 2)
    assert seen is not None
    assert seen.mean == pytest.approx(np.mean(by_hand)) == pytest.approx(1 / 3)
    assert seen.n_clusters == 2
    assert informative_groups_seen(tasks, 4) is None
    assert informative_groups_seen([[0.5] * 5, [0.1]], 4) is not None


def test_figures_stay_within_their_range_for_large_counts() -> None:
    found = forecast_groups([(1000, 3), (2000, 1990)], 64)
    assert 0 <= found.low <= found.share <= found.high <= 1
    assert math.isfinite(found.share)


@pytest.mark.parametrize("counts", [[], [(0, 0)]])
def test_nothing_played_is_refused(counts: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigError, match="play some first"):
        forecast_groups(counts, 8)


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 <= solved <= n"):
        forecast_groups([(2, 3)], 8)
    with pytest.raises(ConfigError, match="2 episodes or more"):
        forecast_groups([(2, 1)], 1)


def test_many_episodes_and_large_groups_are_summed_the_same_way() -> None:
    few, many = (forecast_groups([(n, n // 4)] * 5, n) for n in (200, 201))
    assert few.share == pytest.approx(many.share, abs=1e-6)
    huge = forecast_groups([(100_000, 5_000)] * 3, 1_000_000)
    assert huge.low > 0.999
    assert forecast_groups([(100_000, 0)] * 3, 8).at_mean == 0


@pytest.mark.parametrize(
    ("counts", "group_size"),
    [([(4, 0)] * 10 + [(4, 2)] * 5, 8), ([(1, 0)] * 6, 8), ([(3, 1), (128, 0), (16, 16)], 4)],
)
def test_the_grid_gives_what_draws_from_the_prior_give(
    counts: list[tuple[int, int]], group_size: int
) -> None:
    rng, draws = np.random.default_rng(1), 60_000
    mean = rng.uniform(size=draws)
    total = np.exp(rng.uniform(np.log(0.05), np.log(500), draws))
    log_gamma = np.vectorize(math.lgamma)

    def log_beta(wins: int, losses: int) -> np.ndarray:
        a, b = mean * total + wins, (1 - mean) * total + losses
        return np.asarray(log_gamma(a) + log_gamma(b) - log_gamma(a + b))

    start = log_beta(0, 0)
    log_weight = sum(log_beta(c, n - c) - start for n, c in counts)
    weight = np.exp(log_weight - np.max(log_weight))
    equal = np.exp(log_beta(group_size, 0) - start) + np.exp(log_beta(0, group_size) - start)
    found = forecast_groups(counts, group_size)
    assert found.share == pytest.approx(float((1 - equal) @ weight / weight.sum()), abs=0.02)
