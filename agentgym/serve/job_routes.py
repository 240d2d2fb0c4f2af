"""Jobs over HTTP: submit, watch, get the traces, end.

Traces are stored as the JSON lines that they are answered with; nothing is parsed or dumped again
on the way out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterable
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from agentgym.remote.schema import (
    IDEMPOTENCY_HEADER,
    MAX_KEY,
    PREFIX,
    FaultBody,
    JobList,
    JobRequest,
    JobStatus,
    MoreEpisodes,
    Room,
    StreamEnd,
    TracePage,
)
from agentgym.serve.access import Caller, caller_of
from agentgym.serve.config import Keeping
from agentgym.serve.faults import ServiceFault, refused
from agentgym.serve.job import Job
from agentgym.serve.jobs import Jobs

Asking: TypeAlias = Annotated[Caller, Depends(caller_of)]
T = TypeVar("T")
JobId: TypeAlias = Annotated[str, Path(max_length=100, description="As `POST /v1/jobs` gave it.")]
After: TypeAlias = Annotated[
    int, Query(ge=0, description="The cursor of the last trace you have; 0 for none.")
]

LONGEST_WAIT_S = 60.0
HEARTBEAT_S = 10.0
"""Between two empty lines of a stream while nothing finishes, seconds."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: refused("No JSON, or for another version of the API."),
    401: refused("No token, or a wrong one."),
    403: refused("Not allowed on this service."),
    404: refused("There is no such thing, or it isn't yours."),
    409: refused("It contradicts what was sent before."),
    413: refused("The body is too large."),
    415: refused("The body doesn't say that it is JSON."),
    422: refused("The request makes no sense."),
    429: refused("Your quota is used up; see Retry-After."),
    500: {"model": FaultBody, "description": "The service itself failed; its log has the cause."},
    503: refused("The service is about to stop; see Retry-After."),
    507: refused("The service's disk is full; nothing was kept."),
}
_NDJSON: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One `TraceItem` a line; empty lines while nothing finishes; a `StreamEnd` "
        "as the last line once the job is over.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


def job_router(jobs: Jobs, keeping: Keeping) -> APIRouter:
    """The routes under `/v1/jobs`.

    Args:
        jobs: What is served.
        keeping: How long ended ones are kept.
    """
    router = APIRouter(prefix=f"{PREFIX}/jobs", tags=["jobs"], responses=REFUSALS)

    def status_of(job: Job, *, whole: bool = True) -> JobStatus:
        return job.status(keep_s=keeping.ended_job_s, whole=whole)

    @router.post("", status_code=HTTPStatus.CREATED)
    async def submit(
        spec: JobRequest,
        caller: Asking,
        response: Response,
        key: Annotated[
            str | None,
            Header(
                alias=IDEMPOTENCY_HEADER,
                max_length=MAX_KEY,
                description="As the field `idempotency_key`, which it goes before.",
            ),
        ] = None,
    ) -> JobStatus:
        """Submit a job. Under a repeated idempotency key the answer is the job that is there."""
        job = await jobs.submit(caller, spec, key)
        response.headers["Location"] = f"{PREFIX}/jobs/{job.job_id}"
        return status_of(job, whole=False)

    @router.get("")
    async def list_jobs(caller: Asking) -> JobList:
        """List your jobs, the latest first."""
        return JobList(jobs=tuple(status_of(job, whole=False) for job in jobs.of(caller)))

    @router.get("/{job_id}")
    async def status(job_id: JobId, caller: Asking) -> JobStatus:
        """Tell how a job is doing, and what the engine that plays it does."""
        return status_of(jobs.find(caller, job_id))

    @router.post("/{job_id}/episodes")
    async def add(job_id: JobId, more: MoreEpisodes, caller: Asking, request: Request) -> Room:
        """Add episodes to an open job; may be repeated, and waits for the job to have room."""
        job = await jobs.add(caller, job_id, more)
        if not more.last:
            room = jobs.wait(job, lambda: job.room > 0 or not job.running, more.wait_s)
            await _while_there(request, room)
        return Room(episodes=job.requested, room=job.room, state=job.state)

    @router.get("/{job_id}/traces", response_model=TracePage)
    async def traces(
        job_id: JobId,
        caller: Asking,
        request: Request,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=1000, description="Traces at most.")] = 100,
        wait_s: Annotated[
            float,
            Query(ge=0, le=LONGEST_WAIT_S, description="Longest wait for the first one, seconds."),
        ] = 0.0,
    ) -> Response:
        """Get finished episodes after a cursor; wait for one if there is none."""
        job = jobs.find(caller, job_id)
        asked = jobs.traces(job, after=after, limit=limit, wait_s=wait_s)
        found = await _while_there(request, asked)
        cursor = found[-1][0] if found else after
        end = {
            "cursor": cursor,
            "state": job.state,
            "over": not job.running and cursor >= job.cursor,
            "error": job.error.model_dump() if job.error else None,
        }
        body = f'{{"traces": [{",".join(_items(found))}], {json.dumps(end)[1:]}'
        return Response(body, media_type="application/json")

    @router.get("/{job_id}/stream", responses=_NDJSON, response_class=StreamingResponse)
    async def stream(job_id: JobId, caller: Asking, after: After = 0) -> Response:
        """Stream finished episodes after a cursor as they finish, one a line."""
        job = jobs.find(caller, job_id)
        first = await jobs.traces(job, after=after, limit=_AT_ONCE, wait_s=0)
        lines = _lines(jobs, job, after, first)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @router.post("/{job_id}/cancel")
    async def cancel(
        job_id: JobId,
        caller: Asking,
        in_flight: Annotated[
            Literal["cancel", "finish"],
            Query(description="What becomes of the episodes that have begun."),
        ] = "cancel",
    ) -> JobStatus:
        """End a job; its traces so far are kept."""
        job = jobs.find(caller, job_id)
        await jobs.cancel(job, finish=in_flight == "finish")
        return status_of(job, whole=False)

    @router.delete("/{job_id}", status_code=HTTPStatus.NO_CONTENT)
    async def delete(job_id: JobId, caller: Asking) -> None:
        """End a job, and forget it with its traces."""
        await jobs.forget(jobs.find(caller, job_id))

    return router


_AT_ONCE = 100


async def _while_there(request: Request, answer: Coroutine[None, None, T]) -> T:
    """Make an answer, unless the client goes away: it must not seem to be waiting for it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    making, leaving = asyncio.create_task(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait([making, leaving], return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return await making
        raise ServiceFault(HTTPStatus.BAD_REQUEST, "cut_off", "the request was cut off")
    finally:
        making.cancel()
        leaving.cancel()


def _items(found: Iterable[tuple[int, str]]) -> list[str]:
    return [f'{{"cursor": {cursor}, "trace": {line}}}' for cursor, line in found]


async def _lines(
    jobs: Jobs, job: Job, after: int, found: list[tuple[int, str]]
) -> AsyncIterator[str]:
    """The lines of a stream, until the job is over or the service stops."""
    while True:
        if found:
            after = found[-1][0]
            yield "\n".join(_items(found)) + "\n"
        elif not job.running and after >= job.cursor:
            end = StreamEnd(cursor=after, state=job.state, error=job.error)
            yield end.model_dump_json() + "\n"
            return
        elif jobs.answering:
            return
        else:
            yield "\n"
        await asyncio.sleep(0)  # a reader that keeps up takes no more than its turn
        try:
            found = await jobs.traces(job, after=after, limit=_AT_ONCE, wait_s=HEARTBEAT_S)
        except ServiceFault:  # deleted meanwhile: without its last line, nobody takes it for whole
            return
