r"""Export an evaluation for other programs: Inspect's logs.

One column makes one log, with its conversations as far as the trace files lie beside the result
file. `inspect view` opens the logs of a folder.

Examples:
  agentgym eval export runs/x/result.json --format inspect --out logs
  agentgym eval export runs/x/result.json --format inspect --column rule --out rule.eval
  agentgym eval export runs/x/result.json --format inspect --column rule --out rule.json
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which file, which column, where to."""
    parser.add_argument("result", type=Path, metavar="FILE", help="a result file or its folder")
    parser.add_argument("--format", choices=("inspect",), required=True, help="the log format")
    parser.add_argument("--column", metavar="NAME", help="this column alone (default: all)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="a file ending in .json or .eval for one column, or a folder for .eval files",
    )


def run(args: argparse.Namespace) -> int:
    """Write the logs and say what is in them."""
    import sys

    from agentgym.errors import ConfigError
    from agentgym.evaluate.columns import file_stems
    from agentgym.evaluate.inspect_log import export_inspect
    from agentgym.evaluate.result import read_result

    result = read_result(args.result)
    columns = [result.column(args.column)] if args.column else list(result.columns)
    is_file = args.out.suffix in (".json", ".eval")
    if is_file and len(columns) > 1:
        names = ", ".join(column.name for column in columns)
        raise ConfigError(
            f"{args.out} takes one column, and there are {len(columns)}: choose one with --column "
            f"({names}), or name a folder"
        )
    folder = args.result if args.result.is_dir() else args.result.parent
    for column, stem in zip(columns, file_stems([c.name for c in columns]), strict=True):
        path = args.out if is_file else args.out / f"{stem}.eval"
        told = export_inspect(result, column, path, folder=folder)
        if told < len(column.attempts):
            print(
                f"agentgym: {path} has {told} of {len(column.attempts)} conversations; the others' "
                f"traces are not in {folder / (column.trace_file or '')}",
                file=sys.stderr,
            )
        print(path)
    return 0
