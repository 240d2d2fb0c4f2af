"""Text and tables as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from agentgym.types import printable


@dataclass(frozen=True)
class Table:
    """Figures in rows and columns; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def escaped(text: str) -> str:
    """A text for HTML, its control characters and direction marks made visible.

    Line feeds stay, since elements keep or fold them.
    """
    return escape("\n".join(printable(line) for line in text.split("\n")))


def counted(number: int, thing: str) -> str:
    """So many of something: `1 turn`, `2 turns`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def table_html(table: Table) -> str:
    """A table."""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>\n"
        for row in table.rows
    )
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
