"""Which episodes a run consists of, and which of them are still missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentgym.errors import ConfigError, UnknownTaskError
from agentgym.rollout.request import EpisodeRequest, derived_seed


def plan_requests(
    task_ids: Sequence[str],
    *,
    samples: int = 1,
    seed: int = 0,
    done: Collection[tuple[str, int]] = (),
    whole_groups: bool = False,
) -> list[EpisodeRequest]:
    """One request for every sample of every task that isn't done.

    An episode's seed depends on its task and the run's seed alone, so neither the number of tasks
    nor an interruption changes it.

    Args:
        task_ids: The tasks, each once.
        samples: Rollouts per task; with more than one they form a group.
        seed: The run's seed.
        done: (task_id, sample) pairs to leave out.
        whole_groups: Whether a task with any sample missing is played with all of them, for a judge
            that compares them: what it said of some siblings is no measure for the others.
    """
    highest: dict[str, int] = {}
    for task_id, sample in done:
        highest[task_id] = max(sample, highest.get(task_id, 0))
    requests = []
    for task_id in task_ids:
        missing = [sample for sample in range(samples) if (task_id, sample) not in done]
        if missing and whole_groups:
            missing = list(range(samples))
        requests += [
            EpisodeRequest(
                task_id=task_id,
                seed=derived_seed(seed, task_id),
                group=task_id if samples > 1 else None,
                group_size=len(missing) if samples > 1 else None,
                sample=sample,
                free_sample=(max(samples, highest.get(task_id, 0) + 1) if samples > 1 else None),
            )
            for sample in missing
        ]
    return requests


def first_tasks(known: Sequence[str], n: int | None, *, default: int = 100) -> list[str]:
    """The first tasks, in the env's own order.

    Args:
        known: All tasks.
        n: How many; None leaves it to `default`.
        default: How many then, or all if there are fewer.

    Raises:
        ConfigError: If there are fewer than asked for.
    """
    if n is not None and not 1 <= n <= len(known):
        raise ConfigError(
            f"there are {len(known)} tasks, so n must be 1 to {len(known)}, got {n}; "
            "several rollouts of one task are samples"
        )
    return list(known[: n or default])


def named_tasks(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The tasks asked for by name, each once.

    Raises:
        UnknownTaskError: If there is no such task.
    """
    all_ids = frozenset(known)
    for task_id in wanted:
        if task_id not in all_ids:
            raise UnknownTaskError(
                f"no task {task_id!r}; there are {len(known)}, {known[0]!r} to {known[-1]!r}"
            )
    return list(dict.fromkeys(wanted))
