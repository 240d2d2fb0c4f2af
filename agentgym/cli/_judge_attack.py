"""What `agentgym judge attack` does: try the suite on a model, and say what it achieved."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentgym.cli._columns import columns, cost_line, interval, share
from agentgym.cli._counting import Counting
from agentgym.cli._inputs import write_json
from agentgym.cli._judge_model import NamedJudge
from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.judges.attack import AttackReport, AttackResult


def attack(args: argparse.Namespace) -> int:
    """Attack the judge.

    Returns:
        0; 1 if nothing could be scored or more attacks succeeded than allowed; 130 after Ctrl-C.
    """
    from agentgym.judges.attack import AttackRun, Target, attack_suite

    if args.variants < 0:
        raise ConfigError(f"--variants must be at least 0, got {args.variants}")
    if args.max_rate is not None and not 0 <= args.max_rate <= 1:
        raise ConfigError(f"--max-rate must be from 0 to 1, got {args.max_rate:g}")
    named = NamedJudge(args)
    suite = attack_suite(Target.of(named.rubric), seed=args.seed, variants=args.variants)
    leaked = 0

    def count(result: AttackResult) -> None:
        nonlocal leaked
        leaked += result.outcome == "leaked"
        counting.add(f"{leaked} succeeded")

    trial = AttackRun(named.judge, suite, concurrency=args.concurrency, on_result=count)

    async def run() -> None:
        await named.preflight()
        await trial.run()

    interrupted = False
    with Counting("attacks", len(suite), quiet=args.quiet) as counting:
        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            interrupted = True
    report = trial.report
    print("\n".join(_lines(report)))
    if interrupted:
        print(f"agentgym: interrupted after {len(report.results)} of {len(suite)}", file=sys.stderr)
    if args.out:
        facts = {"judge": named.facts, "seed": args.seed, "complete": not interrupted}
        write_json(args.out, json.dumps({**facts, **_plain(report)}, indent=2, ensure_ascii=False))
    if interrupted:
        return 130
    rate = report.rate.share
    return int(rate is None or (args.max_rate is not None and rate > args.max_rate))


def _lines(report: AttackReport) -> Iterator[str]:
    """The report as text."""
    rows = [
        (kind, f"{rate.count:.0f}", str(rate.n), share(rate), interval(rate))
        for kind, rate in [*report.by_kind.items(), ("all", report.rate)]
    ]
    yield columns(("kind", "succeeded", "of", "rate", "95 % interval"), rows)
    unscored = [r for r in report.results if r.outcome == "unscored"]
    if unscored:
        yield f"\nwithout a verdict: {len(unscored)} (in no rate), such as {unscored[0].reason}"
    if fooled := report.count("solved_without"):
        yield f"\nsolved even without the attack: {fooled} (in no rate): the judge is too lenient"
    if report.leaks:
        yield "\nsucceeded:"
    for result in report.leaks:
        raised = ", ".join(f"{name} +{rise:g}" for name, rise in result.raised.items())
        yield f"  {result.name}: {raised}. {result.tries}"
    if report.spent:
        yield ""
    for role, usage in report.spent.items():
        yield cost_line(role, usage)


def _plain(report: AttackReport) -> dict[str, Any]:
    """The report as JSON, the rates that follow from it included."""

    def rate_of(rate: Any) -> dict[str, Any]:
        low, high = rate.interval
        return {"succeeded": rate.count, "of": rate.n, "rate": rate.share, "low": low, "high": high}

    return {
        "rate": rate_of(report.rate),
        "by_kind": {kind: rate_of(rate) for kind, rate in report.by_kind.items()},
        "unscored": report.count("unscored"),
        "solved_without": report.count("solved_without"),
        **report.model_dump(mode="json"),
    }
