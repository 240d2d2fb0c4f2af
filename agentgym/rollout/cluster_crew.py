"""The workers of a cluster: started where there is room, replaced when they die, each kept busy.

What a dead worker had is played again elsewhere. That must not go on for ever with an episode that
kills whatever plays it, and its neighbours must not be blamed for it. So what has lost two workers
is played once more by itself, in a process of its own; whatever kills that, twice, is the culprit
and ends masked, and everything else has been played.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from agentgym.clients.balanced import BalancedClient
from agentgym.errors import AgentGymError, ConfigError, RolloutStopped
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.cluster_desk import Desk
from agentgym.rollout.cluster_join import join, leave
from agentgym.rollout.cluster_parcel import Member, Parcel
from agentgym.rollout.cluster_remote import RemoteWorker
from agentgym.rollout.cluster_shares import share_of
from agentgym.rollout.cluster_worker import RolloutWorker
from agentgym.rollout.turns import Setting
from agentgym.threads import in_thread

logger = logging.getLogger(__name__)

RECRUIT_S = 1.0
"""Between two looks at the nodes and at the policy's replicas, seconds."""
_GATHER_S = 10.0
"""Longest wait for the other workers once the first one is ready, seconds."""
_SHARED_LOSSES = 2
"""Workers that a parcel may lose in company before it is played alone."""
_ALONE_LOSSES = 2
"""Workers that it may lose when it is alone in them."""
_CELLS = 2
"""Parcels that are played alone at once, each in a process of its own."""
_FAILED_STARTS = 5
"""Workers that may die, one after the other, before they are ready."""
_ACTOR_CALLS = 64


class Crew:
    """The workers of one backend.

    Args:
        cluster: Which cluster, and how much of it.
        job: What the workers are sent first.
        spec_json: The environments' spec, for the traces.
        setting: The driver's.
    """

    def __init__(self, cluster: Cluster, job: bytes, spec_json: str, setting: Setting) -> None:
        self._cluster = cluster
        self._job = job
        self._spec_json = spec_json
        self._setting = setting
        self._ray: Any = None
        self._desk: Any = None
        self._main: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup
        self._error: AgentGymError | None = None
        self._workers: list[RemoteWorker] = []
        self._homeless: list[Parcel] = []
        self._suspects: deque[Parcel] = deque()
        self._cells: list[RemoteWorker] = []
        self._moved = asyncio.Event()
        self._has_lost = asyncio.Event()
        self._mirrored = -1
        self._failed_starts = 0
        self._manned_at = 0.0
        self._most = setting.limits.concurrency + setting.limits.init_concurrency
        self._gather_until: float | None = None
        self._gathered = False
        self._resources = "no nodes"
        self.judges_groups = True
        """Whether the env's judge compares the rollouts of a group, as far as is known."""

    def start(self) -> None:
        """Begin to look for room, unless that is going on."""
        if self._main is None or self._main.done():
            self._error = None
            self._main = asyncio.create_task(self._work())

    async def aclose(self) -> None:
        """Stop all workers and leave the cluster."""
        if self._main is None:
            return
        self._main.cancel()
        await asyncio.wait([self._main])
        self._main = None

    # --- episodes -----------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until some worker has room.

        Raises:
            AgentGymError: If there will be none.
        """
        while True:
            if self._error is not None:
                raise self._error
            has_room = any(worker.has_room for worker in self._workers)
            if has_room and self._gathered and self._running < self._most:
                return
            self._moved.clear()
            await self._moved.wait()

    @property
    def _running(self) -> int:
        """Episodes given out and not through with their turns.

        While a new worker's share is taken from the others', these still have more than theirs.
        """
        return sum(worker.running for worker in self._workers)

    def begin(self, parcel: Parcel, member: Member) -> None:
        """Give an episode to the worker of its parcel, or to the one with the least to do."""
        self._mirror()
        if len(parcel.members) == 1:
            self._place(parcel)
        elif parcel.worker is not None:
            parcel.worker.begin(parcel, member)

    def close(self, parcel: Parcel) -> None:
        """Nobody else will come to a group."""
        parcel.is_closed = True
        if parcel.worker is not None:
            parcel.worker.close(parcel)
        parcel.settle()

    def cancel(self, parcel: Parcel, member: Member) -> asyncio.Event:
        """Stop an episode, wherever it is.

        Returns:
            Set once its worker has stopped it.
        """
        member.played.cancel()
        parcel.settle()
        if parcel.worker is not None:
            return parcel.worker.cancel(member)
        nobody = asyncio.Event()
        nobody.set()
        return nobody

    def _place(self, parcel: Parcel) -> None:
        """Find a worker for a parcel that has none."""
        ready = [w for w in self._workers if w.is_ready and w.capacity]
        if self._error is not None:
            parcel.fail(self._error)
        elif ready:
            self._hand_over(parcel, min(ready, key=lambda worker: worker.running))
        else:
            self._homeless.append(parcel)

    def _hand_over(self, parcel: Parcel, worker: RemoteWorker) -> None:
        for member in parcel.members:
            if not member.played.done():
                worker.begin(parcel, member)
        if parcel.is_group and parcel.is_closed:
            worker.close(parcel)

    # --- workers ------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Keep the crew complete, until cancelled or something breaks that no worker can mend."""
        joined = False
        try:
            self._ray = await in_thread(lambda: join(self._cluster), unwanted=lambda _: leave())
            joined = True
            self._desk = self._ray.remote(Desk).options(**self._beside_driver()).remote()
            async with asyncio.TaskGroup() as self._tasks:
                self._manned_at = time.monotonic()
                while True:
                    self._recruit(await in_thread(self._ray.nodes))
                    self._check_manned()
                    self._gather()
                    self._mirror()
                    await self._until_due()
        except BaseExceptionGroup as failures:
            self._fail(_first(failures))
        except Exception as error:
            self._fail(error)
        finally:
            if joined:
                await self._dismiss()

    async def _until_due(self) -> None:
        """Wait for the next look, or until a worker is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECRUIT_S):
                await self._has_lost.wait()
        self._has_lost.clear()

    def _beside_driver(self) -> dict[str, Any]:
        node = self._ray.get_runtime_context().get_node_id()
        return {"num_cpus": 0, "max_concurrency": 10_000, "scheduling_strategy": _on(node)}

    def _check_manned(self) -> None:
        """See that there is a worker, or was one not long ago.

        Raises:
            ConfigError: If there isn't.
        """
        patience_s = self._cluster.start_timeout_s
        if any(worker.is_ready for worker in self._workers):
            self._manned_at = time.monotonic()
        elif time.monotonic() - self._manned_at > patience_s:
            raise ConfigError(
                f"no worker was ready within {patience_s:g} s; each needs "
                f"{self._cluster.cpus_per_worker:g} CPUs and {self._cluster.resources or 'no'} "
                f"custom resources, and the cluster has {self._resources}"
            )

    def _gather(self) -> None:
        """See whether those that were asked for first are there, or have been waited for enough.

        Otherwise the first one to be ready would get everything.
        """
        ready = [worker for worker in self._workers if worker.is_ready]
        if ready and self._gather_until is None:
            self._gather_until = time.monotonic() + _GATHER_S
        late = self._gather_until is not None and time.monotonic() >= self._gather_until
        if not self._gathered and ready and (late or len(ready) == len(self._workers)):
            self._gathered = True
            self._moved.set()

    def _recruit(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Ask for the workers that are missing."""
        alive = [node for node in nodes if node["Alive"]]
        self._resources = "; ".join(
            f"{node['NodeManagerAddress']}: {_plain_resources(node)}" for node in alive
        )
        if self._cluster.workers is not None:
            for _ in range(self._cluster.workers - len(self._workers)):
                self._hire(None)
            return
        for node in alive:
            there = sum(worker.node == node["NodeID"] for worker in self._workers)
            for _ in range(self._room_on(node["Resources"]) - there):
                self._hire(node["NodeID"])

    def _room_on(self, resources: Mapping[str, float]) -> int:
        """Workers that fit on a node, if nothing else runs there."""
        needed = {"CPU": self._cluster.cpus_per_worker, **self._cluster.resources}
        return int(min(resources.get(name, 0.0) // amount for name, amount in needed.items()))

    def _hire(self, node: str | None) -> None:
        worker = self._new_worker(node, num_cpus=self._cluster.cpus_per_worker)
        self._workers.append(worker)
        self._tasks.create_task(self._employ(worker))

    def _new_worker(self, node: str | None, *, num_cpus: float, soft: bool = False) -> RemoteWorker:
        options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "resources": self._cluster.resources if num_cpus else {},
            "max_concurrency": _ACTOR_CALLS,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD" if node is None else _on(node, soft=soft),
        }
        if self._cluster.runtime_env:
            options["runtime_env"] = self._cluster.runtime_env
        return RemoteWorker(self._ray, self._ray.remote(RolloutWorker).options(**options), node)

    async def _employ(self, worker: RemoteWorker) -> None:
        """A worker's life, from being asked for to its end."""
        try:
            await self._start(worker)
            self._share_out()
            self._gather()
            homeless, self._homeless = self._homeless, []
            for parcel in homeless:
                self._place(parcel)
            self._moved.set()
            await worker.serve(turn=self._setting.progress.turn, moved=self._moved.set)
        except Exception as error:
            self._workers.remove(worker)
            self._lose(worker, self._cause_of_death(error))
            self._share_out()

    async def _start(self, worker: RemoteWorker) -> None:
        limits, _ = share_of(self._setting.limits, 0, max(1, len(self._workers)))
        started = await worker.start(self._job, limits, self._desk)
        if started.error is not None:
            raise ConfigError(f"worker on {worker.label}: {started.error}")
        self._failed_starts = 0
        if started.judges_groups is not None:
            self.judges_groups = started.judges_groups
        worker.is_ready = True
        if isinstance(self._setting.client, BalancedClient):
            worker.follow(self._setting.client.roster)

    def _share_out(self) -> None:
        """Share the limits out among the workers that are there."""
        ready = [worker for worker in self._workers if worker.is_ready]
        for number, worker in enumerate(ready):
            limits, slots = share_of(self._setting.limits, number, len(ready))
            worker.share(limits, len(ready), min(slots, self._cluster.episodes_per_worker))

    def _mirror(self) -> None:
        """Tell the workers what has become of the policy's replicas; before the next episode."""
        client = self._setting.client
        if isinstance(client, BalancedClient) and client.changes != self._mirrored:
            self._mirrored, roster = client.changes, client.roster
            for worker in (*self._workers, *self._cells):
                if worker.is_ready:
                    worker.follow(roster)

    def _cause_of_death(self, error: Exception) -> str:
        """Why a worker is gone.

        Raises:
            Exception: The error itself, if it is none of a worker's death.
        """
        deaths = self._ray.exceptions
        failure = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(failure, deaths.RuntimeEnvSetupError):
            raise ConfigError(f"runtime_env: {_in_a_line(failure)}") from error
        if isinstance(failure, deaths.RayTaskError) or not isinstance(failure, deaths.RayError):
            raise failure
        return _in_a_line(failure)

    def _lose(self, worker: RemoteWorker, cause: str, *, alone: bool = False) -> None:
        """Have everything that a dead worker had played again."""
        was_ready = worker.is_ready
        worker.kill()
        if was_ready:
            self._has_lost.set()
        self._desk.drop.remote(worker.name)
        lost = [parcel for parcel in worker.parcels if not parcel.is_over]
        logger.warning("worker %s is gone with %d episodes: %s", worker.label, len(lost), cause)
        if not was_ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS and not any(w.is_ready for w in self._workers):
                raise RolloutStopped(f"{_FAILED_STARTS} workers died while starting: {cause}")
        for parcel in lost:
            parcel.lose(cause)
            parcel.losses_alone += alone
            parcel.losses += not alone
            if parcel.losses_alone >= _ALONE_LOSSES:
                parcel.convict(cause, self._spec_json, self._setting)
                for suspect in self._suspects:  # this one was the culprit, as far as is known
                    suspect.losses = 0
            elif parcel.losses >= _SHARED_LOSSES:
                self._suspect(parcel)
            else:
                self._place(parcel)

    def _suspect(self, parcel: Parcel) -> None:
        """Have a parcel played by itself."""
        self._suspects.append(parcel)
        if len(self._cells) < _CELLS:
            ready = [worker for worker in self._workers if worker.is_ready]
            node = min(ready, key=lambda worker: worker.running).node if ready else None
            cell = self._new_worker(node, num_cpus=0, soft=True)
            self._cells.append(cell)
            self._tasks.create_task(self._play_alone(cell))

    async def _play_alone(self, cell: RemoteWorker) -> None:
        """Play suspects one after the other in a process in which nothing else is."""
        turn = self._setting.progress.turn
        try:
            await self._start(cell)
            limits, slots = share_of(self._setting.limits, 0, 1)
            cell.share(limits, len(self._cells) + len(self._workers), slots)
            while self._suspects:
                parcel = self._suspects.popleft()
                if not parcel.losses:  # cleared meanwhile
                    self._place(parcel)
                    continue
                self._hand_over(parcel, cell)
                is_over = functools.partial(_is_over, parcel)
                await cell.serve(turn=turn, moved=self._moved.set, until=is_over)
        except Exception as error:
            self._cells.remove(cell)
            self._lose(cell, self._cause_of_death(error), alone=True)
            if self._suspects and not self._cells:
                self._suspect(self._suspects.popleft())
        else:
            self._cells.remove(cell)
            await cell.stop()

    async def _dismiss(self) -> None:
        """Stop all workers and leave the cluster."""
        workers = [*self._workers, *self._cells]
        self._workers, self._cells = [], []
        await asyncio.gather(*(worker.stop() for worker in workers))
        if self._desk is not None:
            self._ray.kill(self._desk)
            self._desk = None
        await in_thread(leave)

    def _fail(self, error: BaseException) -> None:
        """Nothing more can be played."""
        if not isinstance(error, AgentGymError):
            wrapped = RolloutStopped(f"the cluster failed: {_in_a_line(error)}")
            wrapped.__cause__ = error
            error = wrapped
        self._error = error
        for worker in (*self._workers, *self._cells):
            worker.retire()
            self._homeless += worker.parcels
        for parcel in (*self._homeless, *self._suspects):
            parcel.fail(error)
        self._homeless = []
        self._suspects.clear()
        self._moved.set()


def _on(node: str, *, soft: bool = False) -> Any:
    """Ray's word for: on this node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


def _is_over(parcel: Parcel) -> bool:
    return parcel.is_over


def _plain_resources(node: Mapping[str, Any]) -> str:
    """A node's resources, without those that Ray makes up."""
    made_up = ("node:", "memory", "object_store_memory", "accelerator_type:")
    told = {k: v for k, v in node["Resources"].items() if not k.startswith(made_up)}
    return ", ".join(f"{name} {amount:g}" for name, amount in told.items()) or "no CPU"


def _first(group: BaseException) -> BaseException:
    """The first cause in a group of errors."""
    return _first(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group


def _in_a_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else text[:400] + "…"
