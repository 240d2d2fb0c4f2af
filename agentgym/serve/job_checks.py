"""Whether a job may be played: what the service allows, what the env has, what a client may ask."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from http import HTTPStatus

from agentgym.errors import AgentGymError, UnknownTaskError
from agentgym.redaction import Redactor
from agentgym.remote.schema import JobRequest
from agentgym.rollout.plan import named_tasks
from agentgym.rollout.request import EpisodeRequest
from agentgym.serve.access import Caller
from agentgym.serve.allowed import Allowed
from agentgym.serve.engines import Engines
from agentgym.serve.faults import ServiceFault
from agentgym.serve.planning import planned
from agentgym.serve.pools import Pools


class JobChecks:
    """What a job is held against.

    Args:
        allowed: What the service plays.
        engines: Know the tasks.
        pools: The policies' servers.
        redact: Takes secrets out of errors.
    """

    def __init__(
        self, allowed: Allowed, engines: Engines, pools: Pools, *, redact: Redactor
    ) -> None:
        self._allowed = allowed
        self._engines = engines
        self._pools = pools
        self._redact = redact

    async def allowed(self, spec: JobRequest, caller: Caller) -> JobRequest:
        """The job with checked env, parameters and servers.

        Raises:
            ServiceFault: If the caller may not have it played, or it makes no sense.
        """
        if spec.enough is not None and spec.enough.unfinished == "carry":
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid_request",
                "enough.unfinished: a job has no next run to carry episodes into; cancel it with "
                "in_flight=finish instead",
            )
        env = self._allowed.env(spec.env)
        kwargs = await asyncio.to_thread(self._allowed.env_kwargs, env, spec.env_kwargs)
        policy = spec.policy
        if policy.pool is None:
            endpoints = tuple(await self._pools.checked(policy.endpoints))
            policy = policy.model_copy(update={"endpoints": endpoints})
        else:
            self._pools.named(caller.name, policy.pool)
        return spec.model_copy(update={"env": env, "env_kwargs": kwargs, "policy": policy})

    async def episodes(self, spec: JobRequest) -> list[EpisodeRequest]:
        """The job's episodes, each with its seed.

        Raises:
            ServiceFault: If there are none, or not those.
        """
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
        await self.tasks(spec, requests)
        return requests

    async def tasks(self, spec: JobRequest, requests: Sequence[EpisodeRequest]) -> None:
        """See that the env has the tasks that episodes ask for by name.

        Raises:
            ServiceFault: If it doesn't.
        """
        wanted = {request.task_id for request in requests if request.task_id is not None}
        if not wanted:
            return
        try:
            named_tasks(await self._engines.task_ids(spec), sorted(wanted))
        except UnknownTaskError as error:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY, "unknown_task", str(error)
            ) from error


def check_quota(caller: Caller, *, episodes: int, running: int, jobs: int = 0) -> None:
    """See that a client may have a job of so many episodes.

    Args:
        caller: Whose it is.
        episodes: The job's, all together.
        running: Jobs of the client that are not over.
        jobs: How many are to come beside those.

    Raises:
        ServiceFault: If that is more than its quota.
    """
    quota = caller.quota
    if episodes > quota.episodes_per_job:
        raise ServiceFault(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "too_many_episodes",
            f"a job of yours may have {quota.episodes_per_job} episodes, not {episodes}; make "
            "several jobs of it",
        )
    if running + jobs > quota.open_jobs:
        raise ServiceFault(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too_many_jobs",
            f"you have {running} jobs running and may have {quota.open_jobs}; wait for one to "
            "end, or cancel one",
            retry_after_s=10,
        )


def hash_of(spec: JobRequest) -> str:
    """What tells a job from another one, in whatever order its fields were sent."""
    fields = spec.model_dump(mode="json")
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
