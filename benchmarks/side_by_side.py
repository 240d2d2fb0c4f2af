"""agentgym's engine beside what else plays such episodes, on the same simulated fleet.

Same episodes, same servers, all at once, one contestant after the other in one run. What counts is
the wall time over the lower bound, which no engine can beat, and the CPU a turn costs the process
that plays: with a fast fleet that, and not the network, is what a rollout waits for.

Whoever can speak to one URL only gets a single server with all slots of the fleet, and so the best
routing there is. TRL's loops work on token ids, and render and parse chat templates; they write no
traces. verifiers runs in a virtual environment of its own:

    python -m venv peers
    peers/bin/pip install verifiers==0.4.0 -e .
    python benchmarks/side_by_side.py --verifiers-python peers/bin/python

It takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from measuring import RESULTS, setting, table, tools_of, write

from agentgym.testing.fleet import FleetProcess, ReplicaSpec, Workload
from agentgym.testing.fleet.model import lower_bound

HERE = Path(__file__).parent / "contestants"


class Contestant(NamedTuple):
    """A script and how to show it."""

    name: str
    script: str
    mode: str = ""
    routing: str = "one server"


CONTESTANTS = (
    Contestant("asyncio streams, by hand", "plain_loop.py", "sockets", "dealt out"),
    Contestant("aiohttp loop, by hand", "plain_loop.py", "aiohttp", "dealt out"),
    Contestant("**agentgym**", "agentgym_engine.py", "", "balanced"),
    Contestant("openai SDK loop", "plain_loop.py", "openai", "dealt out"),
    Contestant("TRL 1.16, async worker", "trl_loops.py", "async"),
    Contestant("TRL 1.16, GRPOTrainer's rounds", "trl_loops.py", "rounds"),
    Contestant("verifiers 0.4, evaluation", "verifiers_eval.py"),
)


class TokenServer:
    """The fleet as one server for token ids, in a process of its own; used with `with`."""

    def __init__(self, workload: Workload, *, episodes: int, slots: int, speed: float) -> None:
        fields = {"episodes": episodes, "slots": slots, "speed": speed}
        self._config = json.dumps({"workload": workload.model_dump(), **fields})
        self.url = ""

    def __enter__(self) -> TokenServer:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "token_server.py"), self._config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise SystemExit("the token server did not start; its error is above")
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()


def play(contestant: Contestant, python: str, contest: dict[str, Any]) -> dict[str, Any]:
    """Let a contestant play, and return its figures or its error."""
    command = [python, str(HERE / contestant.script), json.dumps(contest)]
    command += [contestant.mode] if contestant.mode else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().rpartition("\n")[2]}
    return dict(json.loads(done.stdout.strip().rpartition("\n")[2]))


def main() -> None:
    """Play the contest and write the figures."""
    parser = argparse.ArgumentParser(description="Engines side by side on a simulated fleet.")
    parser.add_argument("--episodes", type=int, default=1024, help="all at once (default: 1024)")
    parser.add_argument("--replicas", type=int, default=16, help="servers (default: 16)")
    parser.add_argument("--speed", type=float, default=20.0, help="virtual seconds per second")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contestants with such a name")
    parser.add_argument("--verifiers-python", metavar="PATH", help="of a venv that has verifiers")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    args = parser.parse_args()
    workload, replica = Workload(), ReplicaSpec()
    slots = args.replicas * replica.slots
    bound = lower_bound(
        workload,
        [replica] * args.replicas,
        episodes=range(args.episodes),
        tools=tools_of(workload),
    )
    bound_s = bound.wall_s / args.speed
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        fleet = FleetProcess(args.replicas, workload=workload, speed=args.speed)
        one = FleetProcess(
            replica=replica.model_copy(update={"slots": slots}), workload=workload, speed=args.speed
        )
        server = TokenServer(workload, episodes=args.episodes, slots=slots, speed=args.speed)
        for resource in (fleet, one, server):
            stack.enter_context(resource)
        for contestant in CONTESTANTS:
            if args.only and not any(word in contestant.name for word in args.only):
                continue
            python = sys.executable
            if contestant.script == "verifiers_eval.py":
                if args.verifiers_python is None:
                    print("verifiers is left out: give --verifiers-python", file=sys.stderr)
                    continue
                python = args.verifiers_python
            with tempfile.TemporaryDirectory() as folder:
                contest = {
                    "urls": fleet.urls,
                    "url": one.urls[0],
                    "token_url": server.url,
                    "workload": workload.model_dump(),
                    "speed": args.speed,
                    "episodes": args.episodes,
                    "folder": folder,
                }
                figures = play(contestant, python, contest)
            if "wall_s" in figures:
                figures["over_bound"] = round(figures["wall_s"] / bound_s, 2)
            rows[contestant.name] = {**figures, "routing": contestant.routing}
            print(f"{contestant.name:34} {figures}", flush=True)
    ours = rows.get("**agentgym**", {}).get("cpu_ms_per_turn")
    lines = []
    for name, row in rows.items():
        if "error" in row:
            lines.append([name, row["error"], "", "", "", "", ""])
            continue
        row["cpu_over_ours"] = round(row["cpu_ms_per_turn"] / ours, 2) if ours else None
        facts = [row["wall_s"], f"{row['over_bound']:.2f} x", row["cpu_ms_per_turn"]]
        lines.append([name, *facts, f"{row['cpu_over_ours']} x", row["peak_mb"], row["routing"]])
    columns = ("", "wall, s", "over the bound", "CPU ms a turn", "to ours", "peak MB", "routing")
    turns = sum(workload.turns(number) for number in range(args.episodes))
    facts = setting(
        episodes=args.episodes,
        turns=turns,
        replicas=args.replicas,
        slots=slots,
        speed=args.speed,
        lower_bound_s=round(bound_s, 3),
    )
    text = (
        "# Side by side\n\n"
        f"{args.episodes} episodes at once, {turns / args.episodes:.1f} turns each in the mean, "
        f"{args.replicas} simulated servers of {replica.slots} slots, log-normal tool latencies. "
        f"No engine can take less than {bound_s:.2f} s. "
        "Written by `python benchmarks/side_by_side.py`.\n\n" + table(columns, lines)
    )
    write(args.out, "side_by_side", {"setting": facts, "contestants": rows}, text)


if __name__ == "__main__":
    main()
