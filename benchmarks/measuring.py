"""What the engine's benchmarks share: an engine on a simulated fleet, and what it costs.

The fleet runs in a process of its own, so CPU time of this process is the engine's, with the
environment's steps, traces on disk and accounting in it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from agentgym.client import Endpoint, ModelClient, SamplingParams
from agentgym.rollout import Engine, EpisodeRequest, Limits, collecting_seldom
from agentgym.testing.fleet import FleetProcess, Workload, WorkloadEnv
from agentgym.threads import idle
from agentgym.traces import TraceWriter

RESULTS = Path(__file__).parent / "results"
LAG_EVERY_S = 0.02
T = TypeVar("T")


class LoopLag:
    """How late a loop comes to what is due, seconds."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.own_s: list[float] = []
        """The same, as far as this thread was computing meanwhile, rather than kept from it."""

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure inside the block."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while True:
            due, computed = time.perf_counter() + LAG_EVERY_S, time.thread_time()
            await asyncio.sleep(LAG_EVERY_S)
            late = max(0.0, time.perf_counter() - due)
            self.late_s.append(late)
            self.own_s.append(min(late, time.thread_time() - computed))


def percentile_ms(seconds: Sequence[float], share: float) -> float:
    """What so many of the measurements don't exceed, milliseconds."""
    rising = sorted(seconds)
    at = min(len(rising) - 1, int(share * len(rising)))
    return round(rising[at] * 1e3, 2) if rising else 0.0


def rss_kb() -> float:
    """Resident memory of this process, KB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


class _MallInfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns; bytes in use are all that is wanted of it."""

    _fields_ = tuple((f"f{k}", ctypes.c_size_t) for k in range(10))
    in_use = property(lambda self: self.f7 + self.f4)  # in the heap, and mapped by themselves


def malloc_kb() -> float:
    """What is allocated outside of Python's small objects, KB; what is free isn't in it."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # another C library, or an old one
        return 0.0
    mallinfo.restype = _MallInfo
    return float(mallinfo().in_use / 1024)


def resources() -> dict[str, int]:
    """What this process and its loop hold at the moment.

    Memory that is free and that glibc hasn't given back is nobody's, so it is given back first.
    Threads that wait for a call are kept on purpose, a bounded number of them, and aren't counted.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # the one that lists the folder
            continue
    sockets = sum(link.startswith("socket:") for link in links)
    return {
        "rss_kb": round(rss_kb()),
        "malloc_kb": round(malloc_kb()),
        "blocks": sys.getallocatedblocks(),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count() - idle(),
        "sockets": sockets,
        "files": len(links) - sockets,
    }


def setting(**facts: Any) -> dict[str, Any]:
    """What a result was measured with."""
    return {**facts, "python": platform.python_version(), "cores": os.cpu_count()}


def endpoints(fleet: FleetProcess, *, slots: int | None = None) -> list[Endpoint]:
    """The fleet's servers, as the engine is told of them: as many requests at once as slots."""
    return [
        Endpoint(
            base_url=url,
            model=fleet.model,
            max_concurrency=slots or fleet.replica[0].slots,
            timeout_s=900.0,
            deadline_s=900.0,
        )
        for url in fleet.urls
    ]


def requests_of(episodes: Sequence[int]) -> list[EpisodeRequest]:
    """One request per episode of the workload."""
    return [EpisodeRequest(task_id=f"workload/{k}", seed=k) for k in episodes]


def engine_on(
    fleet: FleetProcess,
    *,
    concurrency: int,
    client: ModelClient | None = None,
    eval_concurrency: int | None = None,
    writer: TraceWriter | None = None,
) -> Engine:
    """An engine that plays the fleet's workload."""
    workload, speed = fleet.workload, fleet.speed
    limits = Limits(
        concurrency=concurrency,
        eval_concurrency=eval_concurrency or concurrency,
    )
    policy = client or endpoints(fleet)
    return Engine(
        lambda: WorkloadEnv(workload=workload, speed=speed, tasks=10**9),
        client=policy if client or len(fleet.urls) > 1 else policy[0],
        sampling=SamplingParams(max_tokens=4096),
        limits=limits,
        writer=writer,
        policy_name=fleet.model,
        stuck_after_s=None,
    )


async def play(
    fleet: FleetProcess,
    episodes: Sequence[int],
    *,
    concurrency: int,
    client: ModelClient | None = None,
    eval_concurrency: int | None = None,
) -> dict[str, Any]:
    """Play episodes, traces to a file, and say what it took.

    Returns:
        `wall_s` in virtual seconds, CPU per turn, loop lag, failures by class, `first_s` and
        `last_s` (real) until the first and the last trace.
    """
    lag, failures, turns = LoopLag(), Counter(), 0
    first_s = last_s = 0.0
    fleet.forget_statistics()
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder) / "traces.jsonl")
        engine = engine_on(
            fleet,
            concurrency=concurrency,
            client=client,
            eval_concurrency=eval_concurrency,
            writer=writer,
        )
        wall, cpu = time.perf_counter(), time.process_time()
        async with lag.measured(), engine:
            async for trace in engine.run(requests_of(episodes)):
                last_s = time.perf_counter() - wall
                first_s = first_s or last_s
                turns += len(trace.turns)
                if trace.failure_class is not None:
                    failures[f"{trace.failure_class}: {(trace.error or '')[-200:]}"] += 1
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        writer.close()
    return {
        "wall_s": round(wall * fleet.speed, 3),
        "turns": turns,
        "turns_per_s": round(turns / wall, 1),
        "cpu_ms_per_turn": round(cpu / turns * 1e3, 3) if turns else None,
        "cpu_share": round(cpu / wall, 3),
        "lag_p50_ms": percentile_ms(lag.late_s, 0.5),
        "lag_p99_ms": percentile_ms(lag.late_s, 0.99),
        "lag_max_ms": percentile_ms(lag.late_s, 1.0),
        "own_lag_p99_ms": percentile_ms(lag.own_s, 0.99),
        "first_s": round(first_s, 3),
        "last_s": round(last_s, 3),
        "failures": dict(failures),
    }


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, the garbage collector set as agentgym's commands set it."""
    with collecting_seldom():
        return asyncio.run(work)


async def until(condition: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
    """Look every now and then, until it is so.

    Raises:
        TimeoutError: If it doesn't come to be.
    """
    never = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.wait((never,), timeout=0.02)


def tools_of(workload: Workload) -> tuple[dict[str, Any], ...]:
    """The tools as they go over the wire, for the model's prompts."""
    return tuple(WorkloadEnv(workload=workload).toolbox.specs)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write(out: Path, name: str, data: dict[str, Any], text: str) -> None:
    """Keep figures as JSON and as a page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
