"""All jobs of a service: accepted, played, ended, forgotten, taken up again after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from http import HTTPStatus

from pydantic import ValidationError

from agentgym.redaction import Redactor
from agentgym.remote.schema import Fault, JobRequest, MoreEpisodes
from agentgym.serve.access import Caller
from agentgym.serve.accounts import Accounts, used_up
from agentgym.serve.config import ServiceConfig
from agentgym.serve.engines import Engines
from agentgym.serve.faults import ServiceFault
from agentgym.serve.job import Job
from agentgym.serve.job_checks import JobChecks, check_quota, hash_of
from agentgym.serve.job_player import JobPlayer
from agentgym.serve.planning import seeded
from agentgym.serve.pools import Pools
from agentgym.serve.store import Store
from agentgym.serve.store_records import StoredJob
from agentgym.serve.storing import storing
from agentgym.types import in_one_line

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_MOST_BYTES_AT_ONCE = 8 * 1024 * 1024


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
        self._accounts = accounts
        self._clock = clock
        self._redact = Redactor()
        self._checks = JobChecks(config.allowed, engines, pools, redact=self._redact)
        self._player = JobPlayer(store, engines, self._checks, redact=self._redact)
        self._jobs: dict[str, Job] = {}
        self._accepting = asyncio.Lock()
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
        body_hash = hash_of(spec)
        async with self._accepting:  # a job in the store, but not taken up yet, can't be found
            earlier = await self._earlier(caller, key, body_hash)
        if earlier is not None:
            return earlier
        self._check_taking()
        check_quota(caller, jobs=1, episodes=spec.episodes.count, running=self._running_of(caller))
        spec = await self._checks.allowed(spec, caller)
        requests = await self._checks.episodes(spec)
        async with self._accepting:
            earlier = await self._earlier(caller, key, body_hash)  # sent at the same time
            if earlier is not None:
                return earlier
            check_quota(caller, jobs=1, episodes=len(requests), running=self._running_of(caller))
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
        await self._checks.tasks(self.find(caller, job_id).spec, more.requests)
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
            check_quota(caller, episodes=job.requested + len(new), running=self._running_of(caller))
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

    def _running_of(self, caller: Caller) -> int:
        return sum(job.running for job in self.of(caller))

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
        await self._player.end(job, "cancelled", None)

    async def forget(self, job: Job) -> None:
        """End a job and delete all it has."""
        await self.cancel(job)
        with storing():
            await self._store.do(Store.forget, job.job_id)
        self._player.forget(job.job_id)
        self._jobs.pop(job.job_id, None)

    async def drain(self) -> None:
        """Take no further job, begin no further episode, and wait for those in flight."""
        self.draining = True
        for job in self._jobs.values():
            job.begin_no_more("drain")
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

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

    # --- inside -------------------------------------------------------------------------------

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
            self._player.begin(job, checked=checked)

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
        await self._player.keep_endings()
        keeping = self._config.keeping
        over_quota: dict[str, str | None] = {}
        for job in list(self._jobs.values()):
            name = job.caller.name
            if job.running and job.unseen_s > job.lease_s:
                message = f"nobody asked for its traces for {job.lease_s:g} s"
                await self._player.end(job, "expired", Fault(code="lease_expired", message=message))
            elif job.running:
                if name not in over_quota:
                    spent = await self._accounts.spent(job.caller)
                    over_quota[name] = used_up(job.caller, spent, 0)
                if (quota := over_quota[name]) is not None:
                    message = f"your quota of {quota} a day is used up"
                    await self._player.end(
                        job, "failed", Fault(code="quota_used_up", message=message)
                    )
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
