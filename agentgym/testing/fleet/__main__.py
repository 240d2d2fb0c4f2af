"""`python -m agentgym.testing.fleet`: serve a simulated fleet until standard input ends or Ctrl-C.

The first line it prints is JSON with the base URLs. `FleetProcess` goes on to ask it things in
lines of JSON, `[method, argument …]`, and gets one line of JSON for each.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
from contextlib import suppress
from typing import Any

from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.fleet.replica import FleetStatistics, ReplicaSpec
from agentgym.testing.fleet.server import SimulatedFleet
from agentgym.testing.fleet.workload import Workload

_SOCKETS = 20_000
_METHODS = ("statistics", "forget_statistics", "kill", "restart", "pause", "resume")


async def serve(fleet: SimulatedFleet, *, controlled: bool) -> None:
    """Serve until standard input ends, or for ever."""
    async with fleet:
        _say(json.dumps({"urls": fleet.urls, "model": fleet.model}))
        if not controlled:
            await asyncio.get_running_loop().create_future()
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(await obey(fleet, line))


async def obey(fleet: SimulatedFleet, line: str) -> str:
    """Do what one line asks for.

    Returns:
        The answer, as JSON.
    """
    name, *args = json.loads(line)
    if name not in _METHODS:
        return json.dumps({"error": f"no method {name!r}; there are {', '.join(_METHODS)}"})
    try:
        result: Any = getattr(fleet, name)(*args)
        if inspect.isawaitable(result):
            result = await result
    except (IndexError, OSError) as error:
        return json.dumps({"error": f"{name} {args}: {type(error).__name__}: {error}"})
    return result.model_dump_json() if isinstance(result, FleetStatistics) else "{}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m agentgym.testing.fleet", description="Serve a simulated policy fleet."
    )
    parser.add_argument(
        "--replicas", nargs="+", default=["1"], help="how many, or a ReplicaSpec for each, as JSON"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="virtual seconds per second (default: 1)"
    )
    parser.add_argument("--workload", default="{}", help="fields of Workload, as JSON")
    parser.add_argument(
        "--controlled", action="store_true", help="obey standard input, and end with it"
    )
    args = parser.parse_args()
    make_room_for_sockets(_SOCKETS)
    if len(args.replicas) == 1 and args.replicas[0].isdecimal():
        specs = [ReplicaSpec()] * int(args.replicas[0])
    else:
        specs = [ReplicaSpec.model_validate_json(text) for text in args.replicas]
    fleet = SimulatedFleet(
        len(specs),
        replica=specs,
        workload=Workload.model_validate_json(args.workload),
        speed=args.speed,
    )
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(fleet, controlled=args.controlled))


if __name__ == "__main__":
    main()
