"""How full the stages are, wherever their slots are kept.

In this process each stage counts for itself. A backend whose slots are on other machines tells only
where its episodes are; from that, looked at once a second, the same figures follow closely enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgym.rollout.limits import Limits
from agentgym.rollout.stages import Stages
from agentgym.rollout.tally import Tally
from agentgym.rollout.whereabouts import Waiting, Whereabouts
from agentgym.trace import Stage

_HOLD_NO_SLOT: frozenset[Waiting] = frozenset({"slot", "siblings", "retry"})


class StageFigures(Protocol):
    """One stage's; `StageSlots` has them, and `StageStatus` says what they mean."""

    @property
    def name(self) -> Stage:
        """The stage."""

    @property
    def slots(self) -> int:
        """Episodes that may be in it."""

    @property
    def active(self) -> int:
        """Episodes in it."""

    @property
    def waiting(self) -> int:
        """Episodes that wait for a slot."""

    @property
    def entered(self) -> int:
        """Episodes that have been given one."""

    @property
    def mean_s(self) -> float | None:
        """Seconds in it, over those that left."""

    @property
    def busy_s(self) -> float:
        """Slot-seconds used so far."""


class SeenStage:
    """A stage as it looks from where the episodes are.

    Args:
        name: The stage.
        slots: Episodes that may be in it.
        tally: Knows how long finished episodes were in it.
    """

    def __init__(self, name: Stage, slots: int, tally: Tally) -> None:
        self.name: Stage = name
        self.slots = slots
        self.active = 0
        self.waiting = 0
        self.busy_s = 0.0
        self._tally = tally

    @property
    def entered(self) -> int:
        """Those in it, and those of finished episodes."""
        return self.active + self._tally.stage(self.name).count

    @property
    def mean_s(self) -> float | None:
        """Over finished episodes."""
        return self._tally.stage(self.name).mean


class SeenStages:
    """The three stages of a backend whose slots are elsewhere.

    Args:
        limits: How many slots they have together.
        tally: What has happened so far.
    """

    def __init__(self, limits: Limits, tally: Tally) -> None:
        self._at_s: float | None = None
        self.stages = (
            SeenStage("init", limits.init_concurrency, tally),
            SeenStage("run", limits.concurrency, tally),
            SeenStage("eval", limits.eval_concurrency, tally),
        )

    def look(self, in_flight: Sequence[Whereabouts], now_s: float) -> None:
        """Take in where the episodes are.

        Args:
            in_flight: Those begun and not over.
            now_s: The time, seconds.
        """
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        places = Counter((each.stage, each.waiting) for each in in_flight)
        for stage in self.stages:
            stage.busy_s += stage.active * passed_s
            stage.waiting = places[stage.name, "slot"]
            stage.active = sum(
                count
                for (name, waiting), count in places.items()
                if name == stage.name and waiting not in _HOLD_NO_SLOT
            )


@dataclass(frozen=True)
class _Together:
    """A stage of several event loops, each of which has slots of its own."""

    name: Stage
    slots: int
    active: int
    waiting: int
    entered: int
    mean_s: float | None
    busy_s: float

    @classmethod
    def of(cls, parts: Sequence[StageFigures]) -> _Together:
        left = [part.entered - part.active for part in parts]
        held_s = sum((p.mean_s or 0.0) * count for p, count in zip(parts, left, strict=True))
        return cls(
            name=parts[0].name,
            slots=sum(part.slots for part in parts),
            active=sum(part.active for part in parts),
            waiting=sum(part.waiting for part in parts),
            entered=sum(part.entered for part in parts),
            mean_s=held_s / sum(left) if sum(left) else None,
            busy_s=sum(part.busy_s for part in parts),
        )


def figures_of(several: Sequence[Stages]) -> tuple[StageFigures, ...]:
    """The stages of this process, in an episode's order; those of several loops are added up."""
    in_order = [(stages.init, stages.run, stages.eval) for stages in several]
    return (
        in_order[0] if len(in_order) == 1 else tuple(map(_Together.of, zip(*in_order, strict=True)))
    )
