"""A chart in a page: heading, legend, plot, what it shows, how to read it, its figures as a table.

The legend is the page's and not the plot's: names may have been written by anyone, and text in HTML
wraps, can be copied and is read aloud.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.report.plots.chart import Chart, Series, names_its_rows, shown
from agentgym.report.plots.drawing import draw
from agentgym.report.plots.palette import DASHES, MARKERS, SERIES, themed
from agentgym.report.run.markup import Table, counted, escaped, table_html

_SHAPES = {
    "o": "M17 2a3 3 0 1 0 .01 0z", "s": "M14 2h6v6h-6z", "^": "M17 1.5l3.5 6.5h-7z",
    "D": "M17 1l4 4-4 4-4-4z", "v": "M17 8.5l3.5-6.5h-7z", "P": "M16 1h2v3h3v2h-3v3h-2v-3h-3v-2h3z",
}  # fmt: skip
"""Markers in a legend's key of 34 by 10."""


def figure_html(chart: Chart) -> str:
    """A chart as a `<figure>`; without its plot where there is nothing to draw.

    Raises:
        MissingExtraError: If matplotlib isn't installed.
    """
    parts = [f'<figure id="fig-{chart.key}">\n<h3>{escaped(chart.title)}</h3>\n']
    if chart.series:
        parts += [_legend(chart), draw(chart), "\n"]
    parts.append(f"<figcaption><p>{escaped(chart.about)}</p>")
    if chart.read and chart.series:
        parts.append(f'<p class="read">{escaped(chart.read)}</p>')
    parts.append("</figcaption>\n")
    if chart.series:
        table = data_table(chart)
        parts.append(
            f"<details><summary>Figures ({counted(len(table.rows), 'row')})</summary>"
            f'<div class="scroll" tabindex="0">{table_html(table)}</div></details>\n'
        )
    return "".join([*parts, "</figure>\n"])


def data_table(chart: Chart) -> Table:
    """What a chart shows, as numbers: a row per `x`, a column per series and end of interval."""
    header = [chart.x_label if chart.kind != "bars" else ""]
    columns: list[dict[float, str]] = []
    for series in chart.series:
        header += [series.name, *_extra_names(series)]
        columns += _columns(chart, series)
    xs = sorted({point.x for series in chart.series for point in series.points})
    rows = [[_row_name(chart, x), *(column.get(x, "–") for column in columns)] for x in xs]
    return Table("", header, rows)


def _row_name(chart: Chart, x: float) -> str:
    return chart.categories[int(x)] if chart.kind == "bars" else f"{x:g}"


def _extra_names(series: Series) -> list[str]:
    names = ["mean of neighbours"] if _has(series, "smooth") else []
    return names + (["95 % from", "to"] if _has(series, "low") else [])


def _columns(chart: Chart, series: Series) -> Iterator[dict[float, str]]:
    for name in ("y", "smooth", "low", "high"):
        if name == "y" or _has(series, "low" if name == "high" else name):
            cells: dict[float, str] = {}
            for p in series.points:  # several events may have one x; values never do
                cell = _cell(chart, getattr(p, name))
                cells[p.x] = f"{cells[p.x]}, {cell}" if p.x in cells else cell
            yield cells


def _cell(chart: Chart, value: float | None) -> str:
    return f"A{value:g}" if chart.y_ticks and value is not None else shown(value, chart.unit)


def _has(series: Series, name: str) -> bool:
    return any(getattr(point, name) is not None for point in series.points)


def _legend(chart: Chart) -> str:
    items = [
        f"<li>{_key(number)}{escaped(series.name)}</li>"
        for number, series in enumerate(chart.series)
    ]
    if not names_its_rows(chart):
        items += [
            f"<li>{number} {escaped(name)}</li>"
            for number, name in enumerate(chart.categories, start=1)
        ]
    items += [
        f"<li>{_dashed('4 3', 'muted')}{escaped(name)} at {escaped(shown(value, chart.unit))}</li>"
        for value, name in chart.levels
    ]
    kinds = {mark.kind for mark in chart.marks}
    if "alarm" in kinds:
        items.append(f"<li>{_dashed('3 2', 'alarm')}A1, …: alarms</li>")
    if "resume" in kinds:
        items.append(f"<li>{_dashed('1 2', 'muted')}R1, …: resumed</li>")
    return f'<ul class="legend">{"".join(items)}</ul>\n'


def _key(number: int) -> str:
    dashes = " ".join(f"{1.6 * length:g}" for length in DASHES[number])
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    colour = themed(SERIES[number])
    return (
        f'<svg viewBox="0 0 34 10" aria-hidden="true"><path d="M0 5H34" fill="none" '
        f'stroke="{colour}" stroke-width="1.6"{dashed}/>'
        f'<path d="{_SHAPES[MARKERS[number]]}" fill="{colour}"/></svg>'
    )


def _dashed(dashes: str, colour: str) -> str:
    return (
        '<svg viewBox="0 0 34 10" aria-hidden="true"><path d="M0 5H34" fill="none" '
        f'stroke="var(--{colour})" stroke-dasharray="{dashes}"/></svg>'
    )
