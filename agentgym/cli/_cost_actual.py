r"""What runs have cost: tokens and dollars per role, per episode, per solved task, per step.

Everything is added up that was paid for: repeated and failed calls, attempts that a later one took
the place of, cancelled episodes. Dollars are the traces' own, or with --prices those of the price
book, by the model that a trace names for a role. A role without a price is said to be unpriced and
is in no sum.

With --plan, the bill is held against a plan, per role and per episode.

Examples:
  agentgym cost actual runs/x
  agentgym cost actual runs/x runs/y/traces.jsonl --prices
  agentgym cost actual runs/x --prices mine.toml --model judge=GLM-5.1
  agentgym cost actual runs/x --plan workload.toml
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.cost.actual import Pricing
    from agentgym.price_book import PriceBook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `agentgym cost actual`."""
    add_trace_arguments(parser)
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="a workload file to hold the bill against"
    )
    parser.add_argument("--json", action="store_true", help="every figure as JSON")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read, and at which prices."""
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACES", help="trace files, or folders of runs"
    )
    parser.add_argument(
        "--prices",
        nargs="?",
        const=True,
        metavar="FILE",
        help="price the tokens anew by the price book, and by FILE over it",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help="with --prices: the book's row for a role, instead of the model the traces name",
    )


def run(args: argparse.Namespace) -> int:
    """Add up, and print."""
    from agentgym.cli._actual_tables import print_actual
    from agentgym.cost.actual import actual_of
    from agentgym.cost.against import against
    from agentgym.cost.plan import make_plan
    from agentgym.cost.workload_file import read_workload

    book, pricing = pricing_of(args)
    workload = read_workload(args.plan) if args.plan else None
    actual = actual_of(args.traces, pricing=pricing)
    held = None if workload is None else against(make_plan(workload, book), actual)
    if args.json:
        derived = {
            name: getattr(actual, name)
            for name in (
                *("usd", "priced_usd", "usd_per_episode", "usd_per_solved_task", "usd_per_step"),
                "unpriced",
            )
        }
        figures = {**actual.model_dump(mode="json"), **derived}
        if held is not None:
            figures["plan"] = {**held.model_dump(mode="json"), "usd_ratio": held.usd_ratio}
        print(json.dumps(figures, indent=2, ensure_ascii=False))
    else:
        print_actual(actual, held)
    return 0


def pricing_of(args: argparse.Namespace) -> tuple[PriceBook, Pricing | None]:
    """The price book, and how to price the traces' tokens anew; None for as they are.

    Raises:
        ConfigError: If a file can't be read, or --model isn't as it should be.
    """
    from agentgym.cost.actual import priced_by
    from agentgym.errors import ConfigError, unknown_name
    from agentgym.price_book import PriceBook
    from agentgym.roles import ROLES

    files = [args.prices] if isinstance(args.prices, str) else []
    models = {}
    for pair in args.model:
        role, equals, name = pair.partition("=")
        if not equals or not role or not name:
            raise ConfigError(f"--model takes ROLE=NAME, got {pair!r}")
        if role not in ROLES:
            raise ConfigError(f"--model: {unknown_name('role', role, ROLES)}")
        models[role] = name
    if models and not args.prices:
        raise ConfigError("--model goes with --prices")
    book = PriceBook.load(*files)
    return book, priced_by(book, models=models, needed=False) if args.prices else None
