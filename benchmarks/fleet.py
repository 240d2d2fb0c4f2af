"""How close the engine comes to one that costs nothing, on a simulated policy fleet.

    python benchmarks/fleet.py

The same episodes (1 to 12 turns, heavy-tailed lengths, tools of log-normal latency) are played on
1, 4 and 16 servers with 128 slots altogether, really and by a model: the same servers and the same
routing code in simulated time, where the engine takes no time at all. The ratio is the engine's own
cost. Then equal assignment (sticky round-robin) against ours, where all servers are alike and where
a quarter of them is half as fast.

Times are those of servers that generate 100 tokens per second and request; `--speed` makes
everything faster, and so the engine's own share larger. Takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from measuring import RESULTS, endpoints, in_loop, play, setting, table, tools_of, write

from agentgym.client import Completion, SamplingParams
from agentgym.clients import BalancedClient, ChatClient
from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.fleet import FleetProcess, FleetStatistics, ReplicaSpec, Workload
from agentgym.testing.fleet.model import (
    Balanced,
    EqualAssignment,
    Routing,
    lower_bound,
    simulate,
)
from agentgym.types import Message, ToolSpec

SLOW = {"prefill_tokens_per_s": 4000.0, "decode_tokens_per_s": 50.0}


class EqualClient:
    """Sticky round-robin: every server gets as many episodes as the others, and keeps them.

    Args:
        clients: One per server.
    """

    def __init__(self, clients: Sequence[ChatClient]) -> None:
        self._clients = itertools.cycle(clients)
        self._all = clients
        self._assigned: dict[str, ChatClient] = {}

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        client = self._assigned.get(session or "")
        if client is None:
            client = self._assigned[session or ""] = next(self._clients)
        return await client.complete(messages, tools, sampling, session=session)

    async def release(self, session: str) -> None:
        self._assigned.pop(session, None)

    async def aclose(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._all))


class IdleWatch:
    """Looks, while an engine runs, whether a server idles while calls wait for another.

    The engine's queue is in its client, where the servers' own statistics can't see it.

    Args:
        client: The engine's.
    """

    def __init__(self, client: BalancedClient) -> None:
        self._client = client
        self.idle_s = 0.0
        """Seconds that servers did nothing, summed over them."""
        self.spare_slot_s = 0.0
        """Seconds that slots were free, summed over them."""

    async def watch(self) -> None:
        """Look ten times a second, until cancelled."""
        looked = time.perf_counter()
        while True:
            await asyncio.sleep(0.1)
            now = time.perf_counter()
            status = self._client.status()
            waiting = sum(replica.waiting for replica in status)
            for replica in status:
                if waiting > replica.waiting and replica.in_flight < replica.capacity:
                    self.spare_slot_s += (replica.capacity - replica.in_flight) * (now - looked)
                    self.idle_s += (now - looked) * (not replica.in_flight)
            looked = now


async def really(
    fleet: FleetProcess, routing: str, *, slots: int, episodes: int, concurrency: int
) -> dict[str, Any]:
    """Play on the real servers."""
    made = endpoints(fleet, slots=slots if routing == "balanced" else concurrency)
    client: BalancedClient | EqualClient
    if routing == "balanced":
        client = BalancedClient(made)
        watch = IdleWatch(client)
        watching = asyncio.create_task(watch.watch())
    else:
        client = EqualClient([ChatClient(endpoint) for endpoint in made])
        watch = watching = None
    played = await play(fleet, range(episodes), concurrency=concurrency, client=client)
    statistics = fleet.statistics()
    if watch is not None and watching is not None:
        watching.cancel()
        played["idle_while_queued_s"] = round(watch.idle_s * fleet.speed, 2)
        played["spare_slot_s"] = round(watch.spare_slot_s * fleet.speed, 2)
    else:
        played |= _idle(statistics)
    await client.aclose()
    used_s = statistics.total("slot_s")
    capacity_s = statistics.total("slots") * played["wall_s"]
    return played | {
        "hit_share": round(statistics.hit_share, 4),
        "utilisation": round(used_s / capacity_s, 4),
    }


def _idle(statistics: FleetStatistics) -> dict[str, float]:
    return {
        "idle_while_queued_s": round(statistics.total("idle_while_queued_s"), 2),
        "spare_slot_s": round(statistics.total("spare_slot_s"), 2),
    }


def orders(episodes: Sequence[int], count: int) -> list[list[int]]:
    """The same episodes in slightly different orders, the given one first.

    An engine's episodes don't ask in exactly the order in which they begin, and whoever comes first
    decides who lands where; one order alone would make a chance of it.
    """
    found = [list(episodes)]
    for seed in range(1, count):
        rng = random.Random(seed)
        found.append(sorted(episodes, key=lambda k: k + rng.uniform(0.0, 4.0)))
    return found


def without_cost(
    workload: Workload, specs: Sequence[ReplicaSpec], routing: str, args: argparse.Namespace
) -> dict[str, Any]:
    """The engine that takes no time, over several orders."""
    slots = specs[0].slots
    making: dict[str, Callable[[], Routing]] = {
        "balanced": lambda: Balanced([slots] * len(specs)),
        "equal": lambda: EqualAssignment(len(specs)),
    }
    runs = [
        simulate(
            workload,
            specs,
            making[routing],
            episodes=order,
            concurrency=args.concurrency,
            tools=tools_of(workload),
        )
        for order in orders(range(args.episodes), args.orders)
    ]
    walls = [run.wall_s for run in runs]
    return {
        "wall_s": round(mean(walls), 3),
        "least_wall_s": round(min(walls), 3),
        "most_wall_s": round(max(walls), 3),
        "hit_share": round(mean(run.statistics.hit_share for run in runs), 4),
        "utilisation": round(mean(run.statistics.utilisation for run in runs), 4),
        **_idle(runs[0].statistics),
    }


def measure(
    name: str, specs: Sequence[ReplicaSpec], routing: str, args: argparse.Namespace
) -> dict[str, Any]:
    """One fleet with one routing: bound, model and reality."""
    workload, episodes = Workload(seed=args.seed), range(args.episodes)
    bound = lower_bound(workload, specs, episodes=episodes, tools=tools_of(workload))
    free = without_cost(workload, specs, routing, args)
    with FleetProcess(
        len(specs), replica=list(specs), workload=workload, speed=args.speed
    ) as fleet:
        sizes = {"episodes": args.episodes, "concurrency": args.concurrency}
        real = in_loop(really(fleet, routing, slots=specs[0].slots, **sizes))
    if real["failures"] or real["turns"] != sum(map(workload.turns, episodes)):
        raise SystemExit(f"{name}, {routing}: episodes are missing or failed: {real}")
    ratio = real["wall_s"] / free["wall_s"]
    print(f"{name}, {routing}: {real['wall_s']} s, {ratio:.3f} of {free['wall_s']} s", flush=True)
    return {
        "fleet": name,
        "replicas": len(specs),
        "slots": sum(spec.slots for spec in specs),
        "routing": routing,
        "lower_bound_s": round(bound.wall_s, 3),
        "without_cost": free,
        "engine": real,
        "ratio": round(ratio, 4),
    }


def page(data: dict[str, Any]) -> str:
    """The figures for people."""
    runs = data["runs"]
    columns = ("servers", "routing", "wall, s", "engine without cost, s", "ratio")
    columns += ("lower bound, s", "prefix hits of the possible", "idle while others queue, s")
    columns += ("slots used", "CPU per turn, ms")
    rows = [
        (
            run["fleet"],
            run["routing"],
            f"{run['engine']['wall_s']:.1f}",
            "{wall_s:.1f} ({least_wall_s:.1f} to {most_wall_s:.1f})".format(**run["without_cost"]),
            f"{run['ratio']:.3f}",
            f"{run['lower_bound_s']:.1f}",
            f"{run['engine']['hit_share']:.1%}",
            f"{run['engine']['idle_while_queued_s']:.1f}",
            f"{run['engine']['utilisation']:.1%}",
            f"{run['engine']['cpu_ms_per_turn']:.2f}",
        )
        for run in runs
    ]
    facts = data["setting"]
    return f"""# The engine on a simulated policy fleet

{facts["episodes"]} episodes of 1 to 12 turns, {facts["concurrency"]} at once, on servers of
{facts["slots"]} slots altogether. Times are those of servers that generate 100 tokens per second
and request; measured {facts["speed"]:g} times as fast on {facts["cores"]} cores, one of which
simulates the servers. Made by `benchmarks/fleet.py`.

{table(columns, rows)}

- Lower bound: all work over all slots, or the longest episode; no routing can reach it, since
  nobody knows beforehand which episodes are long.
- Engine without cost: the same routing code and the same servers in simulated time; mean and range
  over {facts["orders"]} orders that differ slightly, since who comes first decides who lands where.
- Prefix hits: prompt tokens that the server had cached, of those that it would have had cached, had
  one server answered everything.
- Mixed: a quarter of the servers is half as fast. Equal is sticky round-robin: every server gets as
  many episodes as the others.
"""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--episodes", type=int, default=1024, help="default: 1024")
    parser.add_argument("--concurrency", type=int, default=1024, help="default: 1024")
    parser.add_argument("--slots", type=int, default=128, help="altogether (default: 128)")
    parser.add_argument("--speed", type=float, default=2.0, help="default: 2")
    parser.add_argument("--orders", type=int, default=5, help="of the model (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/results")
    args = parser.parse_args()
    make_room_for_sockets(2 * args.concurrency)
    runs = []
    for n in args.replicas:
        specs = [ReplicaSpec(slots=max(1, args.slots // n))] * n
        runs.append(measure(f"{n}", specs, "balanced", args))
    most = max(args.replicas)
    alike = [ReplicaSpec(slots=max(1, args.slots // most))] * most
    mixed = [*alike[: most - most // 4], *(spec.model_copy(update=SLOW) for spec in alike)][:most]
    runs.append(measure(f"{most}", alike, "equal", args))
    runs += [measure(f"{most}, mixed", mixed, way, args) for way in ("equal", "balanced")]
    names = ("episodes", "concurrency", "slots", "speed", "orders", "seed")
    facts = setting(**{name: getattr(args, name) for name in names})
    data = {"setting": facts, "runs": runs}
    text = page(data)
    write(args.out, "fleet", data, text)
    print(text)


if __name__ == "__main__":
    main()
