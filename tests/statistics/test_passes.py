"""pass@k and pass^k, against numbers worked by hand and by trying every choice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym.statistics import pass_at_k, pass_hat_k, share_estimate


def test_by_hand():
    """4 attempts, 1 right: pass@2 = 1 - C(3,2)/C(4,2) = 1 - 3/6; pass^2 = C(1,2)/C(4,2) = 0.

    3 right: pass@2 = 1 - C(1,2)/C(4,2) = 1, pass^2 = C(3,2)/C(4,2) = 3/6. The means are 0.75, 0.25.
    """
    counts = [(4, 1), (4, 3)]
    assert pass_at_k(counts, 2).mean == 0.75
    assert pass_hat_k(counts, 2).mean == 0.25


counted = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60)
@given(counts=counted, k=st.integers(1, 6))
def test_they_are_the_share_of_choices_of_k_attempts(counts, k):
    chosen = [list(combinations([True] * c + [False] * (n - c), k)) for n, c in counts if n >= k]
    if not chosen:
        with pytest.raises(ConfigError, match="scored samples of a task"):
            pass_at_k(counts, k)
        return
    some = [sum(map(any, each)) / len(each) for each in chosen]
    every = [sum(map(all, each)) / len(each) for each in chosen]
    assert pass_at_k(counts, k).mean == pytest.approx(sum(some) / len(some))
    assert pass_hat_k(counts, k).mean == pytest.approx(sum(every) / len(every))


def test_with_one_attempt_both_are_the_success_rate_with_its_interval():
    counts = [(1, 1), (1, 0), (1, 1), (1, 1)]
    share = share_estimate([True, False, True, True], "abcd")
    assert pass_at_k(counts, 1) == pass_hat_k(counts, 1) == share


def test_k_larger_than_the_samples_is_one_line():
    with pytest.raises(ConfigError, match=r"pass\^k with k = 5 needs 5 .* 4 at most"):
        pass_hat_k([(4, 1), (2, 1)], 5)
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        pass_at_k([(4, 1)], 0)
    with pytest.raises(ConfigError, match="more right attempts"):
        pass_at_k([(4, 5)], 1)


def test_tasks_with_too_few_attempts_are_left_out_and_counted():
    found = pass_at_k([(4, 4), (1, 0), (4, 0)], 2)
    assert (found.mean, found.n_clusters, found.n) == (0.5, 2, 8)


def test_tasks_all_alike_leave_doubt():
    found = pass_hat_k([(4, 4)] * 10, 4)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(10 / (10 + 3.8415), abs=1e-4)
