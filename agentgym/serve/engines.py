"""The engines behind the jobs: one for every kind of work, shared, and closed when idle.

Jobs of one client that play the same env with the same policy and settings play on one engine, so
a training run that sends a job per step keeps its environments and connections. All engines share
one set of slots. Nothing is shared between clients but those slots.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.remote.schema import JobRequest
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.cluster_desk import is_rationed
from agentgym.rollout.engine import Engine, PolicyLike
from agentgym.rollout.hosted import hosted_kwargs
from agentgym.rollout.limits import Limits
from agentgym.rollout.metrics import EngineMetrics
from agentgym.rollout.source import EnvSource
from agentgym.serve.access import Caller
from agentgym.serve.accounts import Accounts, cost_of
from agentgym.serve.allowed import NO_KEY
from agentgym.serve.config import ServiceConfig
from agentgym.serve.fair import SharedStages
from agentgym.serve.pools import Pool, Pools
from agentgym.serve.store_records import Spending

_KNOWN_TASKS = 64


@dataclass(eq=False)
class _Shared:
    """An engine and who uses it."""

    caller: str
    engine: Engine
    pool: Pool
    charged: Spending = field(default_factory=Spending)
    """For its cancelled episodes."""
    jobs: int = 0
    idle_since: float = 0.0


class Engines:
    """All engines of a service.

    Args:
        config: The service's.
        pools: The policies' servers.
        metrics: Told which engines there are.
        accounts: Told what cancelled episodes had cost; None counts nothing.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        config: ServiceConfig,
        pools: Pools,
        metrics: EngineMetrics,
        *,
        accounts: Accounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._pools = pools
        self._metrics = metrics
        self._accounts = accounts
        self._clock = clock
        self.stages = SharedStages(config.limits)
        self._engines: dict[str, _Shared] = {}
        self._task_ids: dict[str, tuple[str, ...]] = {}

    def env_kwargs(self, spec: JobRequest) -> dict[str, Any]:
        """A job's env parameters, with the service's own simulator and judge where it has none.

        Raises:
            ConfigError: If there is no such env.
        """
        return hosted_kwargs(spec.env, spec.env_kwargs, self._config.roles).env_kwargs

    async def task_ids(self, spec: JobRequest) -> tuple[str, ...]:
        """The tasks of a job's env, in its own order; empty if it has no list of them.

        Making one env also shows whether it can be made as the job says, before it is accepted.

        Raises:
            AgentGymError: If it can't.
        """
        key = json.dumps([spec.env, spec.env_kwargs], sort_keys=True)
        if key not in self._task_ids:
            while len(self._task_ids) >= _KNOWN_TASKS:
                del self._task_ids[next(iter(self._task_ids))]
            self._task_ids[key] = await asyncio.to_thread(self._read_tasks, spec)
        return self._task_ids[key]

    def _read_tasks(self, spec: JobRequest) -> tuple[str, ...]:
        env = EnvSource(spec.env, self.env_kwargs(spec)).make()
        try:
            core = env.unwrapped
            if not isinstance(core, AgentEnv):
                raise ConfigError(f"{spec.env} is no agentgym environment")
            return tuple(core.task_ids())
        finally:
            env.close()

    @asynccontextmanager
    async def engine(self, caller: Caller, spec: JobRequest) -> AsyncIterator[Engine]:
        """The engine for a job, which is used inside the block.

        Raises:
            AgentGymError: If it can't be made as the job says.
            ServiceFault: If the policy's pool is gone.
        """
        pool = self._pools.of_job(caller.name, spec.policy)
        key = _key(caller.name, spec, pool)
        shared = self._engines.get(key)
        if shared is None or shared.pool is not pool:
            shared = _Shared(caller.name, self._new(caller, spec, pool), pool)
            self._engines[key] = shared
            pool.users += 1
        shared.jobs += 1
        try:
            yield shared.engine
        finally:
            shared.jobs -= 1
            shared.idle_since = self._clock()
            self._charge_dropped(caller, shared)

    def _charge_dropped(self, caller: Caller, shared: _Shared) -> None:
        """Have the client owe what its cancelled episodes had cost, which stands in no trace."""
        if self._accounts is None:
            return
        dropped = cost_of(shared.engine.status().dropped_usage)
        self._accounts.owe(caller, dropped - shared.charged)
        shared.charged = dropped

    def _new(self, caller: Caller, spec: JobRequest, pool: Pool) -> Engine:
        quota = caller.quota.concurrent_episodes
        on_ray = self._config.backend == "ray"
        slots = self.stages.for_job(caller.name, quota=quota, limits=spec.limits)
        engine = Engine(
            spec.env,
            client=_sent_policy(pool) if on_ray else pool.client,
            env_kwargs=self.env_kwargs(spec),
            sampling=spec.sampling,
            limits=self._bounded(spec.limits, quota) if on_ray else spec.limits,
            policy_name=spec.policy.name or pool.model,
            metadata=spec.metadata,
            backend=_with_no_key(self._config.cluster) if on_ray else "local",
            stages=None if on_ray else slots,
            retry=spec.retry,
        )
        self._metrics.add(engine, client=caller.name, env=spec.env)
        return engine

    def _bounded(self, limits: Limits, quota: int | None) -> Limits:
        """A job's limits on a cluster, where slots aren't shared: none above the service's."""
        most = self._config.limits
        names = ("concurrency", "init_concurrency", "eval_concurrency", "backlog")
        bounded = {name: min(getattr(limits, name), getattr(most, name)) for name in names}
        if quota is not None:
            bounded["concurrency"] = min(bounded["concurrency"], quota)
        return limits.model_copy(update=bounded)

    async def close_idle(self, *, after_s: float) -> None:
        """Close the engines that no job has used for a while, and the servers only they used."""
        due = self._clock() - after_s
        idle = [
            (key, shared)
            for key, shared in self._engines.items()
            if not shared.jobs and shared.idle_since <= due
        ]
        for key, shared in idle:
            del self._engines[key]
            shared.pool.users -= 1
        for _, shared in idle:
            self._metrics.remove(shared.engine)
            await shared.engine.aclose()
            await self._pools.let_go(shared.caller, shared.pool)

    async def aclose(self) -> None:
        """Close all of them."""
        engines = list(self._engines.values())
        self._engines.clear()
        await asyncio.gather(*(shared.engine.aclose() for shared in engines))


def _with_no_key(cluster: Cluster) -> Cluster:
    """The cluster, with the key of endpoints that have none, which is no secret, in its workers."""
    variables = {NO_KEY: "none", **cluster.runtime_env.get("env_vars", {})}
    runtime_env = {**cluster.runtime_env, "env_vars": variables}
    return cluster.model_copy(update={"runtime_env": runtime_env})


def _sent_policy(pool: Pool) -> PolicyLike:
    """A pool as a cluster takes it: its servers come and go there, too, unless one is rationed."""
    servers = [server.endpoint() for server in pool.endpoints.values()]
    return servers if any(map(is_rationed, servers)) else pool.client


def _key(caller: str, spec: JobRequest, pool: Pool) -> str:
    """What jobs on one engine have in common."""
    fields = spec.model_dump(
        mode="json",
        include={"env", "env_kwargs", "sampling", "limits", "retry", "metadata"},
    )
    text = json.dumps([caller, pool.key, spec.policy.name, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
