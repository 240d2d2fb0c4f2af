"""How much of a slow judge's time is hidden behind the rollouts that go on meanwhile.

    python benchmarks/judge_overlap.py

The same episodes are played twice: scored at once, and by a judge that takes as long for an episode
as rolling it out does, with as many places. One after the other, the judge would add its whole time
to the run; hidden is what it doesn't add. Nothing can hide the judging of the last episode.
Takes about 80 seconds on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from measuring import RESULTS, in_loop, play, setting, table, tools_of, write

from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.fleet import FleetProcess, ReplicaSpec, Workload
from agentgym.testing.fleet.model import episode_alone_s

JUDGE_SPREAD = 0.5


def run(workload: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """Play the episodes; each gets a slot of a server at once, so nothing but the judge waits."""
    spec = ReplicaSpec(slots=args.concurrency)
    with FleetProcess(1, replica=spec, workload=workload, speed=args.speed) as fleet:
        return in_loop(
            play(
                fleet,
                range(args.episodes),
                concurrency=args.concurrency,
                eval_concurrency=args.concurrency,
            )
        )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Without and with the judge."""
    plain = Workload(seed=args.seed)
    episodes, tools = range(args.episodes), tools_of(plain)
    rolled_s = [episode_alone_s(plain, ReplicaSpec(), k, tools=tools) for k in episodes]
    unit = plain.model_copy(update={"judge_median_s": 1.0, "judge_spread": JUDGE_SPREAD})
    median_s = mean(rolled_s) / mean(map(unit.judge_s, episodes))
    judged = unit.model_copy(update={"judge_median_s": median_s})
    judging_s = sum(map(judged.judge_s, episodes)) / args.concurrency
    without, with_judge = run(plain, args), run(judged, args)
    for played in (without, with_judge):
        if played["failures"]:
            raise SystemExit(f"episodes failed: {played['failures']}")
    added_s = with_judge["wall_s"] - without["wall_s"]
    return {
        "mean_rollout_s": round(mean(rolled_s), 3),
        "mean_judging_s": round(mean(map(judged.judge_s, episodes)), 3),
        "judging_alone_s": round(judging_s, 3),
        "scored at once": without,
        "slow judge": with_judge,
        "added_s": round(added_s, 3),
        "hidden_share": round(1 - max(0.0, added_s) / judging_s, 4),
    }


def page(data: dict[str, Any]) -> str:
    """The figures for people."""
    facts = data["setting"]
    rows = [
        ("rollouts, scored at once", f"{data['scored at once']['wall_s']:.1f}"),
        ("judging alone", f"{data['judging_alone_s']:.1f}"),
        (
            "one after the other",
            f"{data['scored at once']['wall_s'] + data['judging_alone_s']:.1f}",
        ),
        ("rollouts with the slow judge", f"{data['slow judge']['wall_s']:.1f}"),
    ]
    return f"""# Judging behind the rollouts

{facts["episodes"]} episodes, {facts["concurrency"]} at once in RUN and in EVAL; rolling one out
takes {data["mean_rollout_s"]:.1f} s on average, judging it {data["mean_judging_s"]:.1f} s. Measured
{facts["speed"]:g} times as fast. Made by `benchmarks/judge_overlap.py`.

{table(("", "s"), rows)}

**{data["hidden_share"]:.1%}** of the judging is hidden.
"""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=3072, help="default: 3072")
    parser.add_argument("--concurrency", type=int, default=64, help="default: 64")
    parser.add_argument("--speed", type=float, default=12.0, help="default: 12")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/results")
    args = parser.parse_args()
    make_room_for_sockets(2 * args.concurrency)
    facts = setting(episodes=args.episodes, concurrency=args.concurrency, speed=args.speed)
    data = {"setting": facts, **measure(args)}
    text = page(data)
    write(args.out, "judge_overlap", data, text)
    print(text)


if __name__ == "__main__":
    main()
