r"""Compare systems on the tasks that all attempted: alike or not, paired difference, p-value.

Systems are the columns of result files: FILE is all of them, FILE:COLUMN is one. The first is the
one that the others are compared with. Exits with 1 if two can't be compared (another environment,
another external score, no task in common), and with --strict also if anything but the systems may
have made a difference: sampling, prompts, judges, code, episodes without a score.

Examples:
  agentgym eval compare runs/before/result.json runs/after/result.json
  agentgym eval compare runs/x/result.json
  agentgym eval compare runs/x/result.json:rule runs/y/result.json:ours --strict
  agentgym eval compare runs/x/result.json --all-pairs --json
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which systems and how to show them."""
    parser.add_argument("systems", nargs="+", metavar="FILE[:COLUMN]", help="result files")
    parser.add_argument(
        "--all-pairs", action="store_true", help="each with each, instead of all with the first"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if they are not like with like"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="everything, as JSON")
    how.add_argument("--markdown", action="store_true", help="the tables, as Markdown")


def run(args: argparse.Namespace) -> int:
    """Read, compare, print."""
    import json

    from agentgym.cli._result_tables import print_tables
    from agentgym.evaluate.compare import compare_all
    from agentgym.evaluate.compare_tables import comparison_table, detail_table, verdict_lines
    from agentgym.evaluate.systems import systems_of

    comparisons = compare_all(systems_of(args.systems), all_pairs=args.all_pairs)
    if args.json:
        # By way of pydantic's own JSON, in which an end at infinity is a string, as in all files.
        print(json.dumps([json.loads(each.model_dump_json()) for each in comparisons], indent=2))
    else:
        tables = (comparison_table(comparisons), detail_table(comparisons))
        lines = [line for each in comparisons for line in verdict_lines(each)]
        print_tables([table for table in tables if table.rows], lines, markdown=args.markdown)
    refused = any(each.blocked or (args.strict and not each.comparable) for each in comparisons)
    return int(refused)
