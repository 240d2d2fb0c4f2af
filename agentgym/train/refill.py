"""DAPO's dynamic sampling: groups without signal give their place to groups of further tasks.

TRL wants exactly as many rows as it sent prompts, so the batch keeps its size: where a group's
rewards are all equal, or fewer than two of its rollouts are scored, another task is played in its
place, for a number of rounds. A place that stays without signal keeps its first group.

All processes must agree on which groups are played anew, also where a group is spread over several
of them. So each round every process learns all rewards, and decides the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from agentgym.errors import TrainingError
from agentgym.rollout import derived_seed
from agentgym.train.advantages import informative
from agentgym.train.gathering import Gather, here_only
from agentgym.train.objective import Settled, rewards_by_group

Replay = Callable[[Sequence[tuple[int, str]], int], Sequence[Settled]]
"""Plays one episode per pair of row and task; the second argument counts the rounds from 1."""


@dataclass(frozen=True)
class Refilled:
    """A batch after its rounds."""

    kept: list[Settled]
    """Shape `(B,)`: what goes to the trainer, in the order of the prompts."""
    left_out: list[Settled]
    """Episodes that were played and are not trained on."""
    rounds: int
    groups_played: int
    """Over all processes, the first ones included."""
    groups_kept: int
    """Groups with signal that go to the trainer, over all processes."""

    def metrics(self) -> dict[str, float]:
        """As the log names them."""
        return {
            "refill/rounds": float(self.rounds),
            "refill/groups_played": float(self.groups_played),
            "refill/groups_kept": float(self.groups_kept),
        }


def further_tasks(
    tasks: Sequence[str], *, besides: Collection[str], seed: int, step: int | str
) -> Iterator[str]:
    """Tasks to go on with in a step, without end: those it hasn't got first, then all, anew.

    The order depends on seed and step alone, so that a resumed run draws what it would have drawn.

    Args:
        tasks: All of them, without repetition; at least one.
        besides: Tasks that the step plays already.
        seed: The run's.
        step: Names the step.

    Raises:
        TrainingError: If there are none.

    Source: DAPO, arXiv:2503.14476, section 3.2.
    """
    if not tasks:
        raise TrainingError("no tasks to refill with; refill_tasks names them")
    draw = random.Random(derived_seed(seed, "refill", step))
    fresh = [task for task in tasks if task not in besides]
    draw.shuffle(fresh)
    yield from fresh
    while True:
        again = list(tasks)
        draw.shuffle(again)
        yield from again


def refill(
    played: Sequence[Settled],
    groups: Sequence[int],
    *,
    rounds: int,
    tasks: Iterator[str],
    play: Replay,
    gather: Gather = here_only,
) -> Refilled:
    """Play further groups in the places of those without signal.

    Args:
        played: Shape `(B,)`: this process's rows.
        groups: Shape `(B,)`: the place in the whole batch that each row's group has.
        rounds: How often, at most.
        tasks: Where further ones come from; the same on every process.
        play: Plays them.
        gather: Joins the processes; every one of them must come here with the same `rounds`.
    """
    kept: list[Settled] = list(played)
    left_out: list[Settled] = []
    rewards = rewards_by_group(((g, s.reward) for g, s in zip(groups, kept, strict=True)), gather)
    missing = [group for group in sorted(rewards) if not informative(rewards[group])]
    places, count, done = len(rewards), len(rewards), 0
    while missing and done < rounds:
        done += 1
        count += len(missing)
        asked = {group: next(tasks) for group in missing}
        slots = [slot for slot, group in enumerate(groups) if group in asked]
        fresh = play([(slot, asked[groups[slot]]) for slot in slots], done) if slots else []
        rewards = rewards_by_group(
            ((groups[slot], s.reward) for slot, s in zip(slots, fresh, strict=True)), gather
        )
        found = {group for group in rewards if informative(rewards[group])}
        for slot, episode in zip(slots, fresh, strict=True):
            if groups[slot] in found:
                left_out.append(kept[slot])
                kept[slot] = episode
            else:
                left_out.append(episode)
        missing = [group for group in missing if group not in found]
    return Refilled(
        kept, left_out, rounds=done, groups_played=count, groups_kept=places - len(missing)
    )
