"""From a judged episode to what the optimiser gets of it: a row and a reward, or nothing.

Every rule by which an episode loses its vote is here, in one order, and each is counted by name:
the row can't be trusted, nobody could score it, its reward is no number, it was cut by a limit that
is not to count, or it is the only scored one of its group. A row without a vote has neither reward
nor mask: with a mask of zeros it has no gradient through any loss, the KL term included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from agentgym.errors import ConfigError, unknown_name
from agentgym.trace import Trace
from agentgym.train.gathering import Gather, here_only
from agentgym.train.rows import TrainingRow, training_row

T = TypeVar("T")

CutBy: TypeAlias = Literal["turns", "tokens", "context", "time"]
"""A limit that ended an episode; other truncations are faults, and masked as such."""
TruncatedAs: TypeAlias = Literal["train", "mask", "floor"]
"""What a truncated episode is to the optimiser: worth what its verdict says, nothing, or the lowest
reward of the environment."""

TRUNCATED: Mapping[CutBy, TruncatedAs] = {
    "turns": "train",
    "tokens": "train",
    "context": "train",
    # A clock on the wall says how busy the machines were.
    "time": "mask",
}
"""What holds where nothing else is said."""

LARGEST = 1e18
"""The trainer compares rewards in float32: the squares of larger ones are infinite, and so would a
deviation be, or a baseline."""


@dataclass(frozen=True)
class Settled:
    """One episode as the optimiser will see it."""

    trace: Trace
    row: TrainingRow
    reward: float | None
    """None exactly when the row has no vote."""
    masked_by: str | None = None
    """Which rule took its vote: `row`, `unscored`, `nonfinite`, `truncated`, `stale` or `alone`."""

    def without_vote(self, rule: str) -> Settled:
        """The same episode, with nothing to learn from."""
        return replace(self, row=self.row.masked(), reward=None, masked_by=rule)


@dataclass(frozen=True)
class Objective:
    """The rules that look at one episode alone.

    Raises:
        ConfigError: If there is no such limit or choice.
    """

    truncated: Mapping[CutBy, TruncatedAs] = field(default_factory=lambda: dict(TRUNCATED))
    """By the limit that cut the episode; for limits left out, what `TRUNCATED` says."""
    floor: float | None = None
    """The lower end of the environment's reward range."""

    def __post_init__(self) -> None:
        for limit, choice in self.truncated.items():
            if limit not in TRUNCATED:
                raise ConfigError(unknown_name("limit", limit, TRUNCATED))
            if choice not in get_args(TruncatedAs):
                raise ConfigError(unknown_name("choice", choice, get_args(TruncatedAs)))
        object.__setattr__(self, "truncated", {**TRUNCATED, **self.truncated})

    def settle(self, trace: Trace, *, filler_id: int, row: TrainingRow | None = None) -> Settled:
        """Decide what an episode is worth to the optimiser.

        Args:
            trace: With ids and log-probabilities on its turns.
            filler_id: See `training_row`.
            row: The row to settle, where the episode has several; default: its one row.
        """
        row = training_row(trace, filler_id=filler_id) if row is None else row
        settled = Settled(trace, row, trace.reward)
        if row.fault is not None:
            return settled.without_vote("row")
        if trace.reward is None:
            return settled.without_vote("unscored")
        if not math.isfinite(trace.reward) or abs(trace.reward) > LARGEST:
            return settled.without_vote("nonfinite")
        choice = self.truncated.get(trace.truncation_reason) if trace.truncated else "train"  # type: ignore[arg-type]
        if choice == "mask":
            return settled.without_vote("truncated")
        if choice == "floor":
            assert self.floor is not None
            return replace(settled, reward=self.floor)
        return settled


def rewards_by_group(
    pairs: Iterable[tuple[T, float | None]], gather: Gather = here_only
) -> dict[T, list[float | None]]:
    """The rewards of each group, over all processes.

    Args:
        pairs: Group and reward of each row of this process.
        gather: Joins the processes; every one of them must call.
    """
    groups: dict[T, list[float | None]] = {}
    for group, reward in gather(list(pairs)):
        groups.setdefault(group, []).append(reward)
    return groups


def without_lone(
    settled: Sequence[Settled], groups: Mapping[str | None, Sequence[float | None]]
) -> list[Settled]:
    """Take the vote of episodes that have no scored sibling.

    TRL gives such a row the advantage 0, but lets it pull towards the reference model, and counts
    it in the deviation of the batch. One alone has no baseline, and teaches nothing.

    Args:
        settled: The rows of this process.
        groups: The rewards of each group over all processes, by `Trace.group`.
    """
    alone = {
        group
        for group, rewards in groups.items()
        if sum(reward is not None for reward in rewards) == 1
    }
    return [
        s.without_vote("alone") if s.trace.group in alone and s.reward is not None else s
        for s in settled
    ]


def masked_shares(rules: Sequence[str | None]) -> dict[str, float]:
    """Share of episodes without a vote, by rule; those masked by a verdict have metrics already.

    Args:
        rules: `Settled.masked_by` of each episode.
    """
    count = Counter(rules)
    return {
        f"masked/{rule}": count[rule] / len(rules)
        for rule in ("truncated", "nonfinite", "stale", "alone")
    }
