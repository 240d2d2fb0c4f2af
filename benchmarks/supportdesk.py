"""Speed of `agentgym/SupportDesk-v0`, and what its scripted policies score.

    python benchmarks/supportdesk.py --out benchmarks/results/supportdesk.json

Times are those of whole `env.reset` and `env.step` calls with the scripted user, through the plain
environment, over the expert's episodes. Scores are means over every task of a split; they follow
from the seed and must come out the same anywhere.
"""

import argparse
import json
import os
import platform
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentgym.client import SamplingParams
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.policies import POLICIES
from agentgym.envs.supportdesk.tasks.table import SPLITS
from agentgym.rollout.policies import random_policy
from agentgym.types import Verdict


def play(
    env: SupportDeskEnv, policy: Any, task_id: str, seconds: dict[str, list[float]]
) -> Verdict:
    """One episode, timed by kind of step."""
    start = time.perf_counter()
    _, info = env.reset(seed=0, options={"task_id": task_id})
    seconds["reset"].append(time.perf_counter() - start)
    turn = 0
    while True:
        action = policy(env.messages, info, turn)
        turn += 1
        start = time.perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        spent = time.perf_counter() - start
        if terminated or truncated:
            seconds["last step, scored"].append(spent)
            return info["verdict"]
        kind = "tool call" if isinstance(action, dict) else "reply of the user"
        seconds[kind].append(spent)


def policies(env: SupportDeskEnv) -> dict[str, Any]:
    """Every named policy, as a function of messages, info and turn."""
    found: dict[str, Any] = {}
    for name, make in POLICIES.items():
        policy = make(env, 0)
        found[name] = lambda messages, info, turn, policy=policy: policy(messages, info)
    found["random"] = lambda messages, info, turn: random_policy(
        messages, info, SamplingParams(seed=turn)
    )
    return found


def main() -> None:
    """Measure and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    start = time.perf_counter()
    env = SupportDeskEnv()
    loading_s = time.perf_counter() - start
    times: dict[str, list[float]] = defaultdict(list)
    scores: dict[str, Any] = {}
    for name, policy in policies(env).items():
        seconds = times if name == "expert" else defaultdict(list)
        scores[name] = {}
        for split in SPLITS:
            verdicts = [play(env, policy, task, seconds) for task in env.table.ids(split)]
            scores[name][split] = {
                "success": round(fmean(bool(v.correct) for v in verdicts), 4),
                "reward": round(fmean(v.reward or 0.0 for v in verdicts), 4),
            }
        print(name, scores[name])
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "tasks": {split: len(env.table.ids(split)) for split in SPLITS},
        "digest": env.table.digest,
        "loading_s": round(loading_s, 3),
        "median_ms": {name: round(1000 * median(each), 3) for name, each in times.items()},
        "scores": scores,
    }
    print(json.dumps({key: result[key] for key in ("loading_s", "median_ms")}))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
