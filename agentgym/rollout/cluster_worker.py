"""A worker: what runs on a node, inside a Ray actor.

It plays what it is told to on the same stages as a run in one process, and answers one question
again and again: what is new? Orders and news are plain data, traces are JSON lines, so nothing of
the environment has to exist on the driver. Everything it says it says once; what is lost on the way
is lost with the worker, and the driver has its episodes played again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agentgym.clients.balanced import BalancedClient
from agentgym.clients.connect import connecting_by
from agentgym.clients.replicas import Listed
from agentgym.errors import AgentGymError
from agentgym.metering import Meter, metered
from agentgym.rollout.cluster_desk import ClientsOfWorker
from agentgym.rollout.cluster_job import Job, unpacked
from agentgym.rollout.engine import policy_client
from agentgym.rollout.hosted import check_keys
from agentgym.rollout.limits import Limits
from agentgym.rollout.local import LocalBackend, LocalBatch
from agentgym.rollout.progress import NoProgress
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.stages import Admission, Stages, StageSlots
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.types import Usage

Order: TypeAlias = (
    tuple[Literal["begin"], str, str, str]
    | tuple[Literal["close"], str]
    | tuple[Literal["cancel"], str]
    | tuple[Literal["share"], str, int]
    | tuple[Literal["policy"], tuple[Listed, ...]]
)
"""`begin` parcel (empty for an episode by itself), key, request as JSON · `close` parcel: nobody
else will come · `cancel` key · `share` limits as JSON, number of workers · `policy` replicas."""

REPORT_S = 1.0
"""Between two reports of where the episodes are, seconds."""
_NEWS_BYTES = 4 << 20
"""Traces told at once, unless one alone is longer."""


@dataclass
class Finished:
    """How one episode ended."""

    key: str
    trace: str | None = None
    """One JSON line; None if it was cancelled or broke."""
    fatal: str | None = None
    replaced: list[str] = field(default_factory=list)
    """Traces of rollouts that it was rolled out in place of."""
    error: str | None = None
    """Why no episode can be played as configured."""
    spent: dict[str, Usage] = field(default_factory=dict)
    """What it cost, where there is no trace."""


@dataclass
class News:
    """What has happened since the last time."""

    orders: int
    """Episodes begun by order so far."""
    pending: int
    """Those that are not through with their turns."""
    finished: list[Finished] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """Tokens of each answer of the policy."""
    whereabouts: dict[str, tuple[Any, ...]] | None = None
    """Stage, waiting, seconds waited, turn, attempt, replica; by key."""
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """What episodes have cost so far, where that has changed; by key and role."""


@dataclass
class Started:
    """A worker is there, or why it can't be."""

    node: str
    """Ray's id of the node."""
    label: str
    """Node and process, for people."""
    judges_groups: bool | None = None
    """None where no environment could be made to look."""
    error: str | None = None


class _Counting(NoProgress):
    """A progress that keeps what the driver's will be told."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    def turn(self, tokens: int) -> None:
        """A policy answered."""
        self.turns.append(tokens)


class _ToldAdmission(Admission):
    """An admission that says when a place comes free."""

    def __init__(self, places: int, last: StageSlots, freed: asyncio.Event) -> None:
        super().__init__(places, last)
        self._freed = freed

    def release(self) -> None:
        """Give a place back."""
        super().release()
        self._freed.set()


@dataclass
class _InPlay:
    """One episode that a worker has."""

    whereabouts: Whereabouts | None = None
    """None while it waits to be begun."""
    task: asyncio.Task[None] | None = None
    meter: Meter = field(default_factory=Meter)
    calls_told: int = 0


class RolloutWorker:
    """The body of the actor; `start` comes first."""

    async def start(self, name: str, job: bytes, limits: str, desk: Any) -> Started:
        """Load what is to be played, and make the first environment.

        Args:
            name: The worker's, among all that ever were.
            job: See `packed`.
            limits: The worker's share of them, as JSON.
            desk: The actor that answers for endpoints with a budget or a rate.
        """
        here = _here()
        self._news = asyncio.Event()
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._batches: dict[str, LocalBatch] = {}
        self._in_play: dict[str, _InPlay] = {}
        self._finished: deque[Finished] = deque()
        self._begun = 0
        self._unbegun = 0
        self._reported_at = 0.0
        self._progress = _Counting()
        self._roster: tuple[Listed, ...] = ()
        self._workers = 1
        self._leaving: set[asyncio.Task[None]] = set()
        self._clients = ClientsOfWorker(desk, name)
        try:
            with connecting_by(self._clients.client_of):
                self._backend = self._prepared(unpacked(job), Limits.model_validate_json(limits))
                judges_groups = await self._look()
                self._main = asyncio.create_task(self._play_all())
        except AgentGymError as error:
            return Started(*here, error=str(error))
        return Started(*here, judges_groups)

    def _share(self, workers: int) -> None:
        self._workers = workers
        self._clients.share(workers)
        self._follow()

    def _follow(self) -> None:
        """Have the policy's replicas that the driver has, and this worker's part of them."""
        client = self._backend.setting.client
        if not isinstance(client, BalancedClient) or not self._roster:
            return
        for name in client.follow(self._roster, sharers=self._workers):
            leaving = asyncio.create_task(client.remove(name))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def _prepared(self, job: Job, limits: Limits) -> LocalBackend:
        check_keys(job.source.env_kwargs)
        if job.is_balanced:
            client: Any = BalancedClient(job.endpoints)
        else:
            client = policy_client(job.endpoints) if job.endpoints else job.client
        setting = job.setting.model_copy(update={"client": client, "progress": self._progress})
        stages = Stages(limits)
        places = limits.init_concurrency + limits.concurrency
        stages.admission = _ToldAdmission(places, stages.eval, self._news)
        return LocalBackend(job.source, setting, stages)

    async def _look(self) -> bool | None:
        """Make the first environment, to see whether its judge compares.

        Raises:
            AgentGymError: If none can be made as configured.
        """
        pool, limits = self._backend.pool, self._backend.setting.limits
        try:
            async with asyncio.timeout(limits.init_timeout_s):
                handle = await pool.acquire()
        except AgentGymError:
            raise
        except Exception:  # the episodes' own attempts will tell, in their traces
            return None
        judges_groups = handle.scoring.judges_groups
        await pool.release(handle)
        return judges_groups

    async def orders(self, orders: list[Order]) -> None:
        """Take orders; they are carried out in turn."""
        for order in orders:
            if order[0] == "begin":
                self._begun += 1
                self._unbegun += 1
                self._in_play[order[2]] = _InPlay()
            if order[0] == "cancel":
                self._cancel(order[1])
            elif order[0] == "share":
                self._backend.stages.resize(Limits.model_validate_json(order[1]))
                self._share(order[2])
            elif order[0] == "policy":
                self._roster = order[1]
                self._follow()
            else:
                self._orders.put_nowait(order)

    async def news(self) -> News:
        """Wait until something has happened, a second at most, and tell it."""
        if self._main.done():
            await self._main  # raises what broke it
        if not self._finished:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._news.wait()
        self._news.clear()
        pending = self._unbegun + self._backend.stages.admission.taken
        news = News(self._begun, pending)
        size = 0
        while self._finished and size < _NEWS_BYTES:
            finished = self._finished.popleft()
            size += len(finished.trace or "") + sum(map(len, finished.replaced))
            news.finished.append(finished)
        news.turns, self._progress.turns = self._progress.turns, []
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._report(news)
        return news

    async def stop(self) -> None:
        """Cancel what is played, close the environments and the policy's connections."""
        self._main.cancel()
        await asyncio.wait([self._main])
        await self._backend.aclose()
        with suppress(Exception):  # the process ends next
            await self._backend.setting.client.aclose()

    # --- inside -------------------------------------------------------------------------------

    async def _play_all(self) -> None:
        """Carry out orders, for as long as the worker lives."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                order = await self._orders.get()
                if order[0] == "begin":
                    await self._begin(tasks, *order[1:])
                elif order[0] == "close":
                    self._close(order[1])

    async def _begin(self, tasks: asyncio.TaskGroup, parcel: str, key: str, request: str) -> None:
        batch = self._batches.get(parcel)
        if batch is None:
            batch = self._backend.batch(tasks)
            if parcel:
                self._batches[parcel] = batch
        await batch.admit()
        self._unbegun -= 1
        in_play = self._in_play.get(key)
        if in_play is None:  # cancelled meanwhile
            self._backend.stages.admission.release()
            return
        playing = batch.begin(EpisodeRequest.model_validate_json(request))
        in_play.whereabouts = playing.whereabouts
        in_play.task = tasks.create_task(self._play(key, in_play, playing))

    def _close(self, parcel: str) -> None:
        batch = self._batches.pop(parcel, None)
        if batch is not None:
            batch.no_more()

    async def _play(self, key: str, in_play: _InPlay, playing: Any) -> None:
        finished = Finished(key)
        try:
            with metered(in_play.meter):
                played = await playing.play()
            finished.trace, finished.fatal = played.trace.to_json_line(), played.fatal
            finished.replaced = [trace.to_json_line() for trace in played.replaced]
        except AgentGymError as error:
            finished.error = str(error)
        finally:  # a cancellation is told, too: the driver waits for it
            playing.over()
            if finished.trace is None:
                finished.spent = dict(in_play.meter.by_role)
            self._in_play.pop(key, None)
            self._finished.append(finished)
            self._news.set()

    def _cancel(self, key: str) -> None:
        in_play = self._in_play.get(key)
        if in_play is None:
            return
        if in_play.task is not None:
            in_play.task.cancel()
        else:
            del self._in_play[key]
            self._finished.append(Finished(key))
            self._news.set()

    def _report(self, news: News) -> None:
        self._reported_at = time.monotonic()
        news.whereabouts = {}
        for key, in_play in self._in_play.items():
            where = in_play.whereabouts
            if where is None:
                continue
            news.whereabouts[key] = (
                *(where.stage, where.waiting, where.waited_s),
                *(where.turn, where.attempt, where.replica),
            )
            calls = sum(usage.calls for usage in in_play.meter.by_role.values())
            if calls != in_play.calls_told:
                in_play.calls_told = calls
                news.usage[key] = dict(in_play.meter.by_role)


def _here() -> tuple[str, str]:
    """Ray's id of this node, and what to call node and process."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return node, f"{address}/{node[:8]} (pid {os.getpid()})"
