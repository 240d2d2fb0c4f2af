r"""How many tasks are needed to see a difference, or which difference so many tasks show.

From a result file with two systems (or two files) the scatter of their difference is measured; from
one system, or from --success, it is bounded: it is small if both systems find the same tasks hard,
and large if they don't, and both ends are given.

Examples:
  agentgym eval power runs/x/result.json:before runs/x/result.json:after --difference 0.05
  agentgym eval power runs/x/result.json:base --difference 0.05 --samples 1 4
  agentgym eval power --success 0.3 --difference 0.1
  agentgym eval power --success 0.3 --between 0.1 --tasks 100 200 --samples 1 4 --power 0.9
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.evaluate import System


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is known, and what is asked."""
    known = parser.add_argument_group("what is known")
    known.add_argument("systems", nargs="*", metavar="FILE[:COLUMN]", help="one or two systems")
    known.add_argument("--success", type=float, metavar="P", help="success rate, 0 to 1")
    known.add_argument(
        "--between",
        type=float,
        metavar="V",
        help="variance of the tasks' own success rates, 0 to P(1-P), with --success",
    )
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--difference",
        type=float,
        nargs="+",
        metavar="D",
        help="true differences to see (0.05 is five points): how many tasks?",
    )
    asked.add_argument(
        "--tasks", type=int, nargs="+", metavar="N", help="numbers of tasks: which difference?"
    )
    asked.add_argument(
        "--samples",
        type=int,
        nargs="+",
        metavar="K",
        help="attempts per task (default: 1, and as many as the result files have)",
    )
    asked.add_argument("--power", type=float, default=0.8, help="chance to see it (default: 0.8)")
    asked.add_argument("--level", type=float, default=0.95, help="of the interval (default: 0.95)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Work it out and print it."""
    from agentgym.cli._result_tables import print_tables
    from agentgym.errors import ConfigError
    from agentgym.evaluate.power import power_of_rate, power_of_systems, power_table
    from agentgym.evaluate.scatter import Question
    from agentgym.evaluate.systems import systems_of

    if bool(args.systems) == (args.success is not None):
        raise ConfigError("give one or two systems of result files, or --success")
    if args.between is not None and args.success is None:
        raise ConfigError("--between goes with --success; a result file says it itself")
    if bool(args.difference) == bool(args.tasks):
        raise ConfigError("give --difference (how many tasks?) or --tasks (which difference?)")
    systems = systems_of(args.systems) if args.systems else []
    question = Question(
        differences=tuple(args.difference or ()),
        tasks=tuple(args.tasks or ()),
        samples=tuple(args.samples or _played(systems)),
        power=args.power,
        level=args.level,
    )
    if systems:
        found = power_of_systems(systems, question)
    else:
        found = power_of_rate(args.success, args.between, question)
    if args.json:
        print(found.model_dump_json(indent=2))
    else:
        print_tables([power_table(found)], found.caveats, markdown=False)
    return 0


def _played(systems: Sequence[System]) -> list[int]:
    """One attempt per task, and as many as all of the systems have."""
    return sorted({1, *([min(system.result.samples for system in systems)] if systems else [])})
