"""Does GRPO through agentgym make the tiny policy better at tasks it was not trained on?

    python benchmarks/learning.py --seeds 0 1 2 --control shuffled --out benchmarks/results

For every seed: evaluate on held-out tasks, train, evaluate again (`agentgym.train.tiny.learning`).
The control does the same with the rewards of each batch dealt to random episodes. The claim holds
if, for every seed, the two 95 % intervals of the success rate don't overlap, and in the control the
second isn't above the first. Exits with 1 if it doesn't hold. Each run is a process of its own.

Held-out tasks may ask for the same things as a training task, with another price limit or in other
words; the figures are also given for those whose wish no training task has.

Writes learning.json, learning.md and learning.svg; traces and checkpoints stay in --runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.report.plots.chart import Chart, Point, Series
from agentgym.report.plots.drawing import draw
from agentgym.statistics import Estimate
from agentgym.traces import read_traces
from agentgym.train.evaluation import Evaluation
from agentgym.train.tiny.demonstrations import make_shop
from agentgym.train.tiny.learning import HELD_OUT, SAMPLES, STEPS, LearningResult, learn
from agentgym.train.tiny.shopper import Wish

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
}


def run_one(folder: Path, *, seed: int, shuffled: bool, steps: int) -> LearningResult:
    """One run in a process of its own; its result is kept, so a repeated call only reads it."""
    kept = folder / "result.json"
    if not kept.exists():
        command = [sys.executable, __file__, "--one", str(folder), "--seeds", str(seed)]
        command += ["--steps", str(steps)] + (["--control", "shuffled"] if shuffled else [])
        subprocess.run(command, check=True, env={**QUIET, **os.environ})
    return LearningResult.model_validate_json(kept.read_text(encoding="utf-8"))


def wishes(split: str) -> dict[str, object]:
    """What each task of a split asks for, price limit and wording aside."""
    shop, found = make_shop(split), {}
    for task in shop.task_ids():
        messages, _ = shop.reset(options={"task_id": task})
        wish = Wish.read(messages[-1]["content"])
        found[task] = (frozenset(wish.attributes), wish.noun, wish.option)
    return found


def on_new_wishes(folder: Path) -> dict[str, Evaluation]:
    """The two evaluations of a run, on held-out tasks whose wish no training task has."""
    trained = set(wishes("train").values())
    tasks = {task for task, wish in wishes(HELD_OUT).items() if wish not in trained}
    return {
        name: Evaluation.of(
            [t for t in read_traces(folder / f"{name}.jsonl") if t.task_id in tasks]
        )
        for name in ("before", "after")
    }


def interval(estimate: Estimate, *, percent: bool = False) -> str:
    if percent:
        return f"{estimate.mean:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


Run = tuple[LearningResult, dict[str, Evaluation]]


def table(runs: list[Run]) -> str:
    """The results as a Markdown table."""
    columns = ("rewards", "seed", "success before", "success after", "reward before")
    columns += ("reward after", "new wishes before", "new wishes after", "training, s", "all, s")
    rows = [columns, ("---",) * len(columns)]
    rows += [
        (
            "shuffled" if r.shuffled else "true",
            str(r.seed),
            interval(r.before.success, percent=True),
            interval(r.after.success, percent=True),
            interval(r.before.reward),
            interval(r.after.reward),
            interval(new["before"].success, percent=True),
            interval(new["after"].success, percent=True),
            f"{r.seconds['train']:.0f}",
            f"{sum(r.seconds.values()):.0f}",
        )
        for r, new in runs
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def of_seeds(name: str, curves: Sequence[Sequence[float]]) -> Series:
    """The mean over the seeds, step by step, and a band from the lowest to the highest of them.

    Args:
        name: Of the series.
        curves: One per seed, shape `(steps,)` each.
    """
    steps = enumerate(zip(*curves, strict=False), start=1)
    points = tuple(
        Point(x=step, y=fmean(shares), smooth=fmean(shares), low=min(shares), high=max(shares),
              about=f"{len(shares)} seeds")
        for step, shares in steps
    )  # fmt: skip
    return Series(name, points)


def curves(results: list[LearningResult]) -> str:
    """Success of the training rollouts over the steps, the seeds' mean and range, as SVG."""
    kinds = {"true rewards": False, "shuffled rewards": True}
    series = tuple(
        of_seeds(name, of_kind)
        for name, shuffled in kinds.items()
        if (of_kind := [r.train_success for r in results if r.shuffled is shuffled])
    )
    chart = Chart(
        key="learning",
        title="Success of the training rollouts",
        about="Share of training rollouts solved. Line: mean over the seeds; band: from the lowest "
        f"to the highest of them. {len(results)} runs of 128 episodes a step.",
        series=series,
        unit="share",
        y_range=(0.0, 1.0),
    )
    return draw(chart, alone=True) + "\n"


def holds(result: LearningResult) -> bool:
    if result.shuffled:
        return not result.after.success.above(result.before.success)
    return result.after.success.above(result.before.success)


def write(out: Path, runs: list[Run]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results = [result for result, _ in runs]
    new = runs[0][1]["before"].success
    first = results[0].before.success
    about = {
        "split": HELD_OUT,
        "temperature": 1.0,
        "episodes_per_evaluation": first.n,
        "tasks": first.n_clusters,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "claim_holds": all(holds(r) for r in results),
    }
    data: dict[str, Any] = {**about, "runs": []}
    for result, new_wishes in runs:
        entry = result.model_dump(mode="json")
        entry["new_wishes"] = {name: e.model_dump(mode="json") for name, e in new_wishes.items()}
        data["runs"].append(entry)
    (out / "learning.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (out / "learning.svg").write_text(curves(results), encoding="utf-8")
    text = (
        "# Learning on held-out tasks\n\n"
        f"Each evaluation: {first.n} episodes of {first.n_clusters} held-out tasks (split "
        f"`{HELD_OUT}`), sampled at temperature 1 before and after; 95 % intervals, clustered "
        f"by task. Training: {results[0].steps} GRPO steps of 16 tasks × 8 "
        f"episodes on the training split. Machine: {about['machine']}. "
        f"Made by `benchmarks/learning.py`. New wishes: success on the {new.n_clusters} held-out "
        "tasks that ask for something no training task asks for, price limit and wording aside."
        f"\n\n{table(runs)}\n\n"
        "![Training curves: mean and range of the seeds](learning.svg)\n"
    )
    (out / "learning.md").write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--control", choices=["none", "shuffled"], default="none")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="folder for the figures; default: print only")
    parser.add_argument("--runs", type=Path, help="folder for the runs; those there are not rerun")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        result = learn(
            args.one,
            seed=args.seeds[0],
            steps=args.steps,
            samples=SAMPLES,
            shuffled=args.control == "shuffled",
        )
        (args.one / "result.json").write_text(result.model_dump_json(), encoding="utf-8")
        return 0
    folder = args.runs or Path(tempfile.mkdtemp(prefix="agentgym-learning-"))
    runs: list[Run] = []
    for shuffled in (False, True) if args.control == "shuffled" else (False,):
        for seed in args.seeds:
            name = f"{'shuffled' if shuffled else 'true'}-{seed}"
            print(f"== {name}", flush=True)
            result = run_one(folder / name, seed=seed, shuffled=shuffled, steps=args.steps)
            runs.append((result, on_new_wishes(folder / name)))
            if args.out:
                write(args.out, runs)
            print(table(runs), flush=True)
    ok = all(holds(result) for result, _ in runs)
    print("the claim holds" if ok else "the claim does not hold")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
