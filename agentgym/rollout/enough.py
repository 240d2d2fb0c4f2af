"""When a run has enough, and what becomes of the episodes that are not over by then.

A batch takes as long as its slowest episode. A trainer that needs 256 rollouts does better to ask
for 320 and go on with the first 256; a group whose rewards are all equal teaches it nothing. Groups
come whole: while a run is held against an `Enough`, the rollouts of a group are kept until all of
them are over, and only then read and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, model_validator

from agentgym.rollout.request import EpisodeRequest
from agentgym.trace import Trace
from agentgym.types import Record


class Enough(Record):
    """A run ends once either is reached."""

    episodes: int | None = Field(default=None, ge=1)
    """Scored episodes; rollouts of a group count once the whole group is over."""
    informative_groups: int | None = Field(default=None, ge=1)
    """Groups that are over and whose scored rollouts differ in reward."""
    unfinished: Literal["cancel", "carry"] = "cancel"
    """`cancel` stops the others, here and on the servers. `carry` lets them go on, and the engine's
    next run yields them as they finish; groups that have begun are carried whole."""

    @model_validator(mode="after")
    def _says_how_much(self) -> Enough:
        if self.episodes is None and self.informative_groups is None:
            raise ValueError("say how much is enough: episodes, informative_groups, or both")
        return self


@dataclass(frozen=True)
class Unit:
    """Traces that are read together: those of a whole group, or of one episode."""

    traces: tuple[Trace, ...]
    is_group: bool = False

    @property
    def is_informative(self) -> bool:
        """Whether it is a group whose scored rollouts differ in reward."""
        return self.is_group and len({t.reward for t in self.traces if t.reward is not None}) > 1


class Goal:
    """How much of what is enough has been reached."""

    def __init__(self, enough: Enough) -> None:
        self._enough = enough
        self._episodes = 0
        self._groups = 0

    def reached_by(self, unit: Unit) -> bool:
        """Count what has just come; whether that is enough."""
        self._episodes += sum(trace.scored for trace in unit.traces)
        self._groups += unit.is_informative
        episodes, groups = self._enough.episodes, self._enough.informative_groups
        return (episodes is not None and self._episodes >= episodes) or (
            groups is not None and self._groups >= groups
        )


@dataclass
class _Half:
    size: int | None
    begun: int = 0
    over: int = 0
    traces: list[Trace] = field(default_factory=list)


class Shelf:
    """Keeps what has finished of a group until the rest of it has.

    Args:
        keeps: Whether it does; otherwise everything comes out as it goes in.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._halves: dict[str, _Half] = {}
        self._all_begun = False

    def begin(self, request: EpisodeRequest) -> None:
        """One more episode has begun."""
        if self._keeps and request.group is not None:
            half = self._halves.setdefault(request.group, _Half(request.group_size))
            half.begun += 1

    def missing(self) -> Counter[str]:
        """How many rollouts each group lacks that has begun, as far as one knows."""
        lacks = {key: (half.size or 0) - half.begun for key, half in self._halves.items()}
        return Counter({key: count for key, count in lacks.items() if count > 0})

    def finish(self, request: EpisodeRequest, traces: Sequence[Trace]) -> list[Unit]:
        """An episode is over; returns what can be read by now."""
        if not self._keeps or request.group is None:
            return [Unit(tuple(traces))]
        half = self._halves[request.group]
        half.over += 1
        half.traces.extend(traces)
        return self._whole([request.group])

    def no_more(self) -> list[Unit]:
        """No further episode will begin; returns the groups that this makes whole."""
        self._all_begun = True
        return self._whole(list(self._halves))

    def leftovers(self) -> list[Unit]:
        """What has finished of groups that will never be whole."""
        halves, self._halves = self._halves, {}
        return [Unit(tuple(half.traces)) for half in halves.values() if half.traces]

    def _whole(self, keys: Sequence[str]) -> list[Unit]:
        units = []
        for key in keys:
            half = self._halves[key]
            filled = self._all_begun or (half.size is not None and half.begun >= half.size)
            if filled and half.over == half.begun:
                del self._halves[key]
                units.append(Unit(tuple(half.traces), is_group=True))
        return units
