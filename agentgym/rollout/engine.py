"""The rollout engine: many episodes at once on one event loop, each advancing by itself.

An episode passes INIT (an environment is made or reset), RUN (turns) and EVAL (the verdict), each
with its own slots and deadline, so that neither a slow environment nor a slow judge holds a slot of
the policy. There are no rounds: who finishes first comes out first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import agentgym
from agentgym.client import Endpoint, ModelClient, SamplingParams
from agentgym.clients.connect import connect
from agentgym.errors import ConfigError
from agentgym.rollout.backend import Backend
from agentgym.rollout.blocking import run_to_completion
from agentgym.rollout.canary import Canary
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.enough import Enough
from agentgym.rollout.hosted import check_keys, endpoints_in
from agentgym.rollout.journal import Journal
from agentgym.rollout.ledger import Ledger
from agentgym.rollout.limits import Limits
from agentgym.rollout.local import LocalBackend
from agentgym.rollout.observer import Observer
from agentgym.rollout.progress import Progress, progress_for
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.requests import Requests
from agentgym.rollout.retry import Retry
from agentgym.rollout.run import Run
from agentgym.rollout.source import EnvLike, EnvSource
from agentgym.rollout.stages import Stages
from agentgym.rollout.status import EngineStatus
from agentgym.rollout.turns import Setting
from agentgym.trace import Trace
from agentgym.traces import TraceSink

PolicyLike: TypeAlias = ModelClient | Endpoint | Sequence[Endpoint]
"""What stands for the policy: a client, an endpoint, or the endpoints of equal replicas."""


@dataclass
class _OnLoop:
    """What an engine has on one event loop; slots and environments belong to it."""

    backend: Backend
    runs: set[Run] = field(default_factory=set)
    """Those that are read."""
    carried: list[Run] = field(default_factory=list)
    """Those that go on until the next one reads them."""


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
        stages: Slots that several engines on one event loop share, in place of an engine's own;
            this process's backend only.
        retry: What is tried again after a failure; None is nothing.
        stuck_after_s: Seconds in which nothing moves after which a warning says where the episodes
            are; None and 0 for none.
        ledger: What episodes are paid from, where several engines share one budget or some of it is
            spent; None: the engine's own, if `limits.budget` says so.

    Raises:
        ConfigError: If there is no such env, a parameter is out of its range, or a budget is in
            dollars and the price of an endpoint isn't known.

    Examples:
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
        ledger: Ledger | None = None,
    ) -> None:
        if stages is not None and backend != "local":
            raise ConfigError(
                "stages: shared slots are of this process, and other backends have their own; "
                "leave stages out and give each engine its part in limits, or use backend='local'"
            )
        sampling = sampling or SamplingParams()
        self._source = EnvSource(env, env_kwargs)
        self._writer = writer
        self._backend_choice = backend
        self._stages = stages
        self._endpoints = endpoints_of(client)
        policy, limits = policy_client(client), limits or Limits()
        self.ledger = ledger or _own_ledger(limits, policy)
        """What is spent of the budget; None without one."""
        if self.ledger is not None:
            self.ledger.check_prices(
                (*_endpoints_behind(policy, self._endpoints),
                 *endpoints_in(self._source.env_kwargs).values())
            )  # fmt: skip
        self._observer = Observer(
            progress_for(progress), client=policy, limits=limits, stuck_after_s=stuck_after_s
        )
        self._setting = Setting(
            client=policy,
            sampling=sampling,
            limits=limits,
            policy={"model": policy_name, **sampling.model_dump(mode="json")},
            metadata={"agentgym": agentgym.__version__, **(metadata or {})},
            progress=self._observer,
            canary=canary,
            journal=journal,
            retry=retry,
        )
        self._by_loop: dict[asyncio.AbstractEventLoop, _OnLoop] = {}

    async def run(
        self, requests: Requests, *, enough: Enough | None = None
    ) -> AsyncIterator[Trace]:
        """Play the requested episodes.

        What earlier runs have carried over is read here, too. Leaving the loop early cancels all
        that is in flight.

        Args:
            requests: May be lazy, and asynchronous. The next one is taken when the one before has
                begun, and it begins when there is room: fewer than `Limits.backlog` episodes wait
                for a verdict, and as many traces to be read here.
            enough: When to end before all of them are over. What hasn't begun by then isn't taken
                from `requests`, so that an iterator can be gone on with. An asynchronous one is
                cancelled if it is waiting for its next then, which is the end of a generator; one
                to go on with needs an `__anext__` that may be cancelled, as of a queue.

        Yields:
            Traces in the order in which the episodes finish; with `enough`, those of a group
            together. An episode that fails is a trace with a failure class.

        Raises:
            AgentGymError: If no env can be made as configured, a model it names needs a key that
                isn't there, or something else than an `EpisodeRequest` is requested.
            RolloutStopped: If too many episodes fail, an endpoint refuses the caller (wrong key,
                no credit, its own budget used up), a replay misses, or a canary that may finds
                drift.
            BudgetStop: If the run's budget leaves nothing for a further episode; after all that
                were in flight have been yielded.
            TraceError: If the writer can't write.
        """
        check_keys(self._source.env_kwargs)
        await self._leave_closed_loops()
        here = self._here()
        run = Run(
            *(self._backend(), self._setting, self._observer),
            writer=self._writer,
            enough=enough,
            ledger=self.ledger,
            is_here=self._backend_choice == "local",
        )
        run.begin(requests, here.carried)
        here.carried = []
        here.runs.add(run)
        try:
            while (trace := await run.outbox.take()) is not None:
                yield trace
            run.end()
        finally:
            here.runs.discard(run)
            carried = await run.leave()
            here.carried += carried

    def run_blocking(self, requests: Requests) -> list[Trace]:
        """`run`, to completion, from plain code and from notebooks.

        Ctrl-C stops it cleanly: what has finished is with the writer, what has not is cancelled.

        Returns:
            All traces, in the order in which the episodes finished.
        """
        return run_to_completion(self._collect(requests))

    def drain(self) -> None:
        """Begin no further episode, and let those finish that have begun; `run` then ends.

        A request that has been taken and waits for room does not begin either. Any thread may call
        this; it does nothing where nothing runs.
        """
        for loop, here in list(self._by_loop.items()):
            for run in tuple(here.runs):
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(run.drain)

    def status(self) -> EngineStatus:
        """What the engine is doing at the moment; any thread may ask."""
        return self._observer.status()

    @property
    def carried(self) -> tuple[EpisodeRequest, ...]:
        """Episodes of earlier runs that go on in the background; the next run yields them."""
        states = [here for loop, here in list(self._by_loop.items()) if not loop.is_closed()]
        return tuple(r for here in states for run in here.carried for r in run.requests_out)

    async def aclose(self) -> None:
        """Cancel what is carried, and close the environments that were kept for reuse."""
        states = list(self._by_loop.items())
        self._by_loop.clear()
        for loop, here in states:
            for run in here.carried:
                if loop is asyncio.get_running_loop():
                    await run.cancel()
                    continue
                with suppress(RuntimeError):  # the loop was closed, and its tasks are gone
                    loop.call_soon_threadsafe(run.cancel_soon)
            await here.backend.aclose()

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

    async def _leave_closed_loops(self) -> None:
        """Close what was kept on event loops that are gone; every `asyncio.run` makes a new one."""
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if (there := self._by_loop.pop(loop, None)) is not None:
                await there.backend.aclose()

    def _here(self) -> _OnLoop:
        loop = asyncio.get_running_loop()
        here = self._by_loop.get(loop)
        if here is None:
            here = self._by_loop[loop] = _OnLoop(self._new_backend())
        return here

    def _backend(self) -> Backend:
        return self._here().backend

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


def _own_ledger(limits: Limits, policy: ModelClient) -> Ledger | None:
    """The ledger of one engine; a policy that is no endpoint costs no dollars."""
    if limits.budget is None:
        return None
    return Ledger(limits.budget, free_roles=() if _endpoints_behind(policy, ()) else ("policy",))


def _endpoints_behind(policy: ModelClient, known: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """The endpoints that are asked for the policy's answers, as far as one can tell."""
    endpoint = getattr(policy, "endpoint", None)
    return known or ((endpoint,) if isinstance(endpoint, Endpoint) else ())


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
