r"""Measure a workload from a handful of episodes, and predict what more of them will cost.

Turns, the growth of prompts, cached shares, and how often and with how much the other models are
asked are taken from the traces; `agentgym cost plan --workload FILE` plans with them. The
prediction has an interval from how much the episodes' bills differ: a dozen episodes of a dozen
tasks say more than a dozen of one.

Examples:
  agentgym rollout --env agentgym/WebShop-v0 … -n 15 --out runs/pilot
  agentgym cost calibrate runs/pilot --episodes 500
  agentgym cost calibrate runs/pilot --groups 64 --group-size 8 --steps 200 --write workload.toml
  agentgym cost plan --workload workload.toml
  agentgym cost actual runs/x --plan workload.toml
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.client import Prices
    from agentgym.cost.actual import Pricing
    from agentgym.cost.sample import Sample
    from agentgym.price_book import PriceBook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `agentgym cost calibrate`."""
    from agentgym.cli._cost_actual import add_trace_arguments

    add_trace_arguments(parser)
    size = parser.add_argument_group("the run to plan (default: as many tasks as there are here)")
    size.add_argument("--episodes", type=int, metavar="N", help="single episodes of one step")
    size.add_argument("--groups", type=int, metavar="N", help="tasks per training step")
    size.add_argument("--group-size", type=int, metavar="N", help="rollouts per task")
    size.add_argument("--steps", type=int, metavar="N", help="training steps")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N episodes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the workload as TOML")
    parser.add_argument("--json", action="store_true", help="workload and prediction as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure, predict, and keep it."""
    from agentgym.cli._actual_tables import print_predictions
    from agentgym.cli._cost_actual import pricing_of
    from agentgym.cli._inputs import write_json
    from agentgym.cost.bills import bills_of
    from agentgym.cost.calibrate import calibrate
    from agentgym.cost.predict import predict
    from agentgym.cost.sample import first, sample_of
    from agentgym.cost.workload_file import workload_text

    size = _size(args)
    book, pricing = pricing_of(args)
    bills = bills_of(args.traces)
    sample = sample_of(bills if args.first is None else first(bills, args.first), pricing=pricing)
    groups, group_size, steps = size or (len({one.task for one in sample.episodes}) or 1, 1, 1)
    named = ", ".join(map(str, args.traces))
    workload = calibrate(
        sample,
        groups=groups,
        group_size=group_size,
        steps=steps,
        prices=_prices(args, book, pricing, sample),
        name=args.traces[0].name,
        basis=f"{sample.counted} episodes of {named}",
    )
    found = predict(sample, workload.episodes)
    if args.write:
        write_json(args.write, workload_text(workload).rstrip())
    if args.json:
        values = {
            "workload": workload.model_dump(mode="json"),
            "prediction": [one.model_dump(mode="json") for one in found],
        }
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return 0
    print(workload_text(workload))
    print_predictions(found)
    if workload.policy.prices is None and any(
        one.role == "policy" and one.unit == "usd" and one.mean for one in found
    ):
        print(
            "\nThe traces have the policy's dollars, but not its prices: plan with --roles FILE or "
            "--policy-model NAME."
        )
    return 0


def _prices(
    args: argparse.Namespace, book: PriceBook, pricing: Pricing | None, sample: Sample
) -> dict[str, Prices]:
    """Of the run to plan: from --model, from the book with --prices, else as the run had them."""
    from agentgym.cost.run_prices import run_prices

    told = {role for role, facts in sample.models.items() if facts.prices is not None}
    found = {role: p for role, p in run_prices(args.traces).items() if role not in told}
    if pricing is not None:
        anew = {role: pricing(role, sample.models) for role in sample.models}
        found |= {role: prices for role, prices in anew.items() if prices is not None}
    named = dict(pair.split("=", 1) for pair in args.model)
    return found | {role: book.find(name).prices for role, name in named.items()}


def _size(args: argparse.Namespace) -> tuple[int, int, int] | None:
    """Tasks per step, rollouts per task and steps; None if nothing was said.

    Raises:
        ConfigError: If both ways were used, or a number isn't allowed.
    """
    from agentgym.errors import ConfigError

    parts = (args.groups, args.group_size, args.steps)
    for flag, number in (
        *zip(("--groups", "--group-size", "--steps"), parts, strict=True),
        ("--episodes", args.episodes),
        ("--first", args.first),
    ):
        if number is not None and number < 1:
            raise ConfigError(f"{flag} must be at least 1, got {number}")
    if args.episodes is not None:
        if any(part is not None for part in parts):
            raise ConfigError("give either --episodes, or --groups, --group-size and --steps")
        return args.episodes, 1, 1
    if all(part is None for part in parts):
        return None
    groups, group_size, steps = (part or 1 for part in parts)
    return groups, group_size, steps
