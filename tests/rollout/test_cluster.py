"""Rollouts on a real Ray cluster of several nodes on this machine, some of which die."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.client import Completion, Endpoint, Prices
from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError, RolloutStopped
from agentgym.judge import Score
from agentgym.rollout import Cluster, Engine, EpisodeRequest, Limits
from agentgym.rollout.plan import plan_requests
from agentgym.testing.envs import CounterEnv
from agentgym.testing.quirky import QuirkyServer, Reply
from agentgym.trace import Trace
from agentgym.types import Usage

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.e2e

STORE = 80 << 20  # bytes, the least that Ray takes
COST = Usage(prompt_tokens=10, completion_tokens=2)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


class Nodes:
    """A cluster whose nodes come and go; the head plays nothing."""

    def __init__(self, temp_dir: str) -> None:
        from ray._common.utils import get_default_ray_temp_dir
        from ray.cluster_utils import Cluster as LocalCluster

        # It notes its address there, whatever its own folder is, and doesn't make the place.
        Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
        config = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 3,
            "prestart_worker_first_driver": False,  # one process per node and driver
        }
        head = {"num_cpus": 0, "object_store_memory": STORE, "temp_dir": temp_dir}
        head |= {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        self._cluster = LocalCluster(
            initialize_head=True, head_node_args={**head, "_system_config": config}
        )
        self._nodes: list[Any] = []
        self.address = self._cluster.address

    def have(self, count: int) -> None:
        """So many nodes at least."""
        while len(self._nodes) < count:
            self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=STORE))

    def kill_one(self) -> None:
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    temp_dir = tempfile.mkdtemp(prefix="ag", dir="/tmp")  # a socket's path has 107 bytes
    nodes = Nodes(temp_dir)
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.end()
        shutil.rmtree(temp_dir, ignore_errors=True)


class GroupSize:
    """A judge of groups: everybody gets one over how many were compared."""

    async def score_group(self, episodes: Any) -> Any:
        return [Score(total=1 / len(episodes)) for _ in episodes]


def grouped_env() -> CounterEnv:
    env = CounterEnv()
    env.scoring = env.scoring.model_copy(update={"judge": GroupSize()})
    return env


async def ticks() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        async for _ in ticks():
            if condition():
                return


def waits_for(gate: Path) -> ScriptedClient:
    """Adds, then submits once the gate is open."""

    async def policy(messages: Any) -> Completion:
        if len(messages) < 3:
            return Completion(message=call("add", amount=1), usage=COST)
        await until(gate.exists)
        return Completion(message=call("submit"), usage=COST)

    return ScriptedClient(policy)


async def play_all(engine: Engine, requests: Any) -> list[Trace]:
    return [trace async for trace in engine.run(requests)]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def process_of(label: str) -> int:
    """The process in a worker's label."""
    return int(label.split("pid ")[1].rstrip(")"))


async def test_no_episode_is_lost_with_a_node_and_groups_stay_whole(nodes, tmp_path):
    nodes.have(2)
    gate = tmp_path / "gate"
    requests = plan_requests([f"counter/{n}" for n in range(1, 9)], samples=3)
    traces: list[Trace] = []

    async def play() -> None:
        traces.extend([trace async for trace in engine.run(requests)])

    def everybody_waits() -> bool:
        waiting = engine.status()
        return waiting.in_flight == len(requests) and waiting.turns == len(requests)

    cluster = Cluster(address=nodes.address)
    engine = Engine(grouped_env, client=waits_for(gate), backend=cluster)
    async with engine, asyncio.TaskGroup() as tasks:
        tasks.create_task(play())
        await until(everybody_waits)
        await until(lambda: all(where.turn for where in engine._backend().in_flight()))
        played_on = {where.node for where in engine._backend().in_flight()}
        nodes.kill_one()
        await until(lambda: any(where.attempt for where in engine._backend().in_flight()))
        gate.touch()
    assert len(played_on) == 2
    assert Counter((t.task_id, t.sample) for t in traces) == Counter(
        (r.task_id, r.sample) for r in requests
    )
    assert {trace.reward for trace in traces} == {1 / 3}
    again = [trace for trace in traces if trace.earlier]
    assert 0 < len(again) < len(traces)
    assert len(again) % 3 == 0
    for trace in again:
        (earlier,) = trace.earlier
        assert (earlier.failure_class, earlier.failed_stage) == ("infra", "run")
        assert earlier.lost_worker
        assert earlier.error.startswith("lost worker: ")
        assert earlier.usage["policy"] == COST
        assert trace.usage["policy"] == COST + COST + COST
    assert all(t.usage["policy"] == COST + COST for t in traces if not t.earlier)


class DeadlyEnv(CounterEnv):
    """Ends its process when a task is submitted."""

    def submit(self) -> str:
        """Hand in."""
        if self.running.task.task_id == "counter/13":
            os._exit(1)
        return super().submit()


async def test_a_task_that_kills_its_workers_is_masked_and_its_neighbours_are_played(nodes):
    nodes.have(1)
    client = ScriptedClient([call("add", amount=1), call("submit")])
    cluster = Cluster(address=nodes.address, workers=1)
    requests = [EpisodeRequest(task_id=f"counter/{n}", seed=n) for n in range(10, 16)]
    async with Engine(DeadlyEnv, client=client, backend=cluster) as engine:
        traces = {t.task_id: t async for t in engine.run(requests)}
    assert len(traces) == 6
    deadly = traces.pop("counter/13")
    assert (deadly.reward, deadly.failure_class, deadly.scored) == (None, "env", False)
    assert len(deadly.earlier) == 4
    assert "died 4 times" in deadly.error
    assert all(trace.scored for trace in traces.values())


async def test_nodes_that_join_are_used_and_closing_ends_the_processes(nodes, tmp_path):
    nodes.have(1)
    gate = tmp_path / "gate"
    engine = Engine(
        CounterEnv,
        client=waits_for(gate),
        limits=Limits(concurrency=4, init_concurrency=2),
        backend=Cluster(address=nodes.address),
    )
    used: set[str] = set()

    async def play() -> None:
        async for _ in engine.run(EpisodeRequest(task_id="counter/1") for _ in itertools.count()):
            used.update(where.node for where in engine._backend().in_flight() if where.node)

    async with engine, asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(play())
        await until(lambda: engine.status().turns >= 4)
        before = {where.node for where in engine._backend().in_flight()}
        in_run = engine.status().turns
        nodes.have(len(before) + 1)
        gate.touch()
        await until(lambda: used - before)
        playing.cancel()
    assert in_run == 4
    assert before < used
    await until(lambda: not any(is_alive(process_of(label)) for label in used | before))
    assert not ray.is_initialized()


DRIVER = """
import asyncio, os, pathlib, sys
from agentgym.clients import ScriptedClient
from agentgym.rollout import Cluster, Engine, EpisodeRequest
from agentgym.testing.envs import CounterEnv

address, told = sys.argv[1:]

async def policy(messages):
    pathlib.Path(told).write_text(str(os.getpid()))
    await asyncio.get_running_loop().create_future()

cluster = Cluster(address=address, workers=1)
engine = Engine(CounterEnv, client=ScriptedClient(policy), backend=cluster)
try:
    engine.run_blocking([EpisodeRequest(seed=1)])
except KeyboardInterrupt:
    print("stopped")
"""


async def test_neither_workers_nor_a_cluster_of_its_own_outlive_a_driver(nodes, tmp_path):
    nodes.have(1)
    temp_dir = tempfile.mkdtemp(prefix="ag", dir="/tmp")

    async def driver_ended_by(how: signal.Signals, address: str) -> str:
        told = tmp_path / how.name
        driver = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", DRIVER, address, str(told)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "RAY_TMPDIR": temp_dir},
        )
        await until(lambda: told.exists() and told.read_text())
        driver.send_signal(how)
        out, _ = await driver.communicate()
        await until(lambda: not is_alive(int(told.read_text())))
        return out.decode()

    try:
        ends = {signal.SIGINT: "local", signal.SIGKILL: nodes.address}
        out = await asyncio.gather(*(driver_ended_by(*end) for end in ends.items()))
        assert out == ["stopped\n", ""]
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


async def test_a_budget_is_one_for_the_whole_cluster(nodes):
    nodes.have(2)
    usage = {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": call("add", amount=1)}
    reply = Reply(body={"id": "r", "model": "m", "choices": [choice], "usage": usage})
    async with QuirkyServer(reply, strict=False) as server:
        policy = Endpoint(
            base_url=server.url,
            model="m",
            prices=Prices(input=100.0, output=0.0),  # a cent a call
            budget_usd=0.2,
            api_key_env="HOME",
        )
        engine = Engine(
            CounterEnv,
            client=policy,
            limits=Limits(concurrency=8),
            backend=Cluster(address=nodes.address),
        )
        async with engine:
            with pytest.raises(RolloutStopped, match=r"budget_usd=\$0\.2"):
                await play_all(engine, [EpisodeRequest(seed=k) for k in range(100)])
        assert 10 <= len(server.requests) <= 20


class UnfinishedEnv(CounterEnv):
    """One that no worker can make."""

    def __init__(self) -> None:
        raise ConfigError("targets: expected numbers,\ngot letters")


async def refusal_of(engine: Engine) -> str:
    with pytest.raises(ConfigError) as caught:
        await play_all(engine, [EpisodeRequest(seed=1)])
    await engine.aclose()
    return str(caught.value)


async def test_what_no_worker_can_play_is_told_at_once(nodes):
    nodes.have(1)
    one = Cluster(address=nodes.address, workers=1)
    too_big = Cluster(address=nodes.address, cpus_per_worker=64, start_timeout_s=0.1)
    unfinished = Engine(UnfinishedEnv, client=ScriptedClient([]), backend=one)
    roomless = Engine(CounterEnv, client=ScriptedClient([]), backend=too_big)
    no_env, no_room = await asyncio.gather(refusal_of(unfinished), refusal_of(roomless))
    assert re.search("worker on .*: targets: expected numbers", no_env)
    assert re.search("each needs 64 CPUs .* the cluster has .*CPU 1", no_room)
