"""Figures as tables of text, for a terminal, a page or a README.

The systems stand side by side. A table is plain text in rows; how it is drawn is another matter,
and every way of drawing shows the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agentgym.evaluate.figure_records import ColumnFigures, EvaluationFigures, Passes, Share
from agentgym.evaluate.result import EvaluationResult
from agentgym.statistics import Estimate
from agentgym.types import Record, Usage, printable


class Table(Record):
    """A titled table; the first column names the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know when reading it."""

    def to_markdown(self) -> str:
        """The table in Markdown, the numbers flush right."""
        lines = [f"**{harmless(self.title)}**", "", _markdown_row(self.header)]
        lines.append("|" + "|".join([":--", *["--:"] * (len(self.header) - 1)]) + "|")
        lines += [_markdown_row(row) for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)


def tables_of(figures: EvaluationFigures) -> list[Table]:
    """Every table that has something in it."""
    columns = figures.columns
    tables = [
        _main(figures),
        _spending(columns),
        _by_name(columns, "Success by task family", _family_cells),
        _by_turns(columns),
        _by_name(columns, "Gates that tripped", _gate_cells),
    ]
    return [table for table in tables if table.rows]


def warnings_of(figures: EvaluationFigures) -> list[str]:
    """What to know before any figure is believed, one line each."""
    found = [
        f"{printable(name)}: no episode was played; the same `agentgym eval run` plays them"
        for name in figures.without_episodes
    ]
    for column in figures.columns:
        if column.why_no_accuracy is not None and column.n_errors:
            found.append(printable(column.why_no_accuracy))
        name = printable(column.name)
        found += [
            f"{name}: {count} × {printable(reason)}"
            for reason, count in column.error_reasons.items()
        ]
        if column.n_missing:
            found.append(
                f"{name}: {column.n_missing} of {column.n_planned} episodes were not "
                "played; the same `agentgym eval run` plays them"
            )
    return found


def errors_table(result: EvaluationResult) -> Table:
    """Every episode without a score, and why it has none."""
    return Table(
        title="Episodes without a score",
        header=("", "task", "sample", "class", "reason"),
        rows=tuple(
            (
                printable(column.name),
                printable(attempt.task_id),
                f"{attempt.sample}",
                attempt.failure_class or "unknown",
                printable(attempt.error or "no reason given"),
            )
            for column in result.columns
            for attempt in column.attempts
            if not attempt.scored
        ),
    )


def percent(estimate: Estimate | None) -> str:
    """A share with its interval, if more than one task says something."""
    if estimate is None:
        return "-"
    if estimate.n_clusters < 2:
        return f"{100 * estimate.mean:.1f}% (one task)"
    ends = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
    return f"{100 * estimate.mean:.1f}% ({ends})"


def number(estimate: Estimate | None, *, digits: int = 3) -> str:
    """A mean with its interval, if more than one task says something."""
    if estimate is None:
        return "-"
    if math.isinf(estimate.stderr):
        return f"{estimate.mean:.{digits}f} (one task)"
    if estimate.low == estimate.high:
        return f"{estimate.mean:.{digits}f} (all alike)"
    return f"{estimate.mean:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def share(found: Share) -> str:
    """A share of all episodes; and of the scored ones where these are others."""
    if found.of_scored is None:
        return "-"
    text = f"{100 * found.of_all.mean:.1f}%"
    if found.n_scored != found.n_total:
        text += f"; {100 * found.of_scored.mean:.1f}% of scored"
    return text


def _of_all(found: Share) -> str:
    """A share of all episodes with its interval; where none has a score, nobody knows it."""
    return percent(found.of_all) if found.n_scored else "-"


def _main(figures: EvaluationFigures) -> Table:
    columns = figures.columns
    rows: list[tuple[str, Callable[[ColumnFigures], str]]] = [
        ("model", lambda c: printable(c.model or c.kind)),
        ("tasks", lambda c: f"{c.n_tasks:,}"),
        ("episodes", lambda c: f"{c.n_total:,}"),
        ("  scored", lambda c: f"{c.n_scored:,}"),
        ("  no score", _errors),
        ("success, of all", lambda c: _of_all(c.success)),
        ("success, of scored", lambda c: percent(c.success.of_scored)),
    ]
    for index, passes in enumerate(columns[0].passes):
        if passes.k > 1:
            rows += _pass_rows(index, passes.k, any_left_out=any(c.n_errors for c in columns))
    rows += [
        (f"score ({printable(figures.external_score)})", lambda c: number(c.score)),
        ("completion", lambda c: share(c.completion)),
        ("  completed, wrong", lambda c: f"{c.completed_wrong:,}"),
        ("  never completed", lambda c: f"{c.unfinished:,}"),
        ("training reward", lambda c: number(c.reward)),
        ("turns", lambda c: number(c.turns, digits=1)),
        ("cut by a limit", lambda c: _counts(c.truncations)),
        ("malformed calls in", lambda c: share(c.malformed)),
    ]
    where = printable(figures.env_id + (f", split {figures.split}" if figures.split else ""))
    return Table(
        title=f"{where}: {figures.n_tasks} tasks, {figures.samples} samples each",
        header=("", *(printable(column.name) for column in columns)),
        rows=tuple((name, *map(cell, columns)) for name, cell in rows),
        note=(
            "95 % intervals in brackets, clustered by task. Of all: an episode without a score "
            "counts as not solved. Of scored: it is left out."
        ),
    )


def _pass_rows(
    index: int, k: int, *, any_left_out: bool
) -> list[tuple[str, Callable[[ColumnFigures], str]]]:
    def of(column: ColumnFigures) -> Passes:
        return column.passes[index]

    def cell(column: ColumnFigures, found: Estimate | None) -> str:
        fewer = found is not None and found.n_clusters < column.n_tasks
        if found is None or not column.n_scored:
            return "-"
        return percent(found) + (f", {found.n_clusters:,} tasks" if fewer else "")

    rows: list[tuple[str, Callable[[ColumnFigures], str]]] = [
        (f"pass@{k}, of all", lambda c: cell(c, of(c).at_of_all)),
        (f"pass^{k}, of all", lambda c: cell(c, of(c).hat_of_all)),
    ]
    if any_left_out:
        rows += [
            (f"pass@{k}, of scored", lambda c: cell(c, of(c).at)),
            (f"pass^{k}, of scored", lambda c: cell(c, of(c).hat)),
        ]
    return rows


def _spending(columns: Sequence[ColumnFigures]) -> Table:
    roles = dict.fromkeys(role for column in columns for role in column.usage)
    rows: list[tuple[str, ...]] = [
        (f"tokens {role}", *(_tokens(column.usage.get(role)) for column in columns))
        for role in roles
    ]
    rows += [
        ("cost", *(dollars(column.cost_usd) for column in columns)),
        ("cost per solved", *(_per_solved(column) for column in columns)),
        ("seconds per solved", *(_seconds(column.seconds_per_solved) for column in columns)),
        ("seconds, median", *(_seconds(column.median_seconds) for column in columns)),
        ("seconds, 95 %", *(_seconds(column.p95_seconds) for column in columns)),
    ]
    return Table(
        title="Cost and time",
        header=("", *(printable(column.name) for column in columns)),
        rows=tuple(rows),
        note=(
            "Per solved: all that was spent, failures included, over the episodes that were "
            "solved. Seconds leave out waiting in a queue."
        ),
    )


def _by_name(
    columns: Sequence[ColumnFigures], title: str, cells: Callable[[ColumnFigures], dict[str, str]]
) -> Table:
    found = [cells(column) for column in columns]
    names = dict.fromkeys(name for each in found for name in each)
    return Table(
        title=title,
        header=("", *(printable(column.name) for column in columns)),
        rows=tuple((printable(name), *(each.get(name, "-") for each in found)) for name in names),
    )


def _family_cells(column: ColumnFigures) -> dict[str, str]:
    return {
        name: _of_all(family.success)
        + (f", {family.n_tasks:,} tasks" if family.n_tasks > 1 else "")
        for name, family in column.families.items()
    }


def _gate_cells(column: ColumnFigures) -> dict[str, str]:
    return {name: share(found) for name, found in column.gates.items()}


def _by_turns(columns: Sequence[ColumnFigures]) -> Table:
    found = [{(b.low, b.high): b.success for b in column.by_turns} for column in columns]
    rows = [
        (
            f"{low}" if low == high else f"{low} to {high}",
            *(_share_of_n(successes.get((low, high))) for successes in found),
        )
        for low, high in sorted({ends for successes in found for ends in successes})
    ]
    return Table(
        title="Success by number of turns",
        header=("", *(printable(column.name) for column in columns)),
        rows=tuple(rows),
        note="Of the scored episodes that took so many turns.",
    )


def _share_of_n(success: Share | None) -> str:
    return "-" if success is None else f"{100 * success.of_all.mean:.1f}% of {success.n_total}"


def _errors(column: ColumnFigures) -> str:
    if not column.n_errors:
        return "0"
    return f"{column.n_errors:,} ({_counts(column.errors)})"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "0"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "-"
    mark = ", estimated" if usage.estimated else ""
    return f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out{mark}"


def _per_solved(column: ColumnFigures) -> str:
    """Dollars; where nothing was solved there is no such price, whatever is known of it."""
    return dollars(column.cost_per_solved_usd) if column.success.count else "-"


def dollars(amount: float | None) -> str:
    """An amount of US dollars; an unknown one is no zero."""
    return "unknown" if amount is None else f"${amount:,.4f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}"


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (harmless(cell.strip()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def harmless(text: str) -> str:
    """Text for Markdown in which names make no tags, links or pictures."""
    return text.replace("<", "&lt;").replace("](", "]\\(")
