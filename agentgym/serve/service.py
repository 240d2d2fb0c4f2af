"""The parts of a service, put together, and its life: take up, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import agentgym
from agentgym.remote.schema import ServiceStatus
from agentgym.rollout.metrics import EngineMetrics
from agentgym.serve.access import Caller
from agentgym.serve.accounts import Accounts
from agentgym.serve.allowed import NO_KEY
from agentgym.serve.config import ServiceConfig
from agentgym.serve.engines import Engines
from agentgym.serve.jobs import Jobs
from agentgym.serve.pools import Pools
from agentgym.serve.sessions import Sessions
from agentgym.serve.store import Store

logger = logging.getLogger(__name__)


class Service:
    """Everything behind the routes.

    Args:
        config: The service's.

    Raises:
        StoreError: If its store can't be used.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.store = Store(config.store)
        self.pools = Pools(self.store, config.allowed)
        self.metrics = EngineMetrics(labels=("client", "env"))
        self.accounts = Accounts(self.store)
        self.engines = Engines(config, self.pools, self.metrics, accounts=self.accounts)
        self.jobs = Jobs(config, self.store, self.engines, self.pools, self.accounts)
        self.sessions = Sessions(
            config.sessions,
            allowed=config.allowed,
            roles=config.roles,
            accounts=self.accounts,
        )
        self.ready = False
        """Whether it serves."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve inside the block; what isn't over at its end is in the store."""
        # Endpoints without a key are given this one, and "is the key there?" is asked of them, too.
        os.environ.setdefault(NO_KEY, "none")
        try:
            await self.pools.load()
            async with self.jobs.serving():
                self.ready = True
                yield
        finally:
            self.ready = False
            await self.engines.aclose()
            await self.pools.aclose()
            await self.accounts.write()
            self.store.close()

    async def drain(self) -> None:
        """Take nothing more, and wait for the episodes in flight, as long as the config says."""
        self.ready = False
        self.sessions.begin_no_more()
        try:
            async with asyncio.timeout(self.config.drain_s):
                await self.jobs.drain()
                await self.sessions.settled()
        except TimeoutError:
            logger.warning("episodes are still in flight; they are played again later")

    async def status(self, caller: Caller) -> ServiceStatus:
        """How it is doing, as far as it is the caller's."""
        spent = await self.accounts.spent(caller)
        mine = [job for job in self.jobs.of(caller) if job.running]
        return ServiceStatus(
            version=agentgym.__version__,
            caller=caller.name,
            draining=self.jobs.draining,
            concurrency=self.config.limits.concurrency,
            open_jobs=len(mine),
            in_flight=sum(job.in_flight for job in mine),
            spent_today={"episodes": spent.episodes, "tokens": spent.tokens, "usd": spent.usd},
        )
