"""How rollouts ask the servers of a trainer: here, or through a rollout service.

Both know only the servers with the last weights, by the name that those have at the moment: LoRA
adapters are served under a new one after each sync.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from agentgym.client import Completion, Endpoint, SamplingParams, TokenPath
from agentgym.clients import BalancedClient, ChatClient
from agentgym.clients.replicas import ReplicaStatus
from agentgym.remote import RemoteEngine
from agentgym.rollout import EpisodeRequest
from agentgym.rollout.blocking import run_to_completion
from agentgym.trace import Trace
from agentgym.train.policy_source import EngineSettings
from agentgym.train.sync import ClientListener
from agentgym.types import Message, ToolSpec

_CHECK_S = 30.0
_RECONNECT_S = 600.0
"""How long a service may be away, seconds: before the first rollout, and during one."""


class ServedClient:
    """A `ModelClient` over servers that change their weights, and perhaps their model's name.

    A new name is taken between rollouts only: the ids of episodes in flight are not carried over.

    Args:
        endpoints: All servers.
        lost: Base URLs of those that must not be asked for now.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, lost: Iterable[str] = ()) -> None:
        self._endpoints = {endpoint.base_url: endpoint for endpoint in endpoints}
        self._lost = set(lost)
        self._begin()

    def _begin(self) -> None:
        there = [e for url, e in self._endpoints.items() if url not in self._lost]
        self._client = BalancedClient(there)
        self._told = ClientListener(self._client)

    @property
    def endpoint(self) -> Endpoint:
        """What the servers have in common."""
        return self._client.endpoint

    def status(self) -> tuple[ReplicaStatus, ...]:
        """The servers as they are now."""
        return self._client.status()

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `BalancedClient.complete`."""
        return await self._client.complete(messages, tools, sampling, session=session)

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """See that every server, its model and its ids are right."""
        await self._client.preflight(tools)

    async def release(self, session: str) -> None:
        """Forget a session."""
        await self._client.release(session)

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    def holding(self, server: str) -> None:
        """A server, by its base URL, is about to answer nobody."""
        if server not in self._lost:
            self._told.holding(self._endpoints[server])

    def synced(self, server: str, *, version: str, model: str | None) -> None:
        """A server has new weights and may be asked again, by a new name if one is given."""
        if model is not None and model != self._client.endpoint.model:
            self._endpoints = {
                url: endpoint.model_copy(update={"model": model})
                for url, endpoint in self._endpoints.items()
            }
            self._lost.discard(server)
            self._begin()
        elif server in self._lost:
            self._lost.discard(server)
            self._client.add(self._endpoints[server])
        self._told.synced(self._endpoints[server], version=version, model=model)

    def lost(self, server: str, why: str) -> None:
        """A server must not be asked."""
        if server not in self._lost:
            self._told.lost(self._endpoints[server], why)

    def named(self, version: str) -> None:
        """The weights of all servers have this name."""
        self._client.set_weight_version(None, version)


async def greet(endpoints: Iterable[Endpoint]) -> None:
    """See that every server, its model, tokenizer and log-probabilities are right.

    Raises:
        EndpointError: If one isn't; one line that says why.
    """
    for endpoint in endpoints:
        client = ChatClient(endpoint)
        try:
            await client.preflight()
        finally:
            await client.aclose()


async def _nothing() -> AsyncIterator[EpisodeRequest]:
    none: tuple[EpisodeRequest, ...] = ()
    for request in none:
        yield request


class Servers(Protocol):
    """The servers of a trainer as they are now."""

    @property
    def weight_version(self) -> str | None:
        """Their weights, as the traces name them."""
        ...

    def asked_in_ids(self, path: TokenPath, *, seeded: bool) -> list[Endpoint]:
        """Those that have the last weights."""
        ...


class ServiceRollouts:
    """Plays on a rollout service, which asks the trainer's servers.

    Args:
        url: The service's root.
        servers: Asked anew for each rollout.
        settings: What is played.
        path: How the servers are asked; the service must have this tokenizer, and allow it.
    """

    def __init__(
        self, url: str, servers: Servers, settings: EngineSettings, path: TokenPath
    ) -> None:
        self._url = url
        self._servers = servers
        self._settings = settings
        self._path = path

    def run_blocking(self, requests: Iterable[EpisodeRequest]) -> list[Trace]:
        """Play them all; the traces in the order in which the episodes finished."""
        engine = self._engine()
        try:
            return engine.run_blocking(list(requests))
        finally:
            engine.close()

    def check(self) -> None:
        """See that the service plays this, with this tokenizer and these servers.

        It is asked to accept a job, which ends without an episode.

        Raises:
            AgentGymError: If it doesn't; one line that says why.
        """

        async def begin() -> None:
            async with self._engine(reconnect_s=_CHECK_S) as engine:
                async for _ in engine.run(_nothing()):
                    pass

        run_to_completion(begin())

    def _engine(self, *, reconnect_s: float = _RECONNECT_S) -> RemoteEngine:
        settings = self._settings
        return RemoteEngine(
            self._url,
            settings.env_id,
            client=self._servers.asked_in_ids(self._path, seeded=settings.seeded),
            sampling=settings.sampling,
            env_kwargs=settings.env_kwargs,
            limits=settings.limits,
            writer=settings.writer,
            progress=settings.progress,
            policy_name=settings.policy_name,
            weight_version=self._servers.weight_version,
            reconnect_s=reconnect_s,
        )

    def close(self) -> None:
        """Nothing is kept between rollouts."""
