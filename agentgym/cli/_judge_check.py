"""What `agentgym judge check` does: judge a gold set, and say whether the judge is fit."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym.cli._columns import columns, cost_line, figure, interval, share
from agentgym.cli._counting import Counting
from agentgym.cli._inputs import checked, write_json
from agentgym.cli._judge_model import NamedJudge
from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.judges.gold import GoldSet
    from agentgym.judges.health import CriterionHealth, HealthReport, Judgement
    from agentgym.judges.rubric import Rubric


def check(args: argparse.Namespace) -> int:
    """Check the judge.

    Returns:
        0; 1 if it isn't good enough; 130 after Ctrl-C.
    """
    from agentgym.judges.gold import GoldSet
    from agentgym.judges.health import HealthCheck, Thresholds

    thresholds = checked(
        Thresholds, **{name: getattr(args, name) for name in Thresholds.model_fields}
    )
    named = NamedJudge(args)
    gold = GoldSet.load(args.gold) if args.gold else GoldSet.shipped()
    _check_labels(gold, named.rubric)
    failed = 0

    def count(judgement: Judgement) -> None:
        nonlocal failed
        failed += judgement.verdict.masked
        counting.add(f"{failed} failed" if failed else "")

    trial = HealthCheck(
        named.judge,
        gold,
        reordered=named.reordered_judge if args.reorder else None,
        repeats=args.repeats,
        concurrency=args.concurrency,
        tolerance=args.tolerance,
        on_judgement=count,
    )

    async def run() -> None:
        await named.preflight()
        await trial.run()

    interrupted = False
    with Counting("judgements", trial.total, quiet=args.quiet) as counting:
        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            interrupted = True
    report = trial.report
    faults = report.faults(thresholds)
    print("\n".join(_lines(report)))
    if args.out:
        found = {"judge": named.facts, "complete": not interrupted, "faults": list(faults)}
        text = json.dumps({**found, **report.model_dump(mode="json")}, indent=2, ensure_ascii=False)
        write_json(args.out, text)
    if interrupted:
        print(f"agentgym: interrupted after {counting.done} of {trial.total}", file=sys.stderr)
        return 130
    for fault in faults:
        print(f"agentgym: not good enough: {fault}", file=sys.stderr)
    return int(bool(faults))


def _check_labels(gold: GoldSet, rubric: Rubric) -> None:
    """A gold set that labels nothing of the rubric can't tell anything about the judge."""
    names = {criterion.name for criterion in rubric.criteria}
    solved = rubric.correct is not None and any(case.correct is not None for case in gold.cases)
    if names.isdisjoint(gold.criteria) and not solved:
        raise ConfigError(
            f"the gold set labels {', '.join(gold.criteria) or 'no criterion'}, the rubric "
            f"{rubric.name!r} has {', '.join(sorted(names))}; give a --gold set made for it"
        )


def _lines(report: HealthReport) -> Iterator[str]:
    """The report as text."""
    header: tuple[str, ...] = (
        "",
        "accuracy",
        "95 % interval",
        "kappa",
        "error",
        "length bias",
        "spread",
        "flips",
    )
    header += ("moved",) if any(h.moved.n for h in report.criteria.values()) else ()
    rows = [_row(name, h)[: len(header)] for name, h in report.criteria.items() if h.accuracy.n]
    yield columns(header, rows)
    yield f"\n{report.n_cases} transcripts, {report.failed.n} judgements"
    yield f"failed         {share(report.failed)} ({interval(report.failed)})"
    for reason, count in list(report.reasons.items())[:3]:
        yield f"  {count} × {' '.join(reason.split())[:300]}"
    yield f"asked again    {share(report.reasked)} ({interval(report.reasked)})"
    median, high = figure(report.median_latency_s, 2), figure(report.p95_latency_s, 2)
    yield f"seconds        median {median}, 95th percentile {high}"
    for role, usage in report.spent.items():
        yield cost_line(role, usage)


def _row(name: str, health: CriterionHealth) -> tuple[str, ...]:
    bias = health.length_bias
    return (
        name + (" (constant!)" if health.constant else ""),
        share(health.accuracy),
        interval(health.accuracy),
        figure(health.kappa, 2),
        "-" if health.mean_error is None else f"{health.mean_error:+.3f}",
        "-" if bias is None else f"{bias.r:+.2f} ({bias.low:+.2f} to {bias.high:+.2f})",
        figure(health.spread),
        share(health.flips),
        share(health.moved),
    )
