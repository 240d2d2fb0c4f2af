"""Which episodes a job consists of, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.remote.schema import Episodes
from agentgym.rollout.plan import first_tasks, plan_requests
from agentgym.rollout.request import EpisodeRequest, fresh_seed


def planned(episodes: Episodes, known: Sequence[str]) -> list[EpisodeRequest]:
    """A job's episodes.

    Args:
        episodes: As the job names them.
        known: The env's tasks, in its own order.

    Raises:
        ConfigError: If there are fewer tasks than asked for.
    """
    if episodes.requests:
        return seeded(episodes.requests)
    if episodes.seeds:
        group = episodes.samples > 1
        return [
            EpisodeRequest(
                seed=seed,
                group=f"seed/{seed}" if group else None,
                group_size=episodes.samples if group else None,
                sample=sample,
            )
            for seed in episodes.seeds
            for sample in range(episodes.samples)
        ]
    tasks = list(episodes.tasks)
    if episodes.first is not None:
        tasks = first_tasks(known, episodes.first)
    return plan_requests(tasks, samples=episodes.samples, seed=episodes.seed)


def seeded(requests: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
    """Each with a seed, so that an episode that is played again is the same one."""
    return [
        request if request.seed is not None else request.model_copy(update={"seed": fresh_seed()})
        for request in requests
    ]
