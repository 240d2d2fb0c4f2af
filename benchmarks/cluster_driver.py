"""What an episode costs the driver of a Ray cluster, beside the same episodes in one process.

The driver hands out requests, reads traces back and writes them; it must not become what limits a
cluster. Both sides play the same scripted episodes of five turns, with and without token ids.

    python benchmarks/cluster_driver.py --out benchmarks/results/cluster_driver.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.rollout import Cluster, Engine, EpisodeRequest, Limits
from agentgym.testing.envs import CounterEnv
from agentgym.traces import TraceWriter
from agentgym.types import Usage

TURNS = 5
PROMPT, OUTPUT = 3600, 400  # tokens per turn, as in the reference workload's mean
STORE = 400 << 20


def policy(*, ids: bool) -> ScriptedClient:
    """Reads four times and submits, with 400 tokens of text each time."""
    tokens: dict[str, Any] = {}
    if ids:
        tokens = {
            "prompt_ids": tuple(range(100_000, 100_000 + PROMPT)),
            "completion_ids": tuple(range(100_000, 100_000 + OUTPUT)),
            "logprobs": tuple(-0.123456789 * (1 + k % 7) for k in range(OUTPUT)),
        }

    def reply(messages: Any) -> Completion:
        name = "read" if len(messages) < 2 * TURNS else "submit"
        function = {"name": name, "arguments": "{}"}
        message = {
            "role": "assistant",
            "content": "x" * 4 * OUTPUT,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        usage = Usage(prompt_tokens=PROMPT, completion_tokens=OUTPUT)
        return Completion(message=message, usage=usage, **tokens)

    return ScriptedClient(reply)


async def measured(backend: Any, episodes: int, *, ids: bool) -> dict[str, float]:
    """CPU of this process and wall time per episode, traces on disk included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.jsonl"
        async with Engine(
            CounterEnv,
            client=policy(ids=ids),
            limits=Limits(concurrency=64),
            backend=backend,
            writer=TraceWriter(path),
        ) as engine:
            async for _ in engine.run([EpisodeRequest(seed=k) for k in range(16)]):
                pass  # workers and environments are there
            before = path.stat().st_size
            cpu, wall = time.process_time(), time.perf_counter()
            async for trace in engine.run([EpisodeRequest(seed=k) for k in range(episodes)]):
                assert len(trace.turns) == TURNS
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        size = path.stat().st_size - before
    return {
        "cpu_ms_per_episode": round(cpu / episodes * 1e3, 3),
        "wall_ms_per_episode": round(wall / episodes * 1e3, 3),
        "trace_kb": round(size / episodes / 1e3, 1),
    }


@contextmanager
def two_nodes() -> Iterator[str]:
    """A cluster of a head that plays nothing and two nodes of one core; yields its address."""
    from ray.cluster_utils import Cluster as LocalCluster

    temp_dir = tempfile.mkdtemp(prefix="ag", dir="/tmp")
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": temp_dir}
    cluster = LocalCluster(
        initialize_head=True, head_node_args={**head, "object_store_memory": STORE}
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
        yield cluster.address
    finally:
        cluster.shutdown()
        shutil.rmtree(temp_dir, ignore_errors=True)


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with two_nodes() as address:
        for name, ids in (("text", False), ("token ids", True)):
            local = asyncio.run(measured("local", args.episodes, ids=ids))
            spread = asyncio.run(measured(Cluster(address=address), args.episodes, ids=ids))
            ratio = spread["cpu_ms_per_episode"] / local["cpu_ms_per_episode"]
            figures[name] = {
                "in one process": local,
                "driver of a cluster": spread,
                "driver cpu over one process": round(ratio, 2),
            }
    setting = {
        "episodes": args.episodes,
        "turns": TURNS,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    text = json.dumps({"setting": setting, "episodes with": figures}, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
