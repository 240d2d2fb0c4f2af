"""The rollout engine: many episodes at once on one event loop, each advancing by itself.

An episode passes INIT (an environment is made or reset), RUN (turns) and EVAL (the verdict), each
with its own slots and deadline, so that neither a slow environment nor a slow judge holds a slot of
the policy. There are no rounds: who finishes first comes out first.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    Sized,
)
from typing import Any, Literal, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import agentgym
from agentgym.client import Endpoint, ModelClient, SamplingParams
from agentgym.clients.connect import connect
from agentgym.errors import ConfigError, RolloutStopped
from agentgym.rollout.backend import Backend, Playing
from agentgym.rollout.blocking import run_to_completion
from agentgym.rollout.canary import Canary
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.enough import Enough
from agentgym.rollout.hosted import check_keys
from agentgym.rollout.journal import Journal
from agentgym.rollout.limits import FailureWatch, Limits
from agentgym.rollout.local import LocalBackend
from agentgym.rollout.observer import Observer
from agentgym.rollout.progress import Progress, progress_for
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.retry import Retry
from agentgym.rollout.source import EnvLike, EnvSource
from agentgym.rollout.stages import Stages
from agentgym.rollout.status import EngineStatus
from agentgym.rollout.turns import Setting
from agentgym.trace import Trace

Requests: TypeAlias = Iterable[EpisodeRequest] | AsyncIterable[EpisodeRequest]
"""Episodes to play; an asynchronous source may wait for its next one without holding up others."""

PolicyLike: TypeAlias = ModelClient | Endpoint | Sequence[Endpoint]
"""What stands for the policy: a client, an endpoint, or the endpoints of equal replicas."""


class TraceSink(Protocol):
    """Where finished traces go; `agentgym.traces.TraceWriter` is one."""

    def write(self, trace: Trace) -> None:
        """Keep one trace."""


class Engine:
    """Plays episodes of one environment with one policy.

    Args:
        env: An env id, an `EnvSpec`, or a function that makes an env.
        client: The policy: a client, which stays the caller's to close, or an endpoint. Several
            endpoints are replicas of one policy, among which the episodes are balanced.
        sampling: How it samples. The seed of every turn follows from the episode's seed.
        env_kwargs: Parameters of the env, with an id or a spec.
        limits: Concurrency, deadlines, budgets.
        writer: Keeps each trace as it finishes, before it is yielded.
        progress: True for a live bar (plain lines where there is no terminal), or a `Progress`.
        policy_name: The policy as the traces name it.
        metadata: Facts about the run for the traces.
        canary: Episodes with known verdicts, to notice a judge that changes.
        backend: Where the episodes are played: in this process, on a Ray cluster (`ray`, or a
            `Cluster` that says which and how much of it), or a `Backend`.
        journal: Keeps episodes that are rolled out until they are judged, and gives back those
            that an earlier run left without a verdict; this process's backend only.
        stages: Slots that several engines on one event loop share, in place of an engine's own.
        retry: What is tried again after a failure; None is nothing.
        stuck_after_s: Seconds in which nothing moves after which a warning says where the episodes
            are; None for none.

    Raises:
        ConfigError: If there is no such env.

    Example:
        >>> engine = Engine("agentgym/WebShop-v0", client=client)
        >>> async for trace in engine.run(EpisodeRequest(seed=k) for k in range(100)):
        ...     print(trace.task_id, trace.reward)
    """

    def __init__(
        self,
        env: EnvLike,
        *,
        client: PolicyLike,
        sampling: SamplingParams | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        writer: TraceSink | None = None,
        progress: bool | Progress | None = None,
        policy_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        canary: Canary | None = None,
        backend: Literal["local", "ray"] | Cluster | Backend = "local",
        stages: Stages | None = None,
        retry: Retry | None = None,
        journal: Journal | None = None,
        stuck_after_s: float | None = 60.0,
    ) -> None:
        sampling = sampling or SamplingParams()
        self._source = EnvSource(env, env_kwargs)
        self._writer = writer
        self._backend_choice = backend
        self._stages = stages
        self._retry = retry
        self._endpoints = endpoints_of(client)
        policy = policy_client(client)
        self._observer = Observer(
            progress_for(progress), client=policy, stuck_after_s=stuck_after_s
        )
        self._setting = Setting(
            client=policy,
            sampling=sampling,
            limits=limits or Limits(),
            policy={"model": policy_name, **sampling.model_dump(mode="json")},
            metadata={"agentgym": agentgym.__version__, **(metadata or {})},
            progress=self._observer,
            canary=canary,
            journal=journal,
        )
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Backend] = WeakKeyDictionary()

    async def run(
        self, requests: Requests, *, enough: Enough | None = None
    ) -> AsyncIterator[Trace]:
        """Play the requested episodes.

        Args:
            requests: May be lazy, and asynchronous; the next one is taken when there is room for it.
            enough: When to end before all of them are over.

        Yields:
            Traces in the order in which the episodes finish. An episode that fails is a trace with
            a failure class.

        Raises:
            AgentGymError: If no env can be made as configured, or a model it names needs a key that
                isn't there.
            RolloutStopped: If too many episodes fail, an endpoint refuses the caller (wrong key,
                no credit, budget used up), a replay misses, or a canary that may finds drift.
            TraceError: If the writer can't write.
        """
        finished: asyncio.Queue[Trace | None] = asyncio.Queue()
        batch = asyncio.create_task(self._play_all(requests, finished.put_nowait))
        try:
            while (trace := await finished.get()) is not None:
                yield trace
            await batch
        finally:
            batch.cancel()
            await asyncio.gather(batch, return_exceptions=True)

    def run_blocking(self, requests: Requests) -> list[Trace]:
        """`run`, to completion, from plain code and from notebooks.

        Ctrl-C stops it cleanly: what has finished is with the writer, what has not is cancelled.

        Returns:
            All traces, in the order in which the episodes finished.
        """
        return run_to_completion(self._collect(requests))

    def drain(self) -> None:
        """Begin no further episode, and let those finish that have begun; `run` then ends."""
        raise NotImplementedError

    def status(self) -> EngineStatus:
        """What the engine is doing at the moment; any thread may ask."""
        return self._observer.status()

    @property
    def carried(self) -> tuple[EpisodeRequest, ...]:
        """Episodes of earlier runs that go on in the background; the next run yields them."""
        return ()

    async def aclose(self) -> None:
        """Close the environments that were kept for reuse."""
        backends = list(self._by_loop.values())
        self._by_loop.clear()
        await asyncio.gather(*(backend.aclose() for backend in backends))

    def close(self) -> None:
        """`aclose` for plain code."""
        run_to_completion(self.aclose())

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # --- inside -------------------------------------------------------------------------------

    async def _collect(self, requests: Requests) -> list[Trace]:
        return [trace async for trace in self.run(requests)]

    def _backend(self) -> Backend:
        """Slots and environments belong to one event loop."""
        loop = asyncio.get_running_loop()
        backend = self._by_loop.get(loop)
        if backend is None:
            backend = self._by_loop[loop] = self._new_backend()
        return backend

    def _new_backend(self) -> Backend:
        if self._backend_choice == "local":
            return LocalBackend(self._source, self._setting, self._stages)
        if self._backend_choice == "ray" or isinstance(self._backend_choice, Cluster):
            from agentgym.rollout.cluster import RayBackend

            cluster = Cluster() if self._backend_choice == "ray" else self._backend_choice
            return RayBackend(
                self._source, self._setting, endpoints=self._endpoints, cluster=cluster
            )
        return self._backend_choice

    async def _play_all(self, requests: Requests, emit: Callable[[Trace | None], None]) -> None:
        """Play everything; `emit` gets each trace, and None at the end whatever happened."""
        progress = self._observer
        watch = FailureWatch(self._setting.limits)

        def done(trace: Trace) -> None:
            if self._writer is not None:
                self._writer.write(trace)
            progress.finish(trace)
            emit(trace)
            watch.count(trace)

        try:
            check_keys(self._source.env_kwargs)
            progress.begin(len(requests) if isinstance(requests, Sized) else None)
            backend = self._backend()
            async with progress.watching(backend), asyncio.TaskGroup() as group:
                batch = backend.batch(group)
                async for request in _each(requests):
                    await batch.admit()
                    group.create_task(self._play(batch.begin(request), group, done))
                batch.no_more()
        except BaseExceptionGroup as failures:
            raise _first_cause(failures) from None
        finally:
            progress.end()
            emit(None)

    async def _play(
        self, playing: Playing, tasks: asyncio.TaskGroup, done: Callable[[Trace], None]
    ) -> None:
        played = await playing.play()
        done(played.trace)
        if played.fatal is not None:
            raise RolloutStopped(
                f"stopped, since no other episode would fare better: {played.fatal}"
            )
        canary: Canary | None = self._setting.canary
        if canary is None or played.scoring is None:
            return
        if (finished := canary.due()) is not None:
            judge = canary.judge or played.scoring.judge
            tasks.create_task(self._check_judge(canary, judge, finished))

    async def _check_judge(self, canary: Canary, judge: Any, finished: int) -> None:
        """Ask the judge about the canary's episodes, beside the run."""
        check = await canary.check(judge, after_episodes=finished)
        self._observer.note(f"judge drift ×{canary.drifts}" if canary.drifts else "")
        if check.drifted and canary.stop:
            raise RolloutStopped(f"stopped after {check.after_episodes} episodes: {check}")


async def _each(requests: Requests) -> AsyncIterator[EpisodeRequest]:
    """The requests of a source of either kind."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def endpoints_of(policy: PolicyLike) -> tuple[Endpoint, ...]:
    """The endpoints that stand for a policy; none where it is a client."""
    if isinstance(policy, Endpoint):
        return (policy,)
    return tuple(policy) if isinstance(policy, Sequence) else ()


def policy_client(policy: PolicyLike) -> ModelClient:
    """The client of a policy.

    Raises:
        ConfigError: If it is none of what can stand for one.
    """
    if isinstance(policy, Sequence):
        if not policy:
            raise ConfigError("client: no endpoint is given; a policy needs at least one")
        if len(policy) > 1:
            from agentgym.clients import BalancedClient

            return BalancedClient(policy)
        (policy,) = policy
    return connect(policy, role="policy")


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors that stopped a batch; the others followed from it or equal it."""
    error = group.exceptions[0]
    return _first_cause(error) if isinstance(error, BaseExceptionGroup) else error
