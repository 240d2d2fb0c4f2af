"""What becomes of learning when the shop is harder, gates are off, or judgements fail?

    python benchmarks/learning_variants.py --seeds 0 1 2 --out benchmarks/results

The tiny policy is trained as in `benchmarks/learning.py`, on variants of its shop that differ in
one thing each (`learning_shop.py`), and evaluated before and after on held-out tasks. All
evaluations of a difficulty are the same, with gates on and with a judge that doesn't fail, so that
a difference between two variants is a difference between two policies:

    as it is            the tiny shop
    harder              only tasks that ask for an option, which takes one click more
    no gates            neither a truncated episode nor an unreadable action costs anything
    10 % masked         a tenth of the judgements fails; those episodes don't train
    10 % scored 0       the same, but a failure passes for reward 0
    30 % masked, 30 % scored 0
    long masked, long scored 0
                        half of the judgements fails of episodes of four turns or more, as where a
                        judge's context or patience is too short for them

Beside the curves it says what a failed judgement does to the advantages, recounted from the
rollouts of the runs without failures (`told.py`).

Each run is a process of its own, and takes about three minutes on two cores. Those that are in
--runs already are not repeated. Writes learning_variants.json, .md and an .svg per chart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import learning_shop
import told
from learning import QUIET, interval, of_seeds
from measuring import RESULTS

from agentgym.report.plots.chart import Chart
from agentgym.report.plots.drawing import draw
from agentgym.statistics import paired_difference
from agentgym.train.tiny.demonstrations import ENV_KWARGS
from agentgym.train.tiny.learning import HELD_OUT, SAMPLES, STEPS, LearningResult, learn


class Variant(NamedTuple):
    """One way to train."""

    name: str
    changes: dict[str, Any]
    """Parameters of the shop that is trained on, beside the usual ones."""
    evaluated: dict[str, Any]
    """Those of the shop it is evaluated on."""


LONG = {"failing": 0.5, "failing_from": 4}
VARIANTS = {
    "as-it-is": Variant("as it is", {}, {}),
    "harder": Variant("harder", {"harder": True}, {"harder": True}),
    "no-gates": Variant("no gates", {"gates": []}, {}),
    "masked": Variant("10 % masked", {"failing": 0.1, "failed": "masked"}, {}),
    "zero": Variant("10 % scored 0", {"failing": 0.1, "failed": "zero"}, {}),
    "masked-30": Variant("30 % masked", {"failing": 0.3, "failed": "masked"}, {}),
    "zero-30": Variant("30 % scored 0", {"failing": 0.3, "failed": "zero"}, {}),
    "masked-long": Variant("long masked", {**LONG, "failed": "masked"}, {}),
    "zero-long": Variant("long scored 0", {**LONG, "failed": "zero"}, {}),
}
CHARTS = {
    "shops": ("Two difficulties, gates off", ("as-it-is", "harder", "no-gates")),
    "failures": (
        "Judgements that fail at random",
        ("as-it-is", "masked", "zero", "masked-30", "zero-30"),
    ),
    "long": ("Judgements of long episodes that fail", ("as-it-is", "masked-long", "zero-long")),
}
"""Variants that are drawn together."""
PAIRS = (("masked", "zero"), ("masked-30", "zero-30"), ("masked-long", "zero-long"))
"""The same failures, masked and scored 0."""


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
    luck = {"failing_seed": seed} if "failing" in chosen.changes else {}
    result = learn(
        folder,
        seed=seed,
        steps=steps,
        samples=SAMPLES,
        env=learning_shop.ENV_ID,
        env_kwargs={**ENV_KWARGS, **luck, **chosen.changes},
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


def differences(runs: Runs) -> str:
    """What scoring 0 instead of masking changes, seed by seed."""
    rows = [("failures", "seed by seed", "mean", "95 % interval"), ("---",) * 4]
    for masked, zero in PAIRS:
        if masked in runs and zero in runs:
            of_masked = {r.seed: [r.after.success.mean] for r in runs[masked]}
            of_zero = {r.seed: [r.after.success.mean] for r in runs[zero]}
            found = paired_difference(of_masked, of_zero)
            each = [of_zero[seed][0] - of_masked[seed][0] for seed in of_masked if seed in of_zero]
            shown = ", ".join(f"{100 * value:+.1f}" for value in each)
            between = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
            name = VARIANTS[masked].name.removesuffix(" masked")
            rows.append((name, shown, f"{100 * found.mean:+.1f}", between))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def chart(key: str, runs: Runs) -> str:
    """Share of the training rollouts solved, over the steps, as SVG."""
    title, variants = CHARTS[key]
    return draw(
        Chart(
            key=f"learning-{key}",
            title=title,
            about="Share of training rollouts solved. Line: mean over the seeds; band: from the "
            "lowest to the highest of them. 128 episodes a step.",
            series=tuple(
                of_seeds(VARIANTS[v].name, [r.train_success for r in runs[v]])
                for v in variants
                if v in runs
            ),
            unit="share",
            y_range=(0.0, 1.0),
        ),
        alone=True,
    )


def recounted(folder: Path, seeds: Sequence[int]) -> list[told.Told]:
    """What failures would have done to the advantages of the runs without failures, if any."""
    if not seeds:
        return []
    steps = [
        groups for seed in seeds for groups in told.steps_of(folder / f"as-it-is-{seed}" / "train")
    ]
    shares, treatments = (0.1, 0.3), get_args(told.Failed)
    return [told.told(steps, failing=f, failed=how) for f in shares for how in treatments]


def write(out: Path, runs: Runs, folder: Path, *, steps: int) -> None:
    """Figures, tables and curves."""
    out.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))[0].before.success
    advantages = recounted(folder, [r.seed for r in runs.get("as-it-is", [])])
    data = {
        "split": HELD_OUT,
        "steps": steps,
        "episodes_per_evaluation": first.n,
        "variants": {
            variant: [r.model_dump(mode="json") for r in results]
            for variant, results in runs.items()
        },
        "told": [t.model_dump(mode="json") for t in advantages],
    }
    text = json.dumps(data, indent=1) + "\n"
    (out / "learning_variants.json").write_text(text, encoding="utf-8")
    drawn = {key: title for key, (title, names) in CHARTS.items() if set(names) <= set(runs)}
    for key in drawn:
        (out / f"learning_variants_{key}.svg").write_text(chart(key, runs), encoding="utf-8")
    pictures = "\n\n".join(
        f"{title}:\n\n![{title}](learning_variants_{key}.svg)" for key, title in drawn.items()
    )
    page = (
        "# Learning in variants of the shop\n\n"
        f"{steps} GRPO steps of 16 tasks × 8 episodes; evaluations on held-out tasks (split "
        f"`{HELD_OUT}`, three episodes each) at temperature 1, with gates on and a judge that "
        "doesn't fail, whatever was trained on; 95 % intervals, clustered by task. *10 %*, *30 %*: "
        "so many of all judgements fail while training, at random; *long*: half of those of "
        "episodes of four turns or more. What the other variants are stands in "
        "`benchmarks/learning_variants.py`, which made this.\n\n"
        f"{means(runs)}\n\n"
        "Scored 0 less masked, success after in percentage points; the interval takes each seed "
        f"for one observation:\n\n{differences(runs)}\n\n"
        "What a failed judgement does to the advantages, recounted from all training rollouts of "
        f"the runs without failures, with failures drawn {told.DRAWS} times at "
        f"random:\n\n{told.table(advantages)}\n\n{table(runs)}\n\n{pictures}\n"
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
    write(args.out, runs, folder, steps=args.steps)
    print(means(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
