"""Rows of text under each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.statistics import Proportion
    from agentgym.types import Usage


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: the first column flush left, the others flush right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [f"{first:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def share(proportion: Proportion) -> str:
    """A share as a percentage."""
    return "-" if proportion.share is None else f"{proportion.share:.1%}"


def interval(proportion: Proportion) -> str:
    """The 95 % interval of a share."""
    low, high = proportion.interval
    return f"{low:.1%} to {high:.1%}" if proportion.n else "-"


def figure(value: float | None, digits: int = 3) -> str:
    """A number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def cost_line(role: str, usage: Usage) -> str:
    """What a role's calls cost."""
    dollars = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    mark = " (estimated)" if usage.estimated else ""
    return (
        f"{role}: {usage.calls:,} calls, {usage.prompt_tokens:,} tokens in "
        f"({usage.cached_tokens:,} cached), {usage.completion_tokens:,} out{mark}, {dollars}"
    )
