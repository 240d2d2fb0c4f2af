"""The engine on a simulated policy fleet: what it asks of the servers, and what it keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentgym.client import Endpoint, SamplingParams
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.testing.fleet import ReplicaSpec, SimulatedFleet, Workload, WorkloadEnv

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEED = 400.0


def engine_on(fleet, *, concurrency):
    endpoints = [
        Endpoint(base_url=url, model=fleet.model, max_concurrency=fleet.specs[0].slots)
        for url in fleet.urls
    ]
    return Engine(
        lambda: WorkloadEnv(workload=fleet.workload, speed=SPEED),
        client=endpoints,
        sampling=SamplingParams(max_tokens=4096),
        limits=Limits(concurrency=concurrency),
    )


def requests(count):
    return [EpisodeRequest(task_id=f"workload/{k}", seed=k) for k in range(count)]


async def test_every_turn_is_asked_once_and_prefixes_are_found_again():
    workload = Workload(seed=5)
    turns = {f"workload/{k}": workload.turns(k) for k in range(48)}
    spec = ReplicaSpec(slots=4)
    async with (
        SimulatedFleet(4, replica=spec, workload=workload, speed=SPEED) as fleet,
        engine_on(fleet, concurrency=48) as engine,
    ):
        traces = [trace async for trace in engine.run(requests(48))]
        statistics = fleet.statistics()
    assert {trace.task_id: len(trace.turns) for trace in traces} == turns
    assert all(trace.scored and trace.verdict.correct for trace in traces)
    assert statistics.total("requests") == statistics.total("completed") == sum(turns.values())
    assert statistics.total("aborted") == statistics.total("running") == 0
    assert all(replica.requests for replica in statistics.replicas)
    assert statistics.hit_share > 0.9
    told = sum(trace.usage["policy"].cached_tokens for trace in traces)
    assert told == statistics.total("cached_tokens")


async def test_a_run_that_is_given_up_leaves_the_servers_nothing_to_do():
    endless = {"role": "assistant", "content": "x" * 4_000_000}
    async with SimulatedFleet(2, policy=lambda body: endless) as fleet:
        async with engine_on(fleet, concurrency=8) as engine:
            run = engine.run(requests(8))
            first = asyncio.create_task(anext(run))
            while fleet.statistics().total("running") < 8:
                await asyncio.wait((first,), timeout=0.01)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await run.aclose()
        for _ in range(1000):  # the servers see closed connections in the loop's next rounds
            await asyncio.sleep(0)
        assert fleet.statistics().total("aborted") == 8
        assert fleet.statistics().total("running") == 0


@pytest.mark.e2e
def test_thousands_of_short_episodes_leave_nothing_behind(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    data = soak.run(episodes=2000, concurrency=128, samples=4, speed=100.0)
    assert data["samples"][-1]["episodes"] == 2500
    assert soak.leaks(data, concurrency=128) == []


def test_the_soak_would_notice_what_is_kept(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    held = {
        "rss_kb": 70_000,
        "malloc_kb": 15_000,
        "blocks": 300_000,
        "tasks": 1,
        "threads": 1,
        "sockets": 10,
        "files": 9,
    }
    clean = [{"episodes": 500 * k, **held} for k in range(1, 6)]

    def found(**last):
        samples = [*clean[:-1], {**clean[-1], **last}]
        data = {"start": held, "samples": samples, "failures": 0}
        return soak.leaks(data, concurrency=128)

    assert found() == []
    for name, more in {
        "rss_kb": 80_000,
        "malloc_kb": 16_000,
        "blocks": 310_000,
        "tasks": 2,
        "threads": 3,
        "sockets": 400,
        "files": 10,
    }.items():
        assert len(found(**{name: more})) == 1, name
