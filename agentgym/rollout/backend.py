"""The seam between what a run is and where its episodes are played.

The engine decides what is played, when a run has enough or has failed, and what becomes of the
traces. A backend plays single episodes: in this process (`local`), or on the nodes of a cluster
(`cluster`). Neither knows the other's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgym.judge import Scoring
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import Trace
from agentgym.types import Usage


@dataclass(frozen=True)
class Played:
    """What an episode came to."""

    trace: Trace
    scoring: Scoring | None = None
    """The env's, where it is in this process."""
    fatal: str | None = None
    """Why no other episode of the run can fare better, if so: a wrong key, no credit, …"""
    replaced: tuple[Trace, ...] = ()
    """Masked traces of rollouts that failed for good, in whose place in the group this one was
    rolled out; oldest first."""


class Playing(Protocol):
    """One episode that has been given its place and is about to be played."""

    @property
    def whereabouts(self) -> Whereabouts:
        """Where it is; kept current."""

    @property
    def spent(self) -> Mapping[str, Usage]:
        """What its model calls have cost so far, by role; asked when it was cancelled."""

    async def play(self) -> Played:
        """Play it to the end; awaited at most once.

        Attempts that `Setting.retry` allows are made here. Whatever breaks ends in a masked trace.
        Cancelling frees everything it holds, here and on the servers that work for it.

        Raises:
            AgentGymError: If no episode can be played as configured.
        """

    def over(self) -> None:
        """Give up all that is held, also if `play` never began; may be called again."""


class Batch(Protocol):
    """The episodes of one run."""

    async def admit(self) -> None:
        """Wait until there is room for one more episode, which is then kept for it."""

    def begin(self, request: EpisodeRequest) -> Playing:
        """Give an admitted episode its place, in its group too; `play` or `over` must follow."""

    def no_more(self) -> None:
        """No further episode will be requested; groups wait for nobody else."""


class Backend(Protocol):
    """Where episodes are played; bound to the event loop it is first used on."""

    def batch(self, tasks: asyncio.TaskGroup) -> Batch:
        """A new run, whose background work belongs into `tasks`."""

    def in_flight(self) -> Sequence[Whereabouts]:
        """All episodes begun and not over."""

    async def aclose(self) -> None:
        """Free what is kept between runs: environments, processes."""
