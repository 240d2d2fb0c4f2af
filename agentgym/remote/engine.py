"""The engine's twin that plays elsewhere: the same calls, with a service's URL.

A run is a job there (`run`). Whatever interrupts the connection is waited out, so that a run yields
each episode exactly once. As long as a run goes on, it asks; if its process dies, the service
notices that nobody asks, and stops the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from agentgym.client import SamplingParams
from agentgym.errors import ConfigError
from agentgym.remote.http import ServiceClient
from agentgym.remote.job_fields import RemotePolicy, as_json, env_fields, policy_fields
from agentgym.remote.run import RemoteRun, status_of
from agentgym.rollout.blocking import run_to_completion
from agentgym.rollout.enough import Enough
from agentgym.rollout.failure import first_cause
from agentgym.rollout.limits import Limits
from agentgym.rollout.progress import Progress, Ticking, progress_for
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.requests import Requests
from agentgym.rollout.retry import Retry
from agentgym.rollout.status import EngineStatus, EpisodeCounts
from agentgym.trace import Trace
from agentgym.traces import TraceSink


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
        env_id, kwargs = env_fields(env, env_kwargs)
        self.weight_version = weight_version
        """The weights that the endpoints have from the next run on; None leaves them unsaid."""
        self._http = ServiceClient(url, token=token, reconnect_s=reconnect_s)
        self._policy = policy_fields(client, policy_name)
        self._job: dict[str, Any] = {
            "env": env_id,
            "env_kwargs": kwargs,
            "sampling": as_json(sampling or SamplingParams(), "sampling"),
            "limits": as_json(limits or Limits(), "limits"),
            "retry": None if retry is None else as_json(retry, "retry"),
            "metadata": as_json(dict(metadata or {}), "metadata"),
            "lease_s": lease_s,
        }
        self._writer = writer
        self._progress = progress_for(progress)
        self._runs: dict[RemoteRun, asyncio.AbstractEventLoop] = {}

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
        run = RemoteRun(self._http, requests)

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
            raise first_cause(failures) from None
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
