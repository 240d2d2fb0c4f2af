"""pass@k and pass^k: is one of k attempts right, and are all of k right.

Both are about the same policy and pull apart as k grows: pass@k says what could be reached with
someone to pick the right attempt, pass^k what can be relied on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agentgym.errors import ConfigError
from agentgym.statistics.means import Estimate, bounded_estimate


def pass_at_k(counts: Sequence[tuple[int, int]], k: int, *, level: float = 0.95) -> Estimate:
    """Chance that at least one of k attempts at a task is right, averaged over the tasks.

    mean over tasks of 1 - C(n-c, k) / C(n, k), which is unbiased, unlike 1 - (1 - c/n)^k.

    Args:
        counts: For each task, attempts that were scored and those of them that were right.
        k: Attempts to choose from; tasks with fewer are left out, and `n_clusters` says how many
            were not.
        level: Chance that the interval holds the value.

    Raises:
        ConfigError: If no task has k attempts.

    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374,
    section 2.1.
    """

    def chance(n: int, c: int) -> float:
        return 1 - math.comb(n - c, k) / math.comb(n, k)

    return _over_tasks("pass@k", chance, counts, k, level)


def pass_hat_k(counts: Sequence[tuple[int, int]], k: int, *, level: float = 0.95) -> Estimate:
    """Chance that all of k attempts at a task are right, averaged over the tasks.

    pass^k = mean over tasks of C(c, k) / C(n, k).

    Args:
        counts: For each task, attempts that were scored and those of them that were right.
        k: Attempts that all have to be right; tasks with fewer are left out.
        level: Chance that the interval holds the value.

    Raises:
        ConfigError: If no task has k attempts.

    Source: Yao et al., tau-bench, arXiv:2406.12045, section 4.
    """

    def chance(n: int, c: int) -> float:
        return math.comb(c, k) / math.comb(n, k)

    return _over_tasks("pass^k", chance, counts, k, level)


def _over_tasks(
    name: str,
    chance: Callable[[int, int], float],
    counts: Sequence[tuple[int, int]],
    k: int,
    level: float,
) -> Estimate:
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    if any(not 0 <= c <= n for n, c in counts):
        raise ConfigError("a task can't have more right attempts than attempts")
    enough = [(n, c) for n, c in counts if n >= k]
    if not enough:
        most = max((n for n, _ in counts), default=0)
        raise ConfigError(
            f"{name} with k = {k} needs {k} scored samples of a task, and there are {most} at most"
        )
    values = [chance(n, c) for n, c in enough]
    episodes = sum(n for n, _ in enough)
    found = bounded_estimate(values, range(len(values)), most=episodes, level=level)
    return found.model_copy(update={"n": episodes})
