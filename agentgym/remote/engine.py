"""The engine's twin that plays elsewhere: the same calls, with a service's URL.

Requests are sent as the service has room for them, traces come back by long poll under a cursor,
and whatever interrupts the connection is waited out, so that a run yields each episode exactly
once. As long as a run goes on, it asks; if its process dies, the service notices that nobody asks,
and stops the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Mapping,
    Sequence,
    Sized,
)
from pathlib import PurePath
from typing import Any, TypeAlias

from gymnasium.envs.registration import EnvSpec
from pydantic import BaseModel, ValidationError

from agentgym.client import Endpoint, SamplingParams
from agentgym.errors import AgentGymError, ConfigError, TraceError
from agentgym.remote.http import ServiceClient, error_of
from agentgym.remote.schema import Fault, JobStatus, Room
from agentgym.rollout.blocking import run_to_completion
from agentgym.rollout.enough import Enough
from agentgym.rollout.limits import Limits
from agentgym.rollout.progress import Progress, Ticking, progress_for
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.requests import Requests
from agentgym.rollout.retry import Retry
from agentgym.rollout.status import EngineStatus, EpisodeCounts
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import SCHEMA_VERSION, Trace
from agentgym.traces import TraceSink
from agentgym.types import in_one_line

RemotePolicy: TypeAlias = Endpoint | Sequence[Endpoint] | str
"""The policy's servers, or the name of a pool that the service has."""

_POLL_S = 20.0
_PAGE = 200
_CHUNK = 1000
_CHUNK_BYTES = 1024 * 1024
_STATUS_EVERY_S = 2.0
_CANCEL_S = 10.0


class RemoteEngine:
    """Plays episodes of one environment with one policy, on a service.

    Args:
        url: The service's root, such as `http://127.0.0.1:8800`.
        env: An env id that the service plays, or an `EnvSpec`.
        client: The policy's endpoint, those of its replicas, or the name of a pool of the service.
            The service asks them, so it must reach them, and key variables are the service's.
        sampling: How it samples.
        env_kwargs: Parameters of the env, as far as the service allows them.
        limits: Deadlines and budgets; `concurrency` is at most the service's.
        writer: Keeps each trace as it comes, before it is yielded.
        progress: True for a live bar, or a `Progress`.
        policy_name: The policy as the traces name it.
        metadata: Facts about the run for the traces.
        retry: What is tried again after a failure; None is nothing.
        weight_version: The weights that the endpoints have; see `weight_version`.
        token: Who asks; default: `AGENTGYM_SERVICE_TOKEN`.
        lease_s: Seconds after which the service stops the work if this process is gone.
        reconnect_s: Longest time without an answer of the service before a run fails, seconds.

    Raises:
        ConfigError: If the URL is none, or something can't be sent.

    Examples:
        >>> engine = RemoteEngine("http://127.0.0.1:8800", "agentgym/WebShop-v0", client=endpoint)
        >>> async for trace in engine.run(EpisodeRequest(seed=k) for k in range(100)):
        ...     print(trace.task_id, trace.reward)
    """

    def __init__(
        self,
        url: str,
        env: str | EnvSpec,
        *,
        client: RemotePolicy,
        sampling: SamplingParams | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        writer: TraceSink | None = None,
        progress: bool | Progress | None = None,
        policy_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        weight_version: str | None = None,
        token: str | None = None,
        lease_s: float = 120.0,
        reconnect_s: float = 600.0,
    ) -> None:
        env_id, kwargs = _env_of(env, env_kwargs)
        self.weight_version = weight_version
        """The weights that the endpoints have from the next run on; None leaves them unsaid."""
        self._http = ServiceClient(url, token=token, reconnect_s=reconnect_s)
        self._policy = _policy_of(client, policy_name)
        self._job: dict[str, Any] = {
            "env": env_id,
            "env_kwargs": kwargs,
            "sampling": _as_json(sampling or SamplingParams(), "sampling"),
            "limits": _as_json(limits or Limits(), "limits"),
            "retry": None if retry is None else _as_json(retry, "retry"),
            "metadata": _as_json(dict(metadata or {}), "metadata"),
            "lease_s": lease_s,
        }
        self._writer = writer
        self._progress = progress_for(progress)
        self._runs: dict[_Run, asyncio.AbstractEventLoop] = {}

    async def run(
        self, requests: Requests, *, enough: Enough | None = None
    ) -> AsyncIterator[Trace]:
        """Play the requested episodes; see `Engine.run`.

        Args:
            requests: May be lazy, and asynchronous; the next ones are taken when the service has
                room for them.
            enough: When to end before all of them are over. What is unfinished is cancelled.

        Yields:
            Traces in the order in which the episodes finish, each episode exactly once.

        Raises:
            AgentGymError: If the service refuses the job, or can't be reached for too long.
            RolloutStopped: As by `Engine.run`.
            TraceError: If the writer can't write, or the service's traces are of another version.
        """
        if enough is not None and enough.unfinished == "carry":
            raise ConfigError(
                "a service carries no episode into the next run; use unfinished='cancel', or let "
                "two runs overlap"
            )
        finished: asyncio.Queue[Trace | None] = asyncio.Queue()
        batch = asyncio.create_task(self._play_all(requests, enough, finished.put_nowait))
        try:
            while (trace := await finished.get()) is not None:
                yield trace
            await batch
        finally:
            batch.cancel()
            await asyncio.gather(batch, return_exceptions=True)

    def run_blocking(self, requests: Requests) -> list[Trace]:
        """`run`, to completion, from plain code and from notebooks; see `Engine.run_blocking`."""
        return run_to_completion(self._collect(requests))

    def drain(self) -> None:
        """Begin no further episode, and let those finish that have begun; `run` then ends."""
        for run, loop in list(self._runs.items()):
            loop.call_soon_threadsafe(run.draining.set)

    def status(self) -> EngineStatus:
        """What the service's engine was doing a moment ago; without a run, nothing."""
        known = [run.job for run in list(self._runs) if run.job is not None]
        statuses = [status_of(job) for job in known]
        if not statuses:
            return EngineStatus(runs=0, elapsed_s=0.0, episodes=EpisodeCounts(), in_flight=0)
        return statuses[-1].model_copy(update={"runs": len(statuses)})

    @property
    def carried(self) -> tuple[EpisodeRequest, ...]:
        """None: a service carries nothing from one run into the next."""
        return ()

    async def aclose(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    def close(self) -> None:
        """`aclose` for plain code."""
        run_to_completion(self.aclose())

    async def __aenter__(self) -> RemoteEngine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # --- inside -------------------------------------------------------------------------------

    async def _collect(self, requests: Requests) -> list[Trace]:
        return [trace async for trace in self.run(requests)]

    async def _play_all(
        self, requests: Requests, enough: Enough | None, emit: Callable[[Trace | None], None]
    ) -> None:
        """Play everything; `emit` gets each trace, and None at the end whatever happened."""
        run = _Run(self._http, requests)

        def done(trace: Trace) -> None:
            if self._writer is not None:
                self._writer.write(trace)
            for turn in trace.turns:
                self._progress.turn(turn.usage.completion_tokens if turn.usage else 0)
            self._progress.finish(trace)
            emit(trace)

        self._runs[run] = asyncio.get_running_loop()
        self._progress.begin(run.total)
        try:
            await run.submit(self._fields(enough))
            ticking = self._progress if isinstance(self._progress, Ticking) else None
            await run.play(done, ticking)
        except BaseExceptionGroup as failures:
            raise _first_cause(failures) from None
        finally:
            run.close()
            del self._runs[run]
            self._progress.end()
            emit(None)

    def _fields(self, enough: Enough | None) -> dict[str, Any]:
        policy = dict(self._policy)
        if self.weight_version is not None and "endpoints" in policy:
            version = {"weight_version": self.weight_version}
            policy["endpoints"] = [{**endpoint, **version} for endpoint in policy["endpoints"]]
        told = None if enough is None else enough.model_dump(mode="json")
        return {**self._job, "policy": policy, "enough": told}


class _Run:
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


def _env_of(env: str | EnvSpec, env_kwargs: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    if isinstance(env, EnvSpec):
        return env.id, _as_json({**env.kwargs, **(env_kwargs or {})}, "env_kwargs")
    if isinstance(env, str):
        return env, _as_json(dict(env_kwargs or {}), "env_kwargs")
    raise ConfigError(
        f"a service plays environments by id, got a {type(env).__name__}; register it, and allow "
        "it on the service"
    )


def _policy_of(client: Any, name: str | None) -> dict[str, Any]:
    if isinstance(client, str):
        return {"pool": client, "name": name}
    endpoints = [client] if isinstance(client, Endpoint) else client
    if not (isinstance(endpoints, Sequence) and all(isinstance(e, Endpoint) for e in endpoints)):
        raise ConfigError(
            "a service asks the policy itself: give its Endpoint, several of them, or the name of "
            f"a pool, not a {type(client).__name__}"
        )
    if not endpoints:
        raise ConfigError("client: no endpoint is given; a policy needs at least one")
    return {"endpoints": [_as_json(endpoint, "client") for endpoint in endpoints], "name": name}


def _as_json(value: Any, what: str) -> Any:
    """A value as it is sent: records by the fields that were set."""

    def plain(item: Any) -> Any:
        if isinstance(item, BaseModel):
            return item.model_dump(mode="json", exclude_unset=True)
        if isinstance(item, PurePath):
            return str(item)
        raise TypeError(f"a {type(item).__name__} can't be sent to a service")

    try:
        return json.loads(json.dumps(value, default=plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: {error}") from error


async def _each(requests: Requests) -> AsyncIterator[EpisodeRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


async def _next(requests: AsyncIterator[EpisodeRequest]) -> EpisodeRequest | None:
    return await anext(requests, None)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first_cause(error) if isinstance(error, BaseExceptionGroup) else error
