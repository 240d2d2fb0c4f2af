"""One run of a `RemoteEngine`: a job on the service, fed and read until it is over.

Requests go out as the service has room for them, traces come back by long poll under a cursor, and
beside both the job's state is heard now and then. A run that ends before its job ends the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sized
from typing import Any

from pydantic import ValidationError

from agentgym.errors import AgentGymError, TraceError
from agentgym.remote.http import ServiceClient, error_of
from agentgym.remote.schema import Fault, JobStatus, Room
from agentgym.rollout.progress import Ticking
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.requests import Requests
from agentgym.rollout.status import EngineStatus, EpisodeCounts
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import SCHEMA_VERSION, Trace
from agentgym.types import in_one_line

_POLL_S = 20.0
_PAGE = 200
_CHUNK = 1000
_CHUNK_BYTES = 1024 * 1024
_STATUS_EVERY_S = 2.0
_CANCEL_S = 10.0


class RemoteRun:
    """One run: a job on the service.

    Args:
        http: The way there.
        requests: What to play.
    """

    def __init__(self, http: ServiceClient, requests: Requests) -> None:
        self._http = http
        self.total = len(requests) if isinstance(requests, Sized) else None
        self._requests = _each(requests)
        self._coming: asyncio.Task[EpisodeRequest | None] | None = None
        self._taken = 0
        self._exhausted = False
        self._path = ""
        self.job: JobStatus | None = None
        """As last heard."""
        self.draining = asyncio.Event()

    async def submit(self, fields: dict[str, Any]) -> None:
        """Have the service accept the job, with its first episodes if it is known how many come."""
        first = await self._take(min(self.total, _CHUNK)) if self.total is not None else []
        body = {**fields, "open": not self._exhausted, "episodes": {"requests": first}}
        if not first and self._exhausted:
            return
        # In the body: what stands between the two may pass on no header that it doesn't know.
        body["idempotency_key"] = uuid.uuid4().hex
        answer = await self._http.ask("POST", "/jobs", body=body)
        self.job = JobStatus.model_validate(answer)
        self._path = f"/jobs/{self.job.job_id}"

    async def play(self, done: Callable[[Trace], None], ticking: Ticking | None) -> None:
        """Get the traces until the job is over; end it if this ends before."""
        if self.job is None:
            return
        over = False
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._feed()),
                    tasks.create_task(self._watch(ticking)),
                    tasks.create_task(self._drain()),
                ]
                fault = await self._collect(done)
                over = True
                for task in beside:
                    task.cancel()
        finally:
            if not over:
                await self._cancel()
        if fault is not None:
            raise error_of(fault, self._http.where)

    async def _collect(self, done: Callable[[Trace], None]) -> Fault | None:
        """All traces, in order; then why the job failed, if it did."""
        cursor = 0
        while True:
            page = await self._http.ask(
                "GET",
                f"{self._path}/traces",
                query={"after": cursor, "limit": _PAGE, "wait_s": _POLL_S},
                wait_s=_POLL_S,
            )
            for item in page["traces"]:
                done(_trace(item["trace"], self._http.where))
                cursor = item["cursor"]
            if page["over"]:
                break
        if page["error"]:
            return Fault(**page["error"])
        if page["state"] == "cancelled" and not self.draining.is_set():
            return Fault(code="cancelled", message="somebody else cancelled the job")
        return None

    async def _feed(self) -> None:
        """Send the requests, as many at a time as the service has room for."""
        assert self.job is not None
        sent, room = self.job.episodes.requested, self.job.room
        while not self._exhausted:
            chunk = await self._take(_CHUNK if self.total is not None else min(room, _CHUNK))
            body = {
                "after": sent,
                "requests": chunk,
                "last": self._exhausted,
                "wait_s": 0 if self.total is not None else _POLL_S,
            }
            answer = await self._http.ask(
                "POST", f"{self._path}/episodes", body=body, wait_s=_POLL_S
            )
            told = Room.model_validate(answer)
            sent, room = sent + len(chunk), told.room
            if told.state != "running":
                return

    async def _take(self, count: int) -> list[dict[str, Any]]:
        """The next requests, as far as the source has them; waits for the first one."""
        chunk: list[dict[str, Any]] = []
        size = 0
        while len(chunk) < count and size < _CHUNK_BYTES and not self._exhausted:
            if not await self._is_there(wait=not chunk):
                break
            assert self._coming is not None
            request, self._coming = self._coming.result(), None
            self._exhausted = request is None
            if request is not None:
                chunk.append(request.model_dump(mode="json", exclude_defaults=True))
                size += len(json.dumps(chunk[-1]))
            self._taken += request is not None
            self._exhausted = self._exhausted or self._taken == self.total
        self._exhausted = self._exhausted or self.draining.is_set()
        return chunk

    async def _is_there(self, *, wait: bool) -> bool:
        """Whether the source has come up with its next request; not if the run is drained."""
        if self._coming is None:
            self._coming = asyncio.create_task(_next(self._requests))
            await asyncio.sleep(0)  # a source that needn't wait has it then
        if wait and not self._coming.done():
            drained = asyncio.create_task(self.draining.wait())
            try:
                await asyncio.wait([self._coming, drained], return_when=asyncio.FIRST_COMPLETED)
            finally:
                drained.cancel()
        return self._coming.done() and not self.draining.is_set()

    def close(self) -> None:
        """Ask the source for nothing more."""
        if self._coming is not None:
            self._coming.cancel()

    async def _watch(self, ticking: Ticking | None) -> None:
        """Hear now and then how the job is doing."""
        while True:
            await asyncio.sleep(_STATUS_EVERY_S)
            self.job = JobStatus.model_validate(await self._http.ask("GET", self._path))
            if ticking is not None:
                ticking.tick(_whereabouts(self.job))

    async def _drain(self) -> None:
        """Once asked to, have the service begin no further episode."""
        await self.draining.wait()
        await self._http.ask("POST", f"{self._path}/cancel", query={"in_flight": "finish"})

    async def _cancel(self) -> None:
        """End the job; if the service can't be told, its lease does."""
        with contextlib.suppress(AgentGymError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._http.ask("POST", f"{self._path}/cancel", reconnect_s=_CANCEL_S)


def status_of(job: JobStatus) -> EngineStatus:
    """A job's status as an engine's."""
    counts = EpisodeCounts(
        requested=job.episodes.requested,
        finished=job.episodes.finished,
        scored=job.episodes.scored,
        masked=job.episodes.masked,
    )
    in_flight = job.episodes.in_flight
    if job.engine is None:
        return EngineStatus(
            runs=1, elapsed_s=0.0, episodes=counts, in_flight=in_flight, usage=job.usage
        )
    return job.engine.model_copy(
        update={"episodes": counts, "in_flight": in_flight, "usage": job.usage}
    )


def _whereabouts(job: JobStatus) -> list[Whereabouts]:
    """The episodes in flight, as far as the service tells where they are: who waits longest."""
    found = []
    for waiters in job.engine.waiting if job.engine is not None else ():
        where = Whereabouts(waiters.longest.name)
        where.follow(waiters.stage, waiters.waiting, waited_s=waiters.longest.waited_s)
        found += [where] * waiters.episodes
    return found


def _trace(values: Any, where: str) -> Trace:
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{where} sends traces of schema version {version!r}; this agentgym reads version "
            f"{SCHEMA_VERSION}: install the version that the service runs"
        )
    try:
        return Trace.model_validate(values)
    except ValidationError as error:
        raise TraceError(f"{where} sends a trace that is none: {in_one_line(error)}") from error


async def _each(requests: Requests) -> AsyncIterator[EpisodeRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


async def _next(requests: AsyncIterator[EpisodeRequest]) -> EpisodeRequest | None:
    return await anext(requests, None)
