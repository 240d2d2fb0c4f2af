"""One job in the service: its episodes fed to an engine, its traces kept, its state told.

Episodes are read from the store as the engine has room for them, and an episode is over in the
moment in which its trace is in the store; so a job in memory is small however long it is, and a
kill costs no more than what was in flight. A disk that is full holds a job up and loses nothing: no
further episode begins, and what has finished waits until there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Literal, TypeAlias, cast

from agentgym.metering import add_by_role
from agentgym.redaction import Redactor
from agentgym.remote.schema import Fault, JobEpisodes, JobRequest, JobState, JobStatus
from agentgym.rollout.engine import Engine
from agentgym.rollout.enough import Enough
from agentgym.rollout.request import EpisodeRequest
from agentgym.serve.access import Caller
from agentgym.serve.store import Store
from agentgym.serve.store_records import (
    Spending,
    Standing,
    StoredJob,
    StoredTrace,
    StoreFull,
)
from agentgym.trace import Trace
from agentgym.types import Usage

Ending: TypeAlias = Literal["drain", "finish"]
"""Why no further episode begins: the service is about to stop and will go on with the job when it
is back, or the client wants only what is in flight."""

_CHUNK = 256
_FULL_PAUSE_S = (1.0, 30.0)


class Awaited:
    """Which episode of a job a trace belongs to: the engine gives back traces, not numbers."""

    def __init__(self) -> None:
        self._by_key: defaultdict[
            tuple[int | None, int, str | None], list[tuple[int, str | None]]
        ] = defaultdict(list)

    def add(self, number: int, request: EpisodeRequest) -> None:
        """An episode has been given to the engine."""
        key = (request.seed, request.sample, request.group)
        self._by_key[key].append((number, request.task_id))

    def take(self, trace: Trace) -> int | None:
        """The episode that is over with this trace; None for a replacement the engine played."""
        key = (trace.seed, trace.sample, trace.group)
        waiting = self._by_key.get(key, [])
        for wanted in (trace.task_id, None):  # a task asked for by name, then one that was drawn
            for place, (number, task_id) in enumerate(waiting):
                if task_id == wanted:
                    del waiting[place]
                    if not waiting:
                        del self._by_key[key]
                    return number
        return None


class Job:
    """One job.

    Args:
        stored: As the store keeps it.
        spec: What was asked for.
        caller: Whose it is.
        standing: How far it is.
        store: Keeps it.
        lease_s: Seconds for which it goes on with nobody asking.
        lookahead: Episodes that should wait, so that the engine is never short of them.
        redact: Takes secrets out of traces.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        stored: StoredJob,
        spec: JobRequest,
        caller: Caller,
        standing: Standing,
        *,
        store: Store,
        lease_s: float,
        lookahead: int,
        redact: Redactor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job_id = stored.job_id
        self.spec = spec
        self.caller = caller
        self.open = stored.open
        self.state: JobState = stored.state  # type: ignore[assignment]
        self.error = Fault(**stored.error) if stored.error else None
        self.created_at = stored.created_at
        self.finished_at = stored.finished_at
        self.lease_s = lease_s
        self.cursor = standing.cursor
        self.requested = standing.requested
        self.usage = {
            role: Usage.model_validate_json(text) for role, text in standing.usage.items()
        }
        self._standing = standing
        self._finished, self._scored = standing.finished, standing.scored
        self._masked = dict(standing.masked)
        self._over = 0
        """Requested episodes that are over, of those fed since this process has the job."""
        self._fed = 0
        self._left = 0
        """Requested episodes that were over before."""
        self._store = store
        self._lookahead = lookahead
        self._redact = redact
        self._clock = clock
        self._awaited = Awaited()
        self._changed = asyncio.Event()
        self.ending: Ending | None = None
        self.engine: Engine | None = None
        """That plays it, while it is played."""
        self.task: asyncio.Task[None] | None = None
        self.closing = asyncio.Lock()
        """Held by whoever ends it, so that it ends once."""
        self.seen = clock()
        """When somebody last asked about it."""
        self._waited_for = 0
        """Requests that wait for something about it."""

    # --- what others ask ----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it isn't over."""
        return self.state == "running"

    @property
    def in_flight(self) -> int:
        """Episodes taken up and not over."""
        return self._fed - self._over if self.running and self.engine is not None else 0

    @property
    def room(self) -> int:
        """Further episodes that would keep it busy."""
        if not (self.running and self.open):
            return 0
        return max(0, self._lookahead - (self.requested - self._left - self._fed))

    def touch(self) -> None:
        """Somebody asks about it: the lease begins anew."""
        self.seen = self._clock()

    @property
    def unseen_s(self) -> float:
        """Seconds since somebody asked about it; 0 while somebody waits for an answer."""
        return 0.0 if self._waited_for else self._clock() - self.seen

    def status(self, *, keep_s: float, whole: bool = True) -> JobStatus:
        """How it is doing.

        Args:
            keep_s: Seconds for which it is kept after its end.
            whole: Whether the engine's status is in it.
        """
        waiting = self.requested - self._left - self._fed if self.running else 0
        return JobStatus(
            job_id=self.job_id,
            state=self.state,
            env=self.spec.env,
            episodes=JobEpisodes(
                requested=self.requested,
                finished=self._finished,
                scored=self._scored,
                masked=dict(self._masked),
                in_flight=self.in_flight,
                waiting=max(0, waiting),
            ),
            open=self.open,
            room=self.room,
            cursor=self.cursor,
            usage=dict(self.usage),
            error=self.error,
            engine=self.engine.status() if whole and self.engine is not None else None,
            created_at=self.created_at,
            finished_at=self.finished_at,
            lease_s=self.lease_s,
            keep_s=keep_s,
        )

    def changed(self) -> None:
        """Wake whoever waits for something new."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, enough: Callable[[], bool], wait_s: float) -> None:
        """Wait until something holds, or the time is up; the lease begins anew then."""
        self._waited_for += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not enough():
                        await self._changed.wait()
            self.touch()
        finally:
            self._waited_for -= 1

    # --- what moves it on ---------------------------------------------------------------------

    def grown(self, requested: int, *, open: bool) -> None:  # noqa: A002 - the field's name
        """Further episodes have been kept."""
        self.requested = requested
        self.open = open
        self.changed()

    def begin_no_more(self, why: Ending) -> None:
        """Begin no further episode; what is in flight goes on."""
        self.ending = why
        self.changed()

    async def play(self, engine: Engine) -> bool:
        """Play what is not over, and keep the traces.

        Returns:
            Whether the job is over then; it isn't where the service is about to stop.

        Raises:
            AgentGymError: As `Engine.run` does; or if the store fails.
        """
        self._left = self.requested - await self._count_unfinished()
        enough = self._rest_of_enough()
        if enough == "met":
            return True
        self.engine = engine
        finished: asyncio.Queue[Trace | None] = asyncio.Queue()
        keeping = asyncio.create_task(self._keep_all(finished))
        try:
            run = cast("AsyncGenerator[Trace]", engine.run(self._feed(), enough=enough))
            async with contextlib.aclosing(run) as traces:
                async for trace in traces:
                    finished.put_nowait(trace)
                    if keeping.done():
                        break
        finally:
            finished.put_nowait(None)
            await self._until_kept(keeping)
            self.engine = None
        await keeping  # what it failed with
        return self.ending != "drain"

    async def _until_kept(self, keeping: asyncio.Task[None]) -> None:
        """Wait for the traces to be in the store; but not for a full disk, when cancelled."""
        task = asyncio.current_task()
        if self.error is not None and task is not None and task.cancelling():
            keeping.cancel()
        try:
            await asyncio.wait([keeping])
        except asyncio.CancelledError:
            keeping.cancel()
            raise

    async def _count_unfinished(self) -> int:
        left = await self._store.do(Store.count_unfinished, self.job_id)
        self.changed()
        return left

    def _rest_of_enough(self) -> Enough | Literal["met"] | None:
        """What is still missing of enough, after what an earlier process has played."""
        enough = self.spec.enough
        if enough is None:
            return None
        done = self._standing
        episodes, groups = enough.episodes, enough.informative_groups
        if episodes is not None:
            episodes -= done.whole_scored
        if groups is not None:
            groups -= done.informative_groups
        if any(left is not None and left <= 0 for left in (episodes, groups)):
            return "met"
        return Enough(episodes=episodes, informative_groups=groups)

    async def _feed(self) -> AsyncIterator[EpisodeRequest]:
        """The episodes that are not over, as the engine takes them up."""
        at = -1
        while True:
            changed = self._changed
            chunk = await self._store.do(Store.unfinished, self.job_id, at, _CHUNK)
            for number, request in chunk:
                await self._until_there_is_room()
                if self.ending is not None:
                    return
                at = number
                self._awaited.add(number, request)
                self._fed += 1
                self.changed()
                yield self._seated(request)
            if self.ending is not None or not (chunk or self.open):
                return
            if not chunk:
                await changed.wait()

    async def _until_there_is_room(self) -> None:
        """Wait while the disk is full."""
        while self.error is not None and self.running and self.ending is None:
            await self._changed.wait()

    def _seated(self, request: EpisodeRequest) -> EpisodeRequest:
        """The request; of a group that is partly over, its size is what is left of it."""
        left = self._standing.rest_of_group.get(request.group or "")
        if left is None or request.group_size is None:
            return request
        return request.model_copy(update={"group_size": left})

    async def _keep_all(self, finished: asyncio.Queue[Trace | None]) -> None:
        """Keep traces as they come, as many at once as there are."""
        while True:
            batch = [await finished.get()]
            while not finished.empty() and len(batch) < _CHUNK:
                batch.append(finished.get_nowait())
            traces = [trace for trace in batch if trace is not None]
            if traces:
                await self._keep([(self._awaited.take(trace), trace) for trace in traces])
            if batch[-1] is None:
                return

    async def _keep(self, traces: Sequence[tuple[int | None, Trace]]) -> None:
        usage = dict(self.usage)
        spent = Usage(calls=0)
        for _, trace in traces:
            add_by_role(usage, trace.usage)
            spent = sum(trace.usage.values(), spent)
        spending = Spending(
            tokens=spent.prompt_tokens + spent.completion_tokens, usd=spent.cost_usd or 0.0
        )
        as_json = {role: used.model_dump_json() for role, used in usage.items()}
        rows = await asyncio.to_thread(self._rows, traces)
        pause_s, longest_s = _FULL_PAUSE_S
        while True:
            try:
                self.cursor = await self._store.do(
                    Store.keep, self.job_id, self.caller.name, rows, as_json, spending
                )
                break
            except StoreFull as error:
                self.error = Fault(code="storage_full", message=str(error))
                self.changed()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
        self.error = None
        self.usage = usage
        for number, trace in traces:
            self._over += number is not None
            self._finished += 1
            if trace.scored:
                self._scored += 1
            else:
                cause = trace.failure_class or "unknown"
                self._masked[cause] = self._masked.get(cause, 0) + 1
        self.changed()

    def _rows(self, traces: Sequence[tuple[int | None, Trace]]) -> list[StoredTrace]:
        return [
            StoredTrace(
                number=number,
                group=trace.group,
                reward=trace.reward,
                failure_class=trace.failure_class,
                line=self._redact(trace.to_json_line()).rstrip("\n"),
            )
            for number, trace in traces
        ]
