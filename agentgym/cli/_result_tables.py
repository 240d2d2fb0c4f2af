"""Tables of an evaluation on the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from agentgym.evaluate.tables import Table, harmless

_PIPE_WIDTH = 400
"""Characters a line may have where no terminal says how many; nothing is folded then."""


def print_tables(tables: Sequence[Table], lines: Sequence[str], *, markdown: bool) -> None:
    """Print tables, and after them what to know before believing them.

    Args:
        tables: What to draw.
        lines: Sentences; those that go with the one before them are indented.
        markdown: Whether as Markdown, the sentences as a list.
    """
    if markdown:
        blocks = [table.to_markdown() for table in tables]
        if lines:
            blocks.append("\n".join(re.sub(r"^ *", r"\g<0>- ", harmless(line)) for line in lines))
        print("\n\n".join(blocks))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    for table in tables:
        console.print(_drawn(table))
        if table.note:
            console.print(Text(table.note, style="dim"))
        console.print()
    for line in lines:
        console.print(Text(line, style="" if line.startswith(" ") else "bold"))


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(title=Text(table.title), title_justify="left", title_style="bold")
    for index, name in enumerate(table.header):
        drawn.add_column(Text(name), justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn
