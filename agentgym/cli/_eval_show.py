r"""Show an evaluation's figures, with intervals and both denominators.

Where more than 5 % of a system's episodes have no score, or were not played, its success has no
single figure: --accuracy then exits with 1 and says why.

Examples:
  agentgym eval show runs/x/result.json
  agentgym eval show runs/x/result.json --k 1 4 8 --markdown
  agentgym eval show runs/x/result.json --json | jq '.columns[].success.of_all'
  agentgym eval show runs/x/result.json --accuracy
  agentgym eval show runs/x --errors
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which file and how to draw it."""
    parser.add_argument("result", type=Path, metavar="FILE", help="a result file, or its folder")
    parser.add_argument(
        "--k", type=int, nargs="+", metavar="K", help="for pass@k and pass^k (default: 1, 2, 4, …)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="all figures, as JSON")
    how.add_argument("--markdown", action="store_true", help="the tables, as Markdown")
    how.add_argument(
        "--errors", action="store_true", help="every episode without a score, and why it has none"
    )
    how.add_argument(
        "--accuracy", action="store_true", help="success alone, one line per system, for scripts"
    )


def run(args: argparse.Namespace) -> int:
    """Read, work out, print."""
    from agentgym.cli._result_tables import print_tables
    from agentgym.errors import DataError
    from agentgym.evaluate.figures import figures_of
    from agentgym.evaluate.result import read_result
    from agentgym.evaluate.tables import errors_table, tables_of, warnings_of
    from agentgym.types import printable

    result = read_result(args.result)
    figures = figures_of(result, ks=args.k)
    if args.errors:
        print_tables([errors_table(result)], (), markdown=False, whole_rows=True)
    elif args.json:
        print(figures.model_dump_json(indent=2))
    elif args.accuracy:
        # All of them before the first is printed: one that is refused must not hide in the others.
        lines = [f"{printable(c.name)}\t{c.accuracy():.4f}" for c in figures.columns]
        if figures.without_episodes:
            names = ", ".join(map(printable, figures.without_episodes))
            raise DataError(f"no episode was played by {names}")
        print("\n".join(lines))
    else:
        warnings = [f"! {warning}" for warning in warnings_of(figures)]
        print_tables(tables_of(figures), warnings, markdown=args.markdown)
    return 0
