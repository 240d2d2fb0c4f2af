"""Whether an engine that plays tens of thousands of short episodes keeps anything of them.

    python benchmarks/soak.py

Memory, tasks, threads, sockets and files of this process are counted in between and at the end,
after a warm-up that opens what is opened once. Traces go to a file. The fleet is a process of its
own. Takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import RESULTS, engine_on, in_loop, requests_of, resources, setting, table, write

from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.fleet import FleetProcess, ReplicaSpec, Workload
from agentgym.traces import TraceWriter

SHORT = Workload(
    turns_median=1.5,
    turns_spread=0.4,
    max_turns=3,
    completion_median=30,
    tool_median_s=0.05,
    system_tokens=64,
    observation_tokens=32,
)
REPLICAS = 2
SLACK = {"rss_kb": 4096, "malloc_kb": 512, "blocks": 5000}
"""How much the second half of a soak may add, however long it is."""


async def soak(
    fleet: FleetProcess, folder: Path, *, episodes: int, concurrency: int, samples: int
) -> dict[str, Any]:
    """Play, and count in between.

    Args:
        fleet: The servers.
        folder: Where the traces go.
        episodes: How many, after as many for warming up as go between two samples.
        concurrency: At once.
        samples: How often to count; the first is after the warm-up.
    """
    every = episodes // samples
    seen: list[dict[str, Any]] = []
    failures = finished = 0
    start = resources()
    with TraceWriter(folder / "traces.jsonl") as writer:
        async with engine_on(fleet, concurrency=concurrency, writer=writer) as engine:
            # Runs of one engine, so that each sample is taken while nothing is in flight.
            for sample in range(samples + 1):
                numbers = range(sample * every, (sample + 1) * every)
                began = time.perf_counter()
                async for trace in engine.run(requests_of(numbers)):
                    finished += 1
                    failures += trace.failure_class is not None
                rate = every / (time.perf_counter() - began)
                seen.append({"episodes": finished, **resources(), "per_s": round(rate, 1)})
    return {"start": start, "samples": seen, "end": resources(), "failures": failures}


def leaks(data: dict[str, Any], *, concurrency: int) -> list[str]:
    """What an engine has kept that it shouldn't, in words.

    Memory is compared over the second half, since the allocator needs a while to have enough. What
    is in use may differ by what happens to be cached, but by nothing for each episode; what the
    process occupies grows by holes that nothing fits in, too. Sockets may become as many as there
    were ever requests in flight.

    Args:
        data: What `soak` found.
        concurrency: Episodes at once.
    """
    found = [f"{data['failures']} episodes failed"] if data["failures"] else []
    samples, start = data["samples"], data["start"]
    first, middle, last = samples[0], samples[len(samples) // 2], samples[-1]
    for name, slack in SLACK.items():
        if last[name] > middle[name] + slack:
            found.append(f"{name}: {last[name]} at last, {middle[name]} in the middle")
    found += [
        f"{name}: {last[name]} at last, {first[name]} at first"
        for name in ("tasks", "threads", "files")
        if last[name] > first[name]
    ]
    if last["sockets"] > start["sockets"] + concurrency + REPLICAS:
        found.append(f"sockets: {last['sockets']} with {concurrency} requests at once")
    return found


def run(*, episodes: int, concurrency: int, samples: int, speed: float = 20.0) -> dict[str, Any]:
    """Soak an engine on a fleet of its own."""
    make_room_for_sockets(2 * concurrency)
    spec = ReplicaSpec(slots=concurrency // REPLICAS, cache_tokens=500_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        FleetProcess(REPLICAS, replica=spec, workload=SHORT, speed=speed) as fleet,
    ):
        sizes = {"episodes": episodes, "concurrency": concurrency, "samples": samples}
        return in_loop(soak(fleet, Path(folder), **sizes))


def page(data: dict[str, Any]) -> str:
    """The figures for people."""
    columns = (
        "episodes",
        "memory, MB",
        "of it by malloc, MB",
        "Python's blocks",
        "tasks",
        "threads",
        "sockets",
        "files",
        "episodes per s",
    )
    names = ("blocks", "tasks", "threads", "sockets", "files", "per_s")
    rows = [
        (
            sample["episodes"],
            f"{sample['rss_kb'] / 1024:.1f}",
            f"{sample['malloc_kb'] / 1024:.1f}",
            *(sample[name] for name in names),
        )
        for sample in data["samples"]
    ]
    facts = data["setting"]
    found = "; ".join(data["leaks"]) or "nothing is kept"
    return f"""# Many short episodes

{facts["episodes"]} episodes after a warm-up, {facts["concurrency"]} at once; counted while
nothing is in flight. Result: {found}. Made by `benchmarks/soak.py`.

{table(columns, rows)}

Before the engine was made there were {data["start"]["sockets"]} sockets and
{data["start"]["files"]} files, after it was closed {data["end"]["sockets"]} and
{data["end"]["files"]}.
"""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=50_000, help="default: 50000")
    parser.add_argument("--concurrency", type=int, default=256, help="default: 256")
    parser.add_argument("--samples", type=int, default=10, help="default: 10")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/results")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in ("episodes", "concurrency", "samples")}
    data = run(**sizes)
    data = {"setting": setting(**sizes), "leaks": leaks(data, concurrency=args.concurrency), **data}
    text = page(data)
    write(args.out, "soak", data, text)
    print(text)
    if data["leaks"]:
        raise SystemExit("; ".join(data["leaks"]))


if __name__ == "__main__":
    main()
