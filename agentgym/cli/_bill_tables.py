"""How bills are printed, planned and paid ones alike: the console, the tables, the figures.

A figure is printed whole or not at all: a table that doesn't fit is left to the terminal to wrap,
since one that rich shortens has `$1,26…` in it. Names are other people's: no markup, no control
characters.
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentgym.types import printable

_ANY_WIDTH = 10_000
"""Columns that no table needs, so that none is shortened."""


def bill_console() -> Console:
    """Prints to standard output, and takes every text as it is."""
    return Console(width=_ANY_WIDTH, highlight=False, markup=False, emoji=False)


def say(console: Console, text: str) -> None:
    """Print one line, for the terminal to wrap."""
    console.print(printable(text), soft_wrap=True)


def bill_table(title: str, *names: str) -> Table:
    """An empty table: the first column flush left, the others flush right."""
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def amount(value: float) -> str:
    """A count, in millions or billions where it is one."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:,.3f}{unit}"
    if abs(value) < 1:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def dollars(value: float | None) -> str:
    """Dollars, below one to a hundredth of a cent; what is unknown or little is no zero."""
    if value is None:
        return "unpriced"
    if 0 < value < 0.0001:
        return "<$0.0001"
    return f"${value:,.4f}" if 0 < value < 1 else f"${value:,.2f}"
