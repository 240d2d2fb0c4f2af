"""Limits that mean the whole cluster, shared out among its workers."""

from __future__ import annotations

from agentgym.rollout.limits import Limits


def share_of(limits: Limits, number: int, workers: int) -> tuple[Limits, int]:
    """One worker's part of the slots.

    The parts of RUN add up to the whole. In INIT and EVAL every worker that plays has one slot at
    least, so there may be more in all than were asked for where the workers outnumber them.

    Args:
        limits: The engine's.
        number: Which worker, from 0.
        workers: How many there are.

    Returns:
        The worker's limits, and how many episodes it may have that are not through with their
        turns; 0 where there are more workers than `concurrency`, and it is left out.
    """
    playing = min(workers, limits.concurrency)
    if number >= playing:
        one = dict.fromkeys(("concurrency", "init_concurrency", "eval_concurrency", "backlog"), 1)
        return limits.model_copy(update=one), 0

    def part(total: int) -> int:
        return total // playing + (number < total % playing)

    share = limits.model_copy(
        update={
            "concurrency": part(limits.concurrency),
            "init_concurrency": max(1, part(limits.init_concurrency)),
            "eval_concurrency": max(1, part(limits.eval_concurrency)),
            "backlog": max(1, part(limits.backlog)),
        }
    )
    return share, share.concurrency + share.init_concurrency
