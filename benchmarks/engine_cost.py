"""What a turn costs the engine itself, and what an episode that waits holds.

    python benchmarks/engine_cost.py

Everything is counted that the process does for a rollout: request, reply, environment step, trace
on disk, accounting. Four parts, each on a simulated fleet in a process of its own:

- `fast`: the fleet answers faster than any client could ask. CPU per turn, side by side with a
  hand-written aiohttp loop that does nothing but send, decode and wait for the tool.
- `sustained`: as many episodes as one core is to carry, waiting as they would for real models.
- `waiting`: all servers stop in the middle; memory per episode that waits for its next answer.
- `queued`: far more one-turn episodes at once than the fleet has slots.

Takes about 80 seconds on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
from measuring import (
    RESULTS,
    engine_on,
    in_loop,
    play,
    requests_of,
    rss_kb,
    setting,
    table,
    tools_of,
    until,
    write,
)

from agentgym.clients.transport import make_room_for_sockets
from agentgym.rollout import Engine
from agentgym.testing.fleet import FleetProcess, ReplicaSpec, Workload
from agentgym.testing.fleet.model import lower_bound

REPLICAS = 16


async def bare_loop(fleet: FleetProcess, episodes: range) -> dict[str, Any]:
    """The same episodes by a loop without anything around it."""
    workload, tools, turns = fleet.workload, tools_of(fleet.workload), 0

    async def episode(http: aiohttp.ClientSession, number: int) -> None:
        nonlocal turns
        url = f"{fleet.urls[number % fleet.n]}/chat/completions"
        messages = list(workload.opening(number))
        for turn in range(workload.turns(number)):
            body = {"model": fleet.model, "messages": messages, "tools": tools, "max_tokens": 4096}
            async with http.post(url, data=json.dumps(body).encode()) as response:
                answer = json.loads(await response.read())["choices"][0]["message"]
            turns += 1
            await asyncio.sleep(workload.turn(number, turn).tool_s / fleet.speed)
            result = {"role": "tool", "content": workload.observation(number, turn)}
            calls = answer.get("tool_calls")
            messages += [answer, {**result, "tool_call_id": calls[0]["id"]} if calls else {}]

    wall, cpu = time.perf_counter(), time.process_time()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(episode(http, number) for number in episodes))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_s": round(wall * fleet.speed, 3), "cpu_ms_per_turn": round(cpu / turns * 1e3, 3)}


def fast(episodes: int, concurrency: int, speed: float) -> dict[str, Any]:
    """CPU per turn where the fleet is no obstacle."""
    spec, workload = ReplicaSpec(slots=max(1, concurrency // REPLICAS)), Workload()
    with FleetProcess(REPLICAS, replica=spec, workload=workload, speed=speed) as fleet:
        in_loop(play(fleet, range(32), concurrency=32))  # imports, first connections
        engine = in_loop(play(fleet, range(episodes), concurrency=concurrency))
        bare = in_loop(bare_loop(fleet, range(episodes)))
    ratio = engine["cpu_ms_per_turn"] / bare["cpu_ms_per_turn"]
    bound = lower_bound(
        workload, [spec] * REPLICAS, episodes=range(episodes), tools=tools_of(workload)
    )
    return {
        "episodes": episodes,
        "concurrency": concurrency,
        "speed": speed,
        "lower_bound_s": round(bound.wall_s, 3),
        "engine": engine,
        "bare aiohttp loop": bare,
        "cpu_ratio": round(ratio, 2),
    }


def sustained(concurrency: int, speed: float) -> dict[str, Any]:
    """As many episodes at once as one core is to carry, twice over."""
    spec = ReplicaSpec(slots=max(1, concurrency // REPLICAS))
    with FleetProcess(REPLICAS, replica=spec, speed=speed) as fleet:
        played = in_loop(play(fleet, range(2 * concurrency), concurrency=concurrency))
    return {"episodes": 2 * concurrency, "concurrency": concurrency, "speed": speed, **played}


def waiting(count: int) -> dict[str, Any]:
    """Memory per episode that waits for an answer in the middle."""
    workload = Workload(turns_median=6, turns_spread=0)
    spec = ReplicaSpec(slots=count)
    with FleetProcess(REPLICAS, replica=spec, workload=workload, speed=20) as fleet:
        in_loop(play(fleet, range(32), concurrency=32))

        async def measure() -> tuple[float, int]:
            fleet.forget_statistics()
            gc.collect()
            before = rss_kb()
            async with engine_on(fleet, concurrency=count) as engine:
                run = engine.run(requests_of(range(count)))
                first = asyncio.create_task(anext(run))
                await until(lambda: fleet.statistics().total("completed") >= 3 * count)
                for index in range(fleet.n):
                    fleet.pause(index)
                await until(lambda: _all_wait(engine))
                left = engine.status().in_flight
                gc.collect()
                held = rss_kb()
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                await run.aclose()
            return held - before, left

        held_kb, left = in_loop(measure())
    return {
        "episodes": left,
        "turns_behind_them": 3,
        "kb_per_episode": round(held_kb / left, 1),
    }


def _all_wait(engine: Engine) -> bool:
    """Whether every episode in flight waits for the policy."""
    status = engine.status()
    return status.in_flight == sum(w.episodes for w in status.waiting if w.waiting == "policy")


def queued(count: int, slots: int, speed: float) -> dict[str, Any]:
    """One-turn episodes, all asked for at once."""
    workload = Workload(turns_median=1, turns_spread=0)
    spec = ReplicaSpec(slots=slots // REPLICAS)
    with FleetProcess(REPLICAS, replica=spec, workload=workload, speed=speed) as fleet:
        in_loop(play(fleet, range(32), concurrency=32))
        played = in_loop(play(fleet, range(count), concurrency=count))
    return {"requests": count, "slots": slots, "speed": speed, **played}


def page(data: dict[str, Any]) -> str:
    """The figures for people."""
    quick, steady = data["fast"], data["sustained"]
    memory, queue = data["waiting"], data["queued"]
    rows = [
        (name, quick[name]["cpu_ms_per_turn"], f"{quick[name]['wall_s'] / bound:.2f}×")
        for bound in [quick["lower_bound_s"]]
        for name in ("engine", "bare aiohttp loop")
    ]
    succeeded = steady["episodes"] - sum(steady["failures"].values())
    return f"""# What the engine itself costs

Environment step, trace on disk and accounting included; made by `benchmarks/engine_cost.py` on
{data["setting"]["cores"]} cores, of which the simulated fleet takes one.

{quick["concurrency"]} episodes at once, {quick["engine"]["turns"]} turns, on a fleet that is
{quick["speed"]:g} times as fast as a real one would be:

{table(("", "CPU per turn, ms", "wall time over the lower bound"), rows)}

{steady["concurrency"]} episodes at once on one core, {steady["speed"]:g} times as fast as real
ones: {succeeded} of {steady["episodes"]} succeeded; {steady["cpu_share"]:.0%} of the core used;
loop lag p50 {steady["lag_p50_ms"]:g} ms, p99 {steady["lag_p99_ms"]:g} ms.

An episode that waits for its fourth answer holds {memory["kb_per_episode"]:g} KB
({memory["episodes"]} of them).

{queue["requests"]} requests at once for {queue["slots"]} slots: the first reply after
{queue["first_s"]:.2f} s, the last after {queue["last_s"]:.2f} s, {sum(queue["failures"].values())}
failures.
"""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, default=1024, help="default: 1024")
    parser.add_argument("--waiting", type=int, default=2000, help="episodes (default: 2000)")
    parser.add_argument("--queued", type=int, default=16_000, help="requests (default: 16000)")
    parser.add_argument("--speed", type=float, default=20.0, help="of `fast` (default: 20)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/results")
    args = parser.parse_args()
    make_room_for_sockets(args.queued + args.concurrency)
    data = {
        "setting": setting(replicas=REPLICAS),
        "fast": fast(args.concurrency, args.concurrency, args.speed),
        "sustained": sustained(args.concurrency, speed=2.0),
        "waiting": waiting(args.waiting),
        "queued": queued(args.queued, slots=1024, speed=2.0),
    }
    text = page(data)
    write(args.out, "engine_cost", data, text)
    print(text)


if __name__ == "__main__":
    main()
