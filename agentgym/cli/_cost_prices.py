r"""The price book in effect: what models cost, since when, and who says so.

The shipped book, over it the user's own (~/.config/agentgym/prices.toml), over that any --prices
FILE. A model that is asked for by name is found as `agentgym cost plan` and roles files find it.

Examples:
  agentgym cost prices
  agentgym cost prices zai-org/GLM-4.7-Flash
  agentgym cost prices --prices contract.toml --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `agentgym cost prices`."""
    parser.add_argument("model", nargs="*", help="only these (default: all)")
    parser.add_argument(
        "--prices", action="append", type=Path, metavar="FILE", help="a price book over the others"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Show the rows."""
    from agentgym.cli._columns import columns
    from agentgym.price_book import SHIPPED, PriceBook
    from agentgym.types import printable

    book = PriceBook.load(*(args.prices or ()))
    rows = [book.find(name) for name in args.model] or list(book)
    if args.json:
        print(json.dumps([row.model_dump() for row in rows], indent=2, ensure_ascii=False))
        return 0
    header = ("$ per Mtok", "input", "cached", "output", "as of", "provider", "book")
    table = [
        (
            printable(row.name),
            f"{row.entry.input:g}",
            "-" if row.entry.cached is None else f"{row.entry.cached:g}",
            f"{row.entry.output:g}",
            row.entry.as_of,
            printable(row.entry.provider or "-"),
            "shipped" if row.file == str(SHIPPED) else printable(row.file),
        )
        for row in rows
    ]
    print(columns(header, table))
    for row in rows if args.model else ():
        note = f"; {row.entry.note}" if row.entry.note else ""
        print(printable(f"{row.name}: from {row.entry.source}{note}"))
    return 0
