"""Episodes on a Ray cluster: workers play them, this process decides and writes.

A worker is a process on some node that runs the same stages as `local` does, on its own event loop.
The driver, which is the process that has the engine, gives each episode to the worker with the
least to do, gets traces back and is the only one that writes them. Ray starts the processes, finds
room for them and notices when one dies; what happens to episodes then is decided here, since only
the driver knows which of them are over. See docs/scaling.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence

from agentgym.client import Endpoint
from agentgym.errors import ConfigError
from agentgym.judge import Scoring
from agentgym.rollout.backend import Played
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.cluster_crew import Crew
from agentgym.rollout.cluster_job import packed
from agentgym.rollout.cluster_parcel import Member, Parcel
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.source import EnvSource
from agentgym.rollout.turns import Setting
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.types import Usage

logger = logging.getLogger(__name__)


class RayBackend:
    """Plays episodes on the workers of a Ray cluster; see `Backend`.

    Every limit of the engine means the whole cluster: slots and an endpoint's `max_concurrency` are
    shared out among the workers, and again when their number changes. Calls of an endpoint with a
    budget or a rate limit all go through one process, which keeps them exactly.

    Args:
        source: Makes the environments; sent to the workers.
        setting: What the episodes share; sent to the workers.
        endpoints: The policy's. Without, the setting's client is sent, if it can be.
        cluster: Which cluster, and how much of it.

    Raises:
        ConfigError: If something can't be sent to other machines, a canary has no judge, or there
            is a journal.
        MissingExtraError: If Ray isn't installed.
    """

    def __init__(
        self,
        source: EnvSource,
        setting: Setting,
        *,
        endpoints: Sequence[Endpoint] = (),
        cluster: Cluster | None = None,
    ) -> None:
        if setting.journal is not None:
            raise ConfigError("a journal needs the episodes in this process; use backend='local'")
        canary = setting.canary
        if canary is not None and canary.judge is None:
            raise ConfigError(
                "canary: on a cluster the env's judge lives in the workers; give Canary(judge=…)"
            )
        self._scoring = None if canary is None else Scoring(judge=canary.judge)
        self.cleanup_timeout_s = setting.limits.cleanup_timeout_s
        self._together = setting.retry is not None and setting.retry.min_group_size is not None
        self._playing: set[RayPlaying] = set()
        job = packed(source, setting, endpoints)
        self.crew = Crew(cluster or Cluster(), job, source.spec_json, setting)

    def batch(self, tasks: asyncio.TaskGroup) -> RayBatch:
        """See `Backend`."""
        self.crew.start()
        return RayBatch(self)

    def in_flight(self) -> Sequence[Whereabouts]:
        """See `Backend`; as of about a second ago."""
        return [playing.whereabouts for playing in tuple(self._playing)]  # any thread may ask

    async def aclose(self) -> None:
        """Stop the workers, and leave the cluster if this backend joined it."""
        await self.crew.aclose()

    def began(self, playing: RayPlaying) -> None:
        """Note an episode that is in flight."""
        self._playing.add(playing)

    def ended(self, playing: RayPlaying) -> None:
        """Forget an episode."""
        self._playing.discard(playing)

    @property
    def groups_stay_together(self) -> bool:
        """Whether the rollouts of a group go to one worker: if they are compared or replaced."""
        return self._together or self.crew.judges_groups

    @property
    def scoring(self) -> Scoring | None:
        """By which the canary's episodes are judged, in this process."""
        return self._scoring


class RayBatch:
    """The episodes of one run; see `Batch`."""

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend
        self._crew = backend.crew
        self._groups: dict[str, Parcel] = {}

    async def admit(self) -> None:
        """Wait until a worker has room.

        Raises:
            AgentGymError: If there can be no worker.
        """
        await self._crew.room()

    def begin(self, request: EpisodeRequest) -> RayPlaying:
        """Give the episode to a worker; rollouts that belong together to the same one."""
        parcel = self._parcel(request)
        member = Member(request)
        parcel.members.append(member)
        self._crew.begin(parcel, member)
        if request.group_size is not None and len(parcel.members) >= request.group_size:
            self._close(parcel)
        playing = RayPlaying(self._backend, parcel, member)
        self._backend.began(playing)
        return playing

    def no_more(self) -> None:
        """Let groups wait for nobody else."""
        for parcel in list(self._groups.values()):
            self._close(parcel)

    def _parcel(self, request: EpisodeRequest) -> Parcel:
        if request.group is None or not self._backend.groups_stay_together:
            return Parcel(is_group=False)
        parcel = self._groups.get(request.group)
        if parcel is None:
            parcel = self._groups[request.group] = Parcel(is_group=True)
        return parcel

    def _close(self, parcel: Parcel) -> None:
        self._groups = {key: other for key, other in self._groups.items() if other is not parcel}
        if parcel.is_group:
            self._crew.close(parcel)


class RayPlaying:
    """One episode; see `Playing`."""

    def __init__(self, backend: RayBackend, parcel: Parcel, member: Member) -> None:
        self._backend = backend
        self._parcel = parcel
        self._member = member

    @property
    def whereabouts(self) -> Whereabouts:
        """Where it was when its worker last said so."""
        return self._member.whereabouts

    @property
    def spent(self) -> Mapping[str, Usage]:
        """What it has cost, as its workers have said."""
        return self._member.spent

    async def play(self) -> Played:
        """Wait for the trace.

        Raises:
            AgentGymError: If no episode can be played as configured, or the cluster is gone.
        """
        try:
            played = await self._member.played
        except asyncio.CancelledError:
            await self._cancelled()
            raise
        finally:
            self.over()
        return dataclasses.replace(played, scoring=self._backend.scoring)

    def over(self) -> None:
        """Give up what is held; whatever is still played is stopped, without waiting for it."""
        if not self._member.played.done():
            self._backend.crew.cancel(self._parcel, self._member)
        self._backend.ended(self)

    async def _cancelled(self) -> None:
        """Have the worker stop it, and wait until it has."""
        patience_s = self._backend.cleanup_timeout_s
        cancelled = self._backend.crew.cancel(self._parcel, self._member)
        try:
            async with asyncio.timeout(patience_s):
                await cancelled.wait()
        except TimeoutError:
            logger.warning(
                "%s was not cancelled on its worker within %g s", self.whereabouts.name, patience_s
            )
