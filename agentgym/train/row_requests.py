"""From rows of a batch to requests for episodes.

Seeds depend on the training step and not on how often a process was called, so a resumed run
continues with the seeds it would have had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from agentgym.rollout import EpisodeRequest, derived_seed


def row_requests(
    tasks: Mapping[int, str], *, batch: str, seed: int, group_size: int, round_: int = 0
) -> Iterator[EpisodeRequest]:
    """One request per row; the rows of a group share the seed and differ by `sample`.

    Args:
        tasks: Task by row of the whole batch, as far as this process plays it. A group may be
            spread over processes.
        batch: Names the batch: the step, and which of its calls.
        seed: The run's.
        group_size: Rows of a group.
        round_: 0, or the round of refilling.
    """
    here = Counter(row // group_size for row in tasks)
    again = (f"again{round_}",) if round_ else ()
    for row, task in tasks.items():
        place, sample = divmod(row, group_size)
        yield EpisodeRequest(
            task_id=task,
            seed=derived_seed(seed, batch, place, *again),
            group=".".join((batch, str(place), *again)),
            group_size=here[place],
            sample=sample,
        )
