"""Tables of an evaluation on the terminal, or in whatever its output is piped to.

A table that is wider than the lines there are is drawn closer (an interval under its figure, a
header in several lines), and where that isn't enough, its columns come in several tables under each
other. Nothing is cut off or left out.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from agentgym.evaluate.tables import Table, harmless

_PIPE_WIDTH = 400
"""Characters a sentence's line may have where no terminal says how many; few are folded then."""
_TABLE_WIDTH = 100
"""Characters of a table's line where neither COLUMNS nor a terminal says how many."""
_LEAST_WIDTH = 40
_CLOSE: dict[str, Any] = {
    "box": SIMPLE_HEAD,
    "pad_edge": False,
    "show_edge": False,
    "padding": (0, 1, 0, 0),
}


def print_tables(
    tables: Sequence[Table], lines: Sequence[str], *, markdown: bool, whole_rows: bool = False
) -> None:
    """Print tables, and after them what to know before believing them.

    Args:
        tables: What to draw.
        lines: Sentences; those that go with the one before them are indented.
        markdown: Whether as Markdown, the sentences as a list.
        whole_rows: Whether a row stays one line in a pipe, however long, to be searched by line.
    """
    if markdown:
        blocks = [table.to_markdown() for table in tables]
        if lines:
            blocks.append("\n".join(re.sub(r"^ *", r"\g<0>- ", harmless(line)) for line in lines))
        print("\n\n".join(blocks))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    width = max(_LEAST_WIDTH, shutil.get_terminal_size((_TABLE_WIDTH, 0)).columns)
    for table in tables:
        for number, part in enumerate([_drawn(table)] if whole_rows else _fitted(table, width)):
            if number:
                console.print()
            console.print(part)
        if table.note:
            console.print(Text(table.note, style="dim"))
        console.print()
    for line in lines:
        console.print(Text(line, style="" if line.startswith(" ") else "bold"))


def _fitted(table: Table, width: int) -> Iterator[RichTable]:
    """A table in as few parts as fit into that many columns, each with the rows' names."""
    drawn = _drawn(table)
    if _width_of(drawn) <= width:
        yield drawn
        return
    close, begin = _close(table), 1
    while begin < len(close.header):
        end = len(close.header)
        while end > begin + 1 and _width_of(_drawn(_part(close, begin, end), close=True)) > width:
            end -= 1
        yield _drawn(_part(close, begin, end), close=True)
        begin = end


def _close(table: Table) -> Table:
    """The same in less room: what is in brackets below its figure, words of headers too."""
    header = tuple(re.sub(r" (?!/)", "\n", name) for name in table.header)
    rows = tuple(
        (name.replace(" - ", "\n- "), *(cell.replace(" (", "\n(") for cell in cells))
        for name, *cells in table.rows
    )
    return table.model_copy(update={"header": header, "rows": rows})


def _part(table: Table, begin: int, end: int) -> Table:
    """The columns from `begin` to before `end`, with the rows' names; the title goes once."""
    return table.model_copy(
        update={
            "title": table.title if begin == 1 else "",
            "header": (table.header[0], *table.header[begin:end]),
            "rows": tuple((row[0], *row[begin:end]) for row in table.rows),
        }
    )


def _width_of(drawn: RichTable) -> int:
    console = Console(width=10_000)
    return Measurement.get(console, console.options, drawn).maximum


def _drawn(table: Table, *, close: bool = False) -> RichTable:
    drawn = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        **(_CLOSE if close else {}),
    )
    for index, name in enumerate(table.header):
        drawn.add_column(Text(name), justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn
