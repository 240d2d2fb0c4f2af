"""Rollout time per training step: `rollout_func` against TRL's `environment_factory` loop.

One process, one run: the same tiny model with random weights, the same tasks, the same colocated
vLLM on the CPU, the two loops in turn. What is sampled is scripted (`contestants/shop_walk.py`), so
that both play the same visits; the model computes all the same. A step is a rollout with rewards
and weight sync, without the optimiser. TRL's loop has the policy speak once more after a purchase,
because it has no signal that an episode is over; that belongs to what is compared.

    python benchmarks/trl_loop.py

It takes about eight minutes on two cores that have nothing else to do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from measuring import RESULTS, setting, table, write

WEBSHOP = "agentgym/WebShop-v0"
CONTEXT = 8192
LATENCY_S = 0.05
"""Median of the tools' latency where they have one; the mean is 1.65 times that."""


def prepare() -> None:
    """Set up what must stand before vLLM is imported."""
    for name, value in (
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "2"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)
    sys.path.insert(0, str(Path(__file__).parent / "contestants"))


class Case(NamedTuple):
    """What is played."""

    name: str
    mode: str
    env_id: str
    env_kwargs: dict[str, Any]


def cases() -> tuple[Case, ...]:
    """All of them."""
    from shop_walk import ENV_ID, ShopWalkEnv

    gymnasium.register(ENV_ID, entry_point=ShopWalkEnv)
    plain: dict[str, Any] = {"split": "train"}
    slow = {**plain, "latency_s": LATENCY_S}
    return (
        Case("WebShop as it is", "buy", WEBSHOP, plain),
        Case("WebShop, log-normal tool latencies", "buy", ENV_ID, slow),
        Case("1 to 12 turns", "walk", ENV_ID, plain),
        Case("1 to 12 turns, log-normal tool latencies", "walk", ENV_ID, slow),
    )


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(trainers: Any, case: Case, *, steps: int, groups: int) -> dict[str, Any]:
    """Play a case, the loops in turn, and return the figures."""
    from shop_walk import ScriptedPolicy, ShopWalkEnv
    from trl_pair import NAMES, OURS, THEIRS, UNSEEDED

    with gymnasium.make(case.env_id, **case.env_kwargs) as env:
        known = env.unwrapped.task_ids()
    tasks = [known[n % len(known)] for n in range((steps + 1) * groups)]
    trainers.play_on(case.env_id, case.env_kwargs, tasks=tasks)
    ScriptedPolicy.use(trainers.trainers[OURS].processing_class, case.mode)
    played: dict[str, list[Any]] = {name: [] for name in NAMES}
    for number in range(steps + 1):
        for name in NAMES[number % 3 :] + NAMES[: number % 3]:
            ShopWalkEnv.visits.clear()
            played[name].append(trainers.step(name, number))
    for steps_of in played.values():
        del steps_of[0]  # whoever comes first pays for what all keep
    return {
        "ratio": _ratios(played[THEIRS], played[OURS]),
        "ratio_unseeded": _ratios(played[THEIRS], played[UNSEEDED]),
        **{
            name: {
                "seconds": [round(step.seconds, 3) for step in steps_of],
                "cpu_s": [round(step.cpu_s, 3) for step in steps_of],
                "sampled": sum(step.sampled for step in steps_of),
                "turns": sum(step.turns for step in steps_of),
            }
            for name, steps_of in played.items()
        },
    }


def _ratios(theirs: list[Any], ours: list[Any]) -> dict[str, Any]:
    """Step by step, of the same tasks; of the CPU time only in the median."""
    pairs = list(zip(theirs, ours, strict=True))
    return {
        "wall": [round(a.seconds / b.seconds, 2) for a, b in pairs],
        "cpu": round(statistics.median(a.cpu_s / b.cpu_s for a, b in pairs), 2),
    }


def report(args: argparse.Namespace, results: dict[str, Any], lines: list[list[str]]) -> None:
    """Write the figures."""
    from trl_pair import GROUP

    facts = setting(
        steps=args.steps, episodes=args.episodes, group=GROUP, latency_median_s=LATENCY_S
    )
    ratios = ("TRL's / ours", "of CPU time", "TRL's / ours unseeded", "of CPU time")
    columns = ("", "ours, s a step", "TRL's loop, s a step", *ratios, "turns a step")
    text = (
        "# Rollouts against TRL's tool loop\n\n"
        f"{args.episodes} episodes a step in groups of {GROUP}, tiny model, one colocated vLLM on "
        f"{os.cpu_count()} cores, {args.steps} steps each in turn; median and range. Latencies "
        f"are log-normal, {LATENCY_S * 1e3:g} ms in the median. Ours gives every request a seed of "
        "its own unless it is told not to; TRL's loop has none. TRL's loop has one turn more after "
        "each purchase, having no signal that an episode is over. "
        "Written by `python benchmarks/trl_loop.py`.\n\n" + table(columns, lines)
    )
    write(args.out, "trl_loop", {"setting": facts, "cases": results}, text)


def main() -> None:
    """Play all cases and write the figures."""
    parser = argparse.ArgumentParser(description="Our rollouts against TRL's tool loop.")
    parser.add_argument("--steps", type=int, default=5, help="of each loop and case (default: 5)")
    parser.add_argument("--episodes", type=int, default=64, help="per step (default: 64)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases with such a name")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    args = parser.parse_args()
    prepare()

    from chat_model import save_model, texts_of
    from trl_pair import GROUP, OURS, THEIRS, Trainers

    results: dict[str, Any] = {}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        with gymnasium.make(WEBSHOP, split="train") as env:
            texts = [*texts_of(env, tasks=200)]
            texts += [env.step(f"search[{word}]")[0][0]["content"] for word in WORDS]
        model = save_model(
            Path(folder, "model"), texts, shape="tiny", context=CONTEXT, dtype="float32"
        )
        trainers = Trainers(
            model,
            context=CONTEXT,
            max_turn_tokens=128,
            episodes=args.episodes,
            out=Path(folder, "out"),
        )
        for case in cases():
            if args.only and not any(word in case.name for word in args.only):
                continue
            found = measure(trainers, case, steps=args.steps, groups=args.episodes // GROUP)
            results[case.name] = found
            row = [case.name, *(spread(found[name]["seconds"]) for name in (OURS, THEIRS))]
            for ratio in (found["ratio"], found["ratio_unseeded"]):
                row += [spread(ratio["wall"]), f"{ratio['cpu']:.2f}"]
            turns = [found[name]["turns"] // args.steps for name in (OURS, THEIRS)]
            row.append(f"{turns[0]} / {turns[1]}")
            lines.append(row)
            print(" | ".join(row), flush=True)
            report(args, results, lines)  # what there is, if the rest is cut short


WORDS = ("shoes", "shirt", "table", "lamp", "dress", "cream", "chair", "phone case", "coffee")

if __name__ == "__main__":
    main()
