"""All jobs of a service: accepted, played, ended, forgotten, taken up again after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus

from pydantic import ValidationError

from agentgym.errors import AgentGymError, BudgetStop, ConfigError, RolloutStopped, UnknownTaskError
from agentgym.redaction import Redactor
from agentgym.remote.schema import Fault, JobRequest, JobState, MoreEpisodes
from agentgym.rollout.plan import named_tasks
from agentgym.rollout.request import EpisodeRequest
from agentgym.serve.access import Caller
from agentgym.serve.accounts import Accounts, used_up
from agentgym.serve.allowed import UNKNOWN_HOST
from agentgym.serve.config import ServiceConfig
from agentgym.serve.engines import Engines
from agentgym.serve.faults import ServiceFault
from agentgym.serve.job import Job
from agentgym.serve.planning import planned, seeded
from agentgym.serve.pools import Pools
from agentgym.serve.store import Store
from agentgym.serve.store_records import StoredJob, StoreError
from agentgym.serve.storing import storing
from agentgym.types import in_one_line

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Jobs:
    """The jobs.

    Args:
        config: The service's.
        store: Keeps them.
        engines: Play them.
        pools: The policies' servers.
        accounts: What clients have used today.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        engines: Engines,
        pools: Pools,
        accounts: Accounts,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._store = store
        self._engines = engines
        self._pools = pools
        self._accounts = accounts
        self._clock = clock
        self._redact = Redactor()
        self._jobs: dict[str, Job] = {}
        self._accepting = asyncio.Lock()
        self._unkept: dict[str, tuple[str, dict[str, str] | None, str]] = {}
        """How jobs ended for which the disk had no room, by id."""
        self.draining = False
        self.answering = False
        """Whether nobody is kept waiting any more, since the service is about to be gone."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Take up what the store has, and play jobs inside the block.

        Jobs that are not over at its end stay in the store as running.
        """
        for stored in await self._store.do(Store.jobs):
            try:
                await self._take_up(stored)
            except ValidationError as error:  # of another agentgym: it may be readable there
                told = in_one_line(error)
                logger.error("job %s can't be read and is left alone: %s", stored.job_id, told)
        looking = asyncio.create_task(self._look_after_all())
        try:
            yield
        finally:
            looking.cancel()
            tasks = [job.task for job in self._jobs.values() if job.task is not None]
            for task in tasks:
                task.cancel("the service stops")
            await asyncio.gather(looking, *tasks, return_exceptions=True)

    # --- what clients ask ---------------------------------------------------------------------

    async def submit(self, caller: Caller, spec: JobRequest, key: str | None) -> Job:
        """Accept a job, all of it or nothing.

        Returns:
            The job; the earlier one if it was sent before under the same key.

        Raises:
            ServiceFault: If it isn't allowed, makes no sense, or is too much.
        """
        key = key or spec.idempotency_key
        spec = spec.model_copy(update={"idempotency_key": None})
        body_hash = _hash(spec)
        async with self._accepting:  # a job in the store, but not taken up yet, can't be found
            earlier = await self._earlier(caller, key, body_hash)
        if earlier is not None:
            return earlier
        self._check_taking()
        self._check_quota(caller, jobs=1, episodes=spec.episodes.count)
        spec = await self._checked(spec, caller)
        requests = await self._episodes(spec)
        async with self._accepting:
            earlier = await self._earlier(caller, key, body_hash)  # sent at the same time
            if earlier is not None:
                return earlier
            self._check_quota(caller, jobs=1, episodes=len(requests))
            await self._accounts.check(caller, episodes=len(requests))
            stored = StoredJob(
                job_id=secrets.token_urlsafe(18),
                caller=caller.name,
                spec=spec.model_dump_json(exclude_unset=True, exclude={"episodes"}),
                open=spec.open,
                state="running",
                error=None,
                created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                finished_at=None,
            )
            with storing():
                job_id = await self._store.do(
                    Store.accept, stored, requests, key=key, body_hash=body_hash
                )
            if job_id == stored.job_id:
                await self._take_up(stored, checked=True)
        return self.find(caller, job_id)

    async def add(self, caller: Caller, job_id: str, more: MoreEpisodes) -> Job:
        """Take further episodes of an open job.

        Raises:
            ServiceFault: If it isn't open, or they are too many, or not the next ones.
        """
        await self._check_tasks(self.find(caller, job_id).spec, more.requests)
        async with self._accepting:
            job = self.find(caller, job_id)
            new = more.requests[max(0, job.requested - more.after) :]
            if more.after > job.requested:
                raise ServiceFault(
                    HTTPStatus.CONFLICT,
                    "episodes_missing",
                    f"the job has {job.requested} episodes, so the next ones come after "
                    f"{job.requested}, not {more.after}",
                )
            self._check_quota(caller, episodes=job.requested + len(new))
            await self._accounts.check(caller, episodes=len(new))
            if not job.open and new:
                raise ServiceFault(
                    HTTPStatus.CONFLICT, "job_closed", "the job takes no further episodes"
                )
            if new or (more.last and job.open):
                requests = seeded(more.requests)
                with storing():  # nothing awaited since it was open: it can't be forgotten before
                    requested = await self._store.do(
                        Store.add, job_id, caller.name, more.after, requests, more.last
                    )
                job.grown(requested, open=job.open and not more.last)
        return job

    def find(self, caller: Caller, job_id: str) -> Job:
        """A client's job; asking for it renews its lease.

        Raises:
            ServiceFault: 404, if it has none of that id; another client's is none.
        """
        job = self._jobs.get(job_id)
        if job is None or job.caller.name != caller.name:
            raise ServiceFault(
                HTTPStatus.NOT_FOUND,
                "unknown_job",
                "you have no such job; its traces are kept for a while after its end, then gone",
            )
        job.touch()
        return job

    @property
    def running(self) -> list[Job]:
        """Everybody's jobs that are not over."""
        return [job for job in self._jobs.values() if job.running]

    def of(self, caller: Caller) -> list[Job]:
        """A client's jobs, the latest first."""
        return [job for job in reversed(self._jobs.values()) if job.caller.name == caller.name]

    async def traces(
        self, job: Job, *, after: int, limit: int, wait_s: float
    ) -> list[tuple[int, str]]:
        """Traces after a cursor, with their cursors; waits for the first one.

        Raises:
            ServiceFault: If the job never had that cursor, or is deleted before they come.
        """
        if after > job.cursor:
            raise ServiceFault(
                HTTPStatus.CONFLICT,
                "bad_cursor",
                f"the job's last cursor is {job.cursor}, so none comes after {after}",
            )
        await self.wait(job, lambda: job.cursor > after or not job.running, wait_s)
        with storing():
            found = await self._store.do(
                Store.traces, job.job_id, after, limit, _MOST_BYTES_AT_ONCE
            )
        self.find(job.caller, job.job_id)
        return found

    async def wait(self, job: Job, enough: Callable[[], bool], wait_s: float) -> None:
        """Wait for something about a job, the end of the service, or the end of the time."""
        await job.wait(lambda: enough() or self.answering, wait_s)

    def answer_all(self) -> None:
        """Keep nobody waiting any more."""
        self.answering = True
        for job in self._jobs.values():
            job.changed()

    async def cancel(self, job: Job, *, finish: bool = False) -> None:
        """End a job.

        Args:
            job: Which; one that is over stays as it is.
            finish: Whether what is in flight may finish; otherwise it is cancelled, here and on
                the servers, before this returns.
        """
        if finish and job.running:
            job.begin_no_more("finish")
            return
        await self._end(job, "cancelled", None)

    async def forget(self, job: Job) -> None:
        """End a job and delete all it has."""
        await self.cancel(job)
        with storing():
            await self._store.do(Store.forget, job.job_id)
        self._unkept.pop(job.job_id, None)
        self._jobs.pop(job.job_id, None)

    async def drain(self) -> None:
        """Take no further job, begin no further episode, and wait for those in flight."""
        self.draining = True
        for job in self._jobs.values():
            job.begin_no_more("drain")
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # --- checks -------------------------------------------------------------------------------

    async def _earlier(self, caller: Caller, key: str | None, body_hash: str) -> Job | None:
        if key is None:
            return None
        with storing():
            job_id = await self._store.do(Store.under_key, caller.name, key, body_hash)
        return None if job_id is None else self.find(caller, job_id)

    def _check_taking(self) -> None:
        if self.draining:
            raise ServiceFault(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "draining",
                "the service is about to stop; send the job again when it is back",
                retry_after_s=self._config.drain_s or 1,
            )

    async def _checked(self, spec: JobRequest, caller: Caller) -> JobRequest:
        """The job with checked env, parameters and servers."""
        allowed = self._config.allowed
        if spec.enough is not None and spec.enough.unfinished == "carry":
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid_request",
                "enough.unfinished: a job has no next run to carry episodes into; cancel it with "
                "in_flight=finish instead",
            )
        env = allowed.env(spec.env)
        kwargs = await asyncio.to_thread(allowed.env_kwargs, env, spec.env_kwargs)
        policy = spec.policy
        if policy.pool is None:
            endpoints = tuple(await self._pools.checked(policy.endpoints))
            policy = policy.model_copy(update={"endpoints": endpoints})
        else:
            self._pools.named(caller.name, policy.pool)
        return spec.model_copy(update={"env": env, "env_kwargs": kwargs, "policy": policy})

    async def _episodes(self, spec: JobRequest) -> list[EpisodeRequest]:
        """The job's episodes, each with its seed."""
        try:
            known = await self._engines.task_ids(spec)
            requests = planned(spec.episodes, known)
        except (AgentGymError, ValueError, TypeError) as error:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid_request",
                self._redact.from_text(" ".join(str(error).split())),
            ) from error
        if not requests and not spec.open:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid_request",
                "episodes: say which ones with tasks, first, seeds or requests; or open the job "
                "with open=true and add them later",
            )
        await self._check_tasks(spec, requests)
        return requests

    async def _check_tasks(self, spec: JobRequest, requests: Sequence[EpisodeRequest]) -> None:
        wanted = {request.task_id for request in requests if request.task_id is not None}
        if not wanted:
            return
        try:
            named_tasks(await self._engines.task_ids(spec), sorted(wanted))
        except UnknownTaskError as error:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY, "unknown_task", str(error)
            ) from error

    def _check_quota(self, caller: Caller, *, episodes: int, jobs: int = 0) -> None:
        quota = caller.quota
        if episodes > quota.episodes_per_job:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "too_many_episodes",
                f"a job of yours may have {quota.episodes_per_job} episodes, not {episodes}; make "
                "several jobs of it",
            )
        running = sum(job.running for job in self.of(caller))
        if running + jobs > quota.open_jobs:
            raise ServiceFault(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_jobs",
                f"you have {running} jobs running and may have {quota.open_jobs}; wait for one to "
                "end, or cancel one",
                retry_after_s=10,
            )

    # --- playing ------------------------------------------------------------------------------

    async def _take_up(self, stored: StoredJob, *, checked: bool = False) -> None:
        """Have a stored job in memory, and play it if it isn't over.

        Args:
            stored: The job.
            checked: Whether it was just found to be allowed; after a restart, what is allowed may
                be something else.
        """
        spec = JobRequest.model_validate_json(stored.spec)
        keeping = self._config.keeping
        job = Job(
            stored,
            spec,
            self._config.tokens.named(stored.caller),
            await self._store.do(Store.standing, stored.job_id),
            store=self._store,
            lease_s=min(spec.lease_s or keeping.lease_s, keeping.max_lease_s),
            lookahead=self._engines.stages.places,
            redact=self._redact,
            clock=self._clock,
        )
        self._jobs[job.job_id] = job
        if job.running:
            job.task = asyncio.create_task(
                self._play(job, checked=checked), name=f"job {job.job_id}"
            )

    async def _play(self, job: Job, *, checked: bool) -> None:
        """Play a job to its end, whatever that is."""
        ending: tuple[JobState, Fault | None] = ("finished", None)
        try:
            if not checked:
                await self._still_allowed(job)
            async with self._engines.engine(job.caller, job.spec) as engine:
                if not await job.play(engine):
                    return
            if job.ending == "finish":
                ending = ("cancelled", None)
        except BudgetStop as stop:
            ending = ("failed", self._fault("budget_stop", stop))
        except RolloutStopped as error:
            ending = ("failed", self._fault("rollout_stopped", error))
        except ServiceFault as fault:
            ending = ("failed", Fault(code=fault.code, message=fault.message))
        except (ConfigError, StoreError) as error:
            code = "config" if isinstance(error, ConfigError) else "storage"
            ending = ("failed", self._fault(code, error))
        except AgentGymError as error:
            ending = ("failed", self._fault("engine", error))
        except Exception as error:
            logger.exception("job %s failed", job.job_id)
            ending = ("failed", self._fault("internal", error))
        async with job.closing:
            await self._ended(job, *ending)

    async def _still_allowed(self, job: Job) -> None:
        """Check a job that an earlier process accepted; a lookup that fails now is made again."""
        for attempt in itertools.count():
            try:
                await self._checked(job.spec, job.caller)
                return
            except ServiceFault as fault:
                if fault.code != UNKNOWN_HOST:
                    raise
                logger.warning("job %s waits: %s", job.job_id, fault.message)
            await asyncio.sleep(min(2**attempt, _LONGEST_PAUSE_S))

    def _fault(self, code: str, error: Exception) -> Fault:
        text = " ".join(str(error).split()) or type(error).__name__
        return Fault(code=code, message=self._redact.from_text(text)[:_LONGEST_MESSAGE])

    async def _end(self, job: Job, state: JobState, error: Fault | None) -> None:
        """Stop a job's episodes, and note why."""
        async with job.closing:
            if not job.running:
                return
            if job.task is not None and not job.task.done():
                job.task.cancel()
                await asyncio.wait([job.task])
            await self._ended(job, state, error)

    async def _ended(self, job: Job, state: JobState, error: Fault | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        ending = (state, error.model_dump() if error is not None else None, now)
        try:
            await self._store.do(Store.end, job.job_id, *ending)
        except StoreError as fault:
            logger.warning("can't keep yet that job %s is %s: %s", job.job_id, state, fault)
            self._unkept[job.job_id] = ending
        job.finished_at = now
        job.state, job.error, job.open = state, error, False
        job.touch()
        job.changed()

    async def _keep_endings(self) -> None:
        """Keep which jobs are over, where the disk was full; or a restart would go on with them."""
        for job_id, ending in list(self._unkept.items()):
            with contextlib.suppress(StoreError):
                await self._store.do(Store.end, job_id, *ending)
                self._unkept.pop(job_id, None)

    async def _look_after_all(self) -> None:
        """End jobs of which nobody asks and of clients whose quota is used up; forget old ones."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self.look_after_all()
            except Exception:
                logger.exception("looking after the jobs failed")

    async def look_after_all(self) -> None:
        """One round of it."""
        await self._keep_endings()
        keeping = self._config.keeping
        over_quota: dict[str, str | None] = {}
        for job in list(self._jobs.values()):
            name = job.caller.name
            if job.running and job.unseen_s > job.lease_s:
                message = f"nobody asked for its traces for {job.lease_s:g} s"
                await self._end(job, "expired", Fault(code="lease_expired", message=message))
            elif job.running:
                if name not in over_quota:
                    spent = await self._accounts.spent(job.caller)
                    over_quota[name] = used_up(job.caller, spent, 0)
                if (quota := over_quota[name]) is not None:
                    message = f"your quota of {quota} a day is used up"
                    await self._end(job, "failed", Fault(code="quota_used_up", message=message))
            elif job.unseen_s > keeping.ended_job_s:
                await self.forget(job)
        for job in self._too_many():
            await self.forget(job)
        await self._engines.close_idle(after_s=keeping.idle_engine_s)

    def _too_many(self) -> list[Job]:
        """Ended jobs beyond what is kept of each client, those unseen for the longest time."""
        ended: defaultdict[str, list[Job]] = defaultdict(list)
        for job in self._jobs.values():
            if not job.running:
                ended[job.caller.name].append(job)
        most = self._config.keeping.ended_jobs
        surplus: list[Job] = []
        for name, jobs in ended.items():
            if len(jobs) > most:
                surplus += sorted(jobs, key=lambda job: job.unseen_s)[most:]
                logger.warning(
                    "%s has %d ended jobs; the oldest %d and their traces are deleted "
                    "(keeping.ended_jobs)",
                    name,
                    len(jobs),
                    len(jobs) - most,
                )
        return surplus


def _hash(spec: JobRequest) -> str:
    """What tells a job from another one, in whatever order its fields were sent."""
    fields = spec.model_dump(mode="json")
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


_MOST_BYTES_AT_ONCE = 8 * 1024 * 1024
_LONGEST_MESSAGE = 2000
_LONGEST_PAUSE_S = 30.0
