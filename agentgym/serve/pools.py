"""The policies' servers: named pools, which come and go by request, and those a job brings along.

A pool is one balanced client that every job that names it shares, so a server added for one is used
by all, and load and prefixes are counted once. Pools belong to the client that made them and
outlive a restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from http import HTTPStatus

from pydantic import ValidationError

from agentgym.clients.balanced import BalancedClient
from agentgym.errors import ConfigError
from agentgym.remote.schema import EndpointChange, Policy, PolicyEndpoint, PoolStatus
from agentgym.serve.access import Caller
from agentgym.serve.allowed import UNKNOWN_HOST, Allowed
from agentgym.serve.faults import ServiceFault
from agentgym.serve.store import Store
from agentgym.serve.storing import storing
from agentgym.types import in_one_line

logger = logging.getLogger(__name__)


class Pool:
    """The servers of one policy.

    Args:
        key: What tells it from the others, within its client.
        first: One of them.

    Raises:
        ConfigError: If no request can be sent there.
    """

    def __init__(self, key: str, first: PolicyEndpoint) -> None:
        self.key = key
        self.client = BalancedClient([first.endpoint()])
        self.endpoints = {first.base_url: first}
        """By base URL."""
        self.paused: set[str] = set()
        """Base URLs."""
        self.users = 0
        """Engines that play with it."""
        if first.weight_version is not None:
            self.set_version(first.base_url, first.weight_version)

    @property
    def model(self) -> str:
        """The model of its first server."""
        return next((endpoint.model for endpoint in self.endpoints.values()), "")

    def add(self, endpoint: PolicyEndpoint) -> None:
        """Take a server in; of one that is there, only the weight version is new."""
        version = endpoint.weight_version
        known = self.endpoints.get(endpoint.base_url)
        if known is None:
            self.client.add(endpoint.endpoint(), weight_version=version)
            self.endpoints[endpoint.base_url] = endpoint
        elif version is not None and version != known.weight_version:
            self.set_version(endpoint.base_url, version)

    def set_version(self, base_url: str, version: str) -> None:
        """Note the weights that a server has now."""
        self.client.set_weight_version(base_url, version)
        known = self.endpoints[base_url]
        self.endpoints[base_url] = known.model_copy(update={"weight_version": version})

    def pause(self, base_url: str, paused: bool) -> None:
        """Give a server no further episodes, or give it some again."""
        if paused:
            self.client.pause(base_url)
            self.paused.add(base_url)
        else:
            self.client.resume(base_url)
            self.paused.discard(base_url)

    def status(self) -> PoolStatus:
        """How its servers are doing."""
        replicas = tuple(replica.model_dump(mode="json") for replica in self.client.status())
        return PoolStatus(pool=self.key, replicas=replicas)


class Pools:
    """All pools of a service.

    Args:
        store: Keeps the named ones.
        allowed: Where requests may go.
    """

    def __init__(self, store: Store, allowed: Allowed) -> None:
        self._store = store
        self._allowed = allowed
        self._named: dict[tuple[str, str], Pool] = {}
        self._brought: dict[tuple[str, str], Pool] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Make the pools that the store knows, of the servers that are still allowed."""
        for caller, name, text, paused in await self._store.do(Store.replicas):
            try:
                endpoint = await self._still_allowed(PolicyEndpoint.model_validate_json(text))
                self._load(caller, name, endpoint, paused=paused)
            except (ValidationError, ConfigError, ServiceFault) as error:
                told = in_one_line(error) if isinstance(error, ValidationError) else error
                logger.error("a server of the pool %s of %s stays out: %s", name, caller, told)

    async def _still_allowed(self, endpoint: PolicyEndpoint) -> PolicyEndpoint:
        try:
            return (await self.checked([endpoint]))[0]
        except ServiceFault as fault:
            if fault.code != UNKNOWN_HOST:
                raise
            return endpoint  # it was allowed when it came; names can't be looked up just now

    def _load(self, caller: str, name: str, endpoint: PolicyEndpoint, *, paused: bool) -> None:
        pool = self._named.get((caller, name))
        if pool is None:
            pool = self._named[caller, name] = Pool(name, endpoint)
        pool.add(endpoint)
        if paused:
            pool.pause(endpoint.base_url, True)

    async def checked(self, endpoints: Sequence[PolicyEndpoint]) -> list[PolicyEndpoint]:
        """Check where the servers are and which keys they ask for.

        Raises:
            ServiceFault: If one isn't allowed.
        """
        return [
            await asyncio.to_thread(self._allowed.endpoint, endpoint, where=f"endpoints.{number}")
            for number, endpoint in enumerate(endpoints)
        ]

    def of_job(self, caller: str, policy: Policy) -> Pool:
        """The pool that a job plays with.

        Its endpoints have been checked. Jobs that bring the same servers share them.

        Raises:
            ServiceFault: 404, if it names one that isn't there.
        """
        if policy.pool is not None:
            return self.named(caller, policy.pool)
        servers = [endpoint.endpoint().model_dump_json() for endpoint in policy.endpoints]
        key = json.dumps(sorted(servers))
        pool = self._brought.get((caller, key))
        if pool is None:
            pool = self._brought[caller, key] = Pool(key, policy.endpoints[0])
        for endpoint in policy.endpoints:
            pool.add(endpoint)
        return pool

    async def let_go(self, caller: str, pool: Pool) -> None:
        """Close a pool that jobs brought along and none uses any more."""
        if not pool.users and self._brought.get((caller, pool.key)) is pool:
            del self._brought[caller, pool.key]
            await pool.client.aclose()

    async def aclose(self) -> None:
        """Close all of them."""
        for leaving in tuple(self._leaving):
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        pools = [*self._named.values(), *self._brought.values()]
        self._named.clear()
        self._brought.clear()
        await asyncio.gather(*(pool.client.aclose() for pool in pools))

    # --- named ones, by request ---------------------------------------------------------------

    def named(self, caller: str, name: str) -> Pool:
        """A client's pool.

        Raises:
            ServiceFault: 404, if there is none of that name.
        """
        pool = self._named.get((caller, name))
        if pool is None:
            raise ServiceFault(
                HTTPStatus.NOT_FOUND,
                "unknown_pool",
                f"you have no pool {name!r:.100}; POST /v1/policies/POOL/endpoints makes one",
            )
        return pool

    def of(self, caller: str) -> list[Pool]:
        """A client's pools."""
        return [pool for (owner, _), pool in sorted(self._named.items()) if owner == caller]

    async def add(self, caller: Caller, name: str, endpoints: Sequence[PolicyEndpoint]) -> Pool:
        """Add servers to a pool, which is made if there is none."""
        checked = await self.checked(endpoints)
        if (caller.name, name) not in self._named and len(self.of(caller.name)) >= _MOST_POOLS:
            raise ServiceFault(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_pools",
                f"you have {_MOST_POOLS} pools; remove one first",
            )
        pool = self._named.get((caller.name, name))
        known = set() if pool is None else set(pool.endpoints)
        try:
            pool = pool or Pool(name, checked[0])
            for endpoint in checked:
                pool.add(endpoint)
        except ConfigError as error:
            text = str(error)
            raise ServiceFault(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", text) from error
        try:
            for endpoint in checked:
                paused = endpoint.base_url in pool.paused
                await self._keep(caller.name, name, endpoint, paused=paused)
        except BaseException:
            for endpoint in checked:
                if endpoint.base_url not in known:
                    await self._drop(pool, endpoint.base_url, drain=False)
            raise
        self._named[caller.name, name] = pool
        return pool

    async def change(self, caller: str, name: str, change: EndpointChange) -> Pool:
        """Pause or resume servers of a pool, or note their weights."""
        pool = self.named(caller, name)
        for base_url in self._meant(pool, change.base_url):
            if change.weight_version is not None:
                pool.set_version(base_url, change.weight_version)
            if change.paused is not None:
                pool.pause(base_url, change.paused)
            paused = base_url in pool.paused
            await self._keep(caller, name, pool.endpoints[base_url], paused=paused)
        return pool

    async def remove(
        self, caller: str, name: str, base_url: str | None, *, drain: bool
    ) -> PoolStatus:
        """Take a server out of a pool, or all of them and the pool with them.

        Args:
            caller: Whose pool.
            name: Its name.
            base_url: Which server; None for all.
            drain: Whether the calls on it may finish there, for which this doesn't wait; or else
                they go on elsewhere at once.

        Raises:
            ServiceFault: 409, if jobs play with a pool that is to go as a whole.
        """
        pool = self.named(caller, name)
        if base_url is None and pool.users:
            raise ServiceFault(
                HTTPStatus.CONFLICT,
                "pool_in_use",
                f"jobs play with the pool {name!r}; cancel them first, or remove single servers",
            )
        leaving = []
        for each in self._meant(pool, base_url):
            with storing():
                await self._store.do(Store.forget_replica, caller, name, each)
            leaving.append(asyncio.create_task(self._drop(pool, each, drain=drain)))
            self._leaving.add(leaving[-1])
            leaving[-1].add_done_callback(self._leaving.discard)
        if not drain:
            await asyncio.gather(*leaving)
        if base_url is None:
            del self._named[caller, name]
            await pool.client.aclose()
        return pool.status()

    async def _drop(self, pool: Pool, base_url: str, *, drain: bool) -> None:
        del pool.endpoints[base_url]
        pool.paused.discard(base_url)
        await pool.client.remove(base_url, drain=drain)

    def _meant(self, pool: Pool, base_url: str | None) -> list[str]:
        if base_url is None:
            return list(pool.endpoints)
        base_url = base_url.rstrip("/")
        if base_url not in pool.endpoints:
            known = ", ".join(pool.endpoints) or "none"
            raise ServiceFault(
                HTTPStatus.NOT_FOUND,
                "unknown_endpoint",
                f"the pool {pool.key!r} has no such server; it has {known}",
            )
        return [base_url]

    async def _keep(
        self, caller: str, name: str, endpoint: PolicyEndpoint, *, paused: bool
    ) -> None:
        text = endpoint.model_dump_json(exclude_unset=True)
        with storing():
            await self._store.do(Store.keep_replica, caller, name, endpoint.base_url, text, paused)


_MOST_POOLS = 64
