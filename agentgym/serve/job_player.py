"""Jobs being played, each to its end, whatever that is; and the ends, kept in the store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from datetime import UTC, datetime

from agentgym.errors import AgentGymError, BudgetStop, ConfigError, RolloutStopped
from agentgym.redaction import Redactor
from agentgym.remote.schema import Fault, JobState
from agentgym.serve.allowed import UNKNOWN_HOST
from agentgym.serve.engines import Engines
from agentgym.serve.faults import ServiceFault
from agentgym.serve.job import Job
from agentgym.serve.job_checks import JobChecks
from agentgym.serve.store import Store
from agentgym.serve.store_records import StoreError

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000
_LONGEST_PAUSE_S = 30.0


class JobPlayer:
    """Plays jobs.

    Args:
        store: Keeps how they ended.
        engines: Play them.
        checks: Tell whether a job of an earlier process is still allowed.
        redact: Takes secrets out of errors.
    """

    def __init__(
        self, store: Store, engines: Engines, checks: JobChecks, *, redact: Redactor
    ) -> None:
        self._store = store
        self._engines = engines
        self._checks = checks
        self._redact = redact
        self._unkept: dict[str, tuple[str, dict[str, str] | None, str]] = {}
        """How jobs ended for which the disk had no room, by id."""

    def begin(self, job: Job, *, checked: bool) -> None:
        """Start playing a job.

        Args:
            job: Which.
            checked: Whether it was just found to be allowed.
        """
        job.task = asyncio.create_task(self._play(job, checked=checked), name=f"job {job.job_id}")

    async def end(self, job: Job, state: JobState, error: Fault | None) -> None:
        """Stop a job's episodes, and note why."""
        async with job.closing:
            if not job.running:
                return
            if job.task is not None and not job.task.done():
                job.task.cancel()
                await asyncio.wait([job.task])
            await self._ended(job, state, error)

    async def keep_endings(self) -> None:
        """Keep which jobs are over, where the disk was full; or a restart would go on with them."""
        for job_id, ending in list(self._unkept.items()):
            with contextlib.suppress(StoreError):
                await self._store.do(Store.end, job_id, *ending)
                self._unkept.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        """A job is deleted; how it ended needs no keeping."""
        self._unkept.pop(job_id, None)

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
                await self._checks.allowed(job.spec, job.caller)
                return
            except ServiceFault as fault:
                if fault.code != UNKNOWN_HOST:
                    raise
                logger.warning("job %s waits: %s", job.job_id, fault.message)
            await asyncio.sleep(min(2**attempt, _LONGEST_PAUSE_S))

    def _fault(self, code: str, error: Exception) -> Fault:
        text = " ".join(str(error).split()) or type(error).__name__
        return Fault(code=code, message=self._redact.from_text(text)[:_LONGEST_MESSAGE])

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
