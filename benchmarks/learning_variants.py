"""What becomes of learning when the shop is harder, gates are off, or judgements fail?

    python benchmarks/learning_variants.py --seeds 0 1 2 --out benchmarks/results

The tiny policy is trained as in `benchmarks/learning.py`, on variants of its shop that differ in
one thing each (`learning_shop.py`), and evaluated before and after on held-out tasks. All
evaluations of a difficulty are the same, with gates on and with a judge that doesn't fail, so that
a difference between two variants is a difference between two policies:

    as it is          the tiny shop
    harder            only tasks that ask for an option, which takes one click more
    no gates          neither a truncated episode nor an unreadable action costs anything
    10 % masked       a tenth of the judgements fails; those episodes don't train
    10 % scored 0     the same, but a failure passes for reward 0

Each run is a process of its own, and takes about three minutes on two cores. Those that are in
--runs already are not repeated. Writes learning_variants.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import learning_shop
from learning import QUIET, interval
from measuring import RESULTS

from agentgym.train.tiny.demonstrations import ENV_KWARGS
from agentgym.train.tiny.learning import HELD_OUT, SAMPLES, STEPS, LearningResult, learn


class Variant(NamedTuple):
    """One way to train."""

    name: str
    color: str
    changes: dict[str, Any]
    """Parameters of the shop that is trained on, beside the usual ones."""
    evaluated: dict[str, Any]
    """Those of the shop it is evaluated on."""


VARIANTS = {
    "as-it-is": Variant("as it is", "#36c", {}, {}),
    "harder": Variant("harder", "#093", {"harder": True}, {"harder": True}),
    "no-gates": Variant("no gates", "#c93", {"gates": []}, {}),
    "masked": Variant("10 % masked", "#639", {"failing": 0.1, "failed": "masked"}, {}),
    "zero": Variant("10 % scored 0", "#c33", {"failing": 0.1, "failed": "zero"}, {}),
}


def run_one(folder: Path, *, variant: str, seed: int, steps: int) -> LearningResult:
    """One run in a process of its own; its result is kept, so a repeated call only reads it."""
    kept = folder / "result.json"
    if not kept.exists():
        command = [sys.executable, __file__, "--one", str(folder), "--seeds", str(seed)]
        command += ["--steps", str(steps), "--variants", variant]
        subprocess.run(command, check=True, env={**QUIET, **os.environ})
    return LearningResult.model_validate_json(kept.read_text(encoding="utf-8"))


def play_one(folder: Path, *, variant: str, seed: int, steps: int) -> None:
    """The run itself."""
    chosen = VARIANTS[variant]
    result = learn(
        folder,
        seed=seed,
        steps=steps,
        samples=SAMPLES,
        env=learning_shop.ENV_ID,
        env_kwargs={**ENV_KWARGS, **chosen.changes},
        held_out_kwargs={**ENV_KWARGS, **chosen.evaluated},
    )
    (folder / "result.json").write_text(result.model_dump_json(), encoding="utf-8")


Runs = dict[str, list[LearningResult]]


def table(runs: Runs) -> str:
    """All runs as a Markdown table."""
    columns = ("trained on", "seed", "success before", "success after", "reward before")
    columns += ("reward after", "truncated after", "malformed after")
    rows = [columns, ("---",) * len(columns)]
    rows += [
        (
            VARIANTS[variant].name,
            str(r.seed),
            interval(r.before.success, percent=True),
            interval(r.after.success, percent=True),
            interval(r.before.reward),
            interval(r.after.reward),
            f"{r.after.truncated:.1%}",
            f"{r.after.malformed:.1%}",
        )
        for variant, results in runs.items()
        for r in results
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def means(runs: Runs) -> str:
    """The mean over the seeds, with their spread."""
    rows = [("trained on", "seeds", "success after, mean", "from", "to"), ("---",) * 5]
    for variant, results in runs.items():
        after = [r.after.success.mean for r in results]
        mean = sum(after) / len(after)
        shown = (f"{mean:.1%}", f"{min(after):.1%}", f"{max(after):.1%}")
        rows.append((VARIANTS[variant].name, str(len(after)), *shown))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def curves(runs: Runs) -> str:
    """Share of the training rollouts solved, over the steps; a line per run, as SVG."""
    width, height, left, bottom = 640, 320, 50, 60
    steps = max(len(r.train_success) for results in runs.values() for r in results)

    def point(step: int, value: float) -> tuple[float, float]:
        x = left + step / max(steps - 1, 1) * (width - left - 10)
        return round(x, 1), round(10 + (1 - value) * (height - bottom - 10), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        (x0, y), (x1, _) = point(0, tick), point(steps - 1, tick)
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:.0%}</text>')
    for variant, results in runs.items():
        for r in results:
            points = " ".join(f"{x},{y}" for x, y in map(point, range(steps), r.train_success))
            color = VARIANTS[variant].color
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{color}" opacity="0.7"/>'
            )
    keys = "".join(
        f'<tspan fill="{VARIANTS[v].color}" dx="12">{VARIANTS[v].name}</tspan>' for v in runs
    )
    axis = f"training step (1 to {steps}); share of training rollouts solved"
    parts.append(f'<text x="{left}" y="{height - 30}">{axis}</text>')
    parts.append(f'<text x="{left - 12}" y="{height - 10}">{keys}</text></g></svg>')
    return "\n".join(parts) + "\n"


def write(out: Path, runs: Runs, *, steps: int) -> None:
    """Figures, table and curves."""
    out.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))[0].before.success
    data = {
        "split": HELD_OUT,
        "steps": steps,
        "episodes_per_evaluation": first.n,
        "variants": {
            variant: [r.model_dump(mode="json") for r in results]
            for variant, results in runs.items()
        },
    }
    text = json.dumps(data, indent=1) + "\n"
    (out / "learning_variants.json").write_text(text, encoding="utf-8")
    (out / "learning_variants.svg").write_text(curves(runs), encoding="utf-8")
    page = (
        "# Learning in variants of the shop\n\n"
        f"{steps} GRPO steps of 16 tasks × 8 episodes; evaluations of {first.n} episodes "
        f"on held-out tasks (split `{HELD_OUT}`) at temperature 1, with gates on and a judge that "
        "doesn't fail, whatever was trained on; 95 % intervals, clustered by task. What each "
        "variant is stands in `benchmarks/learning_variants.py`, which made this.\n\n"
        f"{means(runs)}\n\n{table(runs)}\n\n![Training curves](learning_variants.svg)\n"
    )
    (out / "learning_variants.md").write_text(page, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    parser.add_argument("--runs", type=Path, help="folder for the runs; those there are not rerun")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        play_one(args.one, variant=args.variants[0], seed=args.seeds[0], steps=args.steps)
        return 0
    folder = args.runs or Path(tempfile.mkdtemp(prefix="agentgym-variants-"))
    runs: Runs = {}
    for seed in args.seeds:
        for variant in args.variants:
            print(f"== {VARIANTS[variant].name}, seed {seed}", flush=True)
            result = run_one(
                folder / f"{variant}-{seed}", variant=variant, seed=seed, steps=args.steps
            )
            runs.setdefault(variant, []).append(result)
            write(args.out, runs, steps=args.steps)
    print(means(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
