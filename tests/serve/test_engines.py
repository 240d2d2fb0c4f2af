"""What a service's engines are made of, where the episodes are played elsewhere."""

from __future__ import annotations

import pytest
from serving import job

from agentgym.remote.schema import JobRequest
from agentgym.rollout import Limits
from agentgym.rollout.metrics import EngineMetrics
from agentgym.serve.access import Caller, Quota
from agentgym.serve.allowed import NO_KEY, Allowed
from agentgym.serve.config import ServiceConfig, read_config
from agentgym.serve.engines import Engines
from agentgym.serve.pools import Pools
from agentgym.serve.store import Store

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
async def pools():
    store = Store(None)
    pools = Pools(store, Allowed())
    yield pools
    await pools.aclose()
    store.close()


def engines_on_ray(pools: Pools, **limits: int) -> Engines:
    config = ServiceConfig(backend="ray", limits=Limits(**limits))
    return Engines(config, pools, EngineMetrics(labels=("client", "env")))


async def test_on_a_cluster_the_servers_of_a_pool_may_come_and_go(pools):
    spec = JobRequest.model_validate(job(URL))
    caller = Caller("me", Quota())
    async with engines_on_ray(pools).engine(caller, spec) as engine:
        assert engine._setting.client is pools.of_job("me", spec.policy).client


async def test_on_a_cluster_a_job_has_no_more_slots_than_service_and_quota_give(pools):
    wanted = {"concurrency": 100, "init_concurrency": 2}
    spec = JobRequest.model_validate(job(URL, limits=wanted))
    engines = engines_on_ray(pools, concurrency=8, init_concurrency=4)
    async with engines.engine(Caller("me", Quota()), spec) as engine:
        given = engine._setting.limits
    assert (given.concurrency, given.init_concurrency) == (8, 2)
    async with engines.engine(Caller("you", Quota(concurrent_episodes=3)), spec) as engine:
        assert engine._setting.limits.concurrency == 3


async def test_the_file_says_which_cluster_and_its_workers_can_ask_models_without_a_key(
    pools, tmp_path
):
    file = tmp_path / "service.toml"
    file.write_text(
        """
        backend = "ray"

        [cluster]
        workers = 2
        runtime_env = {working_dir = ".", env_vars = {MINE = "1"}}
        """
    )
    engines = Engines(read_config(file, {}), pools, EngineMetrics(labels=("client", "env")))
    async with engines.engine(Caller("me"), JobRequest.model_validate(job(URL))) as engine:
        cluster = engine._backend_choice
    assert cluster.workers == 2
    assert cluster.runtime_env == {"working_dir": ".", "env_vars": {NO_KEY: "none", "MINE": "1"}}
