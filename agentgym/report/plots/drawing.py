"""Draws a chart with matplotlib, as SVG whose text stays text.

The same chart gives the same bytes: no dates, no random ids, no settings of the user's own. No text
that a stranger may have written (names of components, gates, models) reaches matplotlib, which
would take dollar signs for formulas and look for glyphs: such names stand in the page's legend.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentgym.errors import MissingExtraError
from agentgym.report.plots.chart import MOST_SERIES, Chart, Series, Unit, hover_text, names_its_rows
from agentgym.report.plots.palette import (
    ALARM,
    DASHES,
    GRID,
    INK,
    MARKERS,
    MUTED,
    SERIES,
    variables_css,
)
from agentgym.report.plots.svg import STYLE, fit_for_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 6.4, 2.7  # inches; the page scales it
_BAR_HEIGHT = 0.32
INSTALL = 'pip install "agentgym-envs[report]"'


def require_matplotlib() -> None:
    """See that plots can be drawn.

    Raises:
        MissingExtraError: If matplotlib isn't installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"a page with plots needs matplotlib: {INSTALL}; without it --text prints the figures"
        ) from error


def draw(chart: Chart, *, alone: bool = False) -> str:
    """A chart as an `<svg>` element.

    Args:
        chart: With one series at least.
        alone: Whether it is a file of its own, which then brings its legend and its colours for
            light and dark along; series' names must be plain text then.

    Raises:
        MissingExtraError: If matplotlib isn't installed.
    """
    require_matplotlib()
    if len(chart.series) > MOST_SERIES and chart.kind != "bars":
        raise ValueError(f"{chart.key}: {len(chart.series)} series, at most {MOST_SERIES}")
    from matplotlib.figure import Figure

    rows = len(chart.categories) or len(chart.y_ticks)
    height = 0.7 + _BAR_HEIGHT * rows if rows else _HEIGHT
    with _settings(chart.key):
        figure = Figure(figsize=(_WIDTH, height))
        top = 0.24 if chart.marks else 0.12  # inches
        figure.subplots_adjust(
            left=_left(chart),
            right=0.965 if chart.kind == "bars" else 0.985,
            top=1 - top / height,
            bottom=min(0.45, 0.46 / height),
        )
        axes = figure.subplots()
        _frame(axes, chart)
        {"lines": _lines, "stack": _stack, "bars": _bars}[chart.kind](axes, chart)
        _limits(axes, chart)
        _marks(axes, chart)
        if alone and len(chart.series) > 1:
            axes.legend(frameon=False, fontsize=8, loc="best")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    hover = {
        f"points{number}": [hover_text(chart, series, point) for point in series.points]
        for number, series in enumerate(chart.series)
    }
    return fit_for_page(
        buffer.getvalue(),
        key=chart.key,
        title=chart.title,
        description=chart.about,
        hover=hover,
        style=f"{variables_css()}{STYLE}svg{{background:var(--paper)}}" if alone else None,
    )


@contextmanager
def _settings(key: str) -> Iterator[None]:
    """Matplotlib's own defaults, whatever the user's are, and those for SVG in a page."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": key,
                "text.parse_math": False,
                "font.size": 9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.edgecolor": MUTED,
                "axes.labelcolor": INK,
                "text.color": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "grid.color": GRID,
                "axes.grid": True,
                "axes.axisbelow": True,
            }
        )
        yield


def _left(chart: Chart) -> float:
    """The part of the width that names on the y axis need."""
    if not chart.categories or not names_its_rows(chart):
        return 0.115
    return max(0.115, 0.04 + 0.0135 * max(map(len, chart.categories)))


def _frame(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(chart.x_label, labelpad=2)
    if chart.y_label:
        axes.set_ylabel(chart.y_label, labelpad=4)
    low, high = _range(chart)
    values = FuncFormatter(lambda value, _: tick_text(value, chart.unit, high - low))
    if chart.kind == "bars":
        axes.xaxis.set_major_formatter(values)
        rows = range(len(chart.categories))
        numbers = [str(row + 1) for row in rows]
        axes.set_yticks(rows, chart.categories if names_its_rows(chart) else numbers)
        axes.grid(visible=False, axis="y")
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    if chart.y_ticks:
        axes.set_yticks([at for at, _ in chart.y_ticks], [label for _, label in chart.y_ticks])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.yaxis.set_major_formatter(values)


def tick_text(value: float, unit: Unit, range_: float) -> str:
    """A value on an axis, short enough for its margin.

    Args:
        value: The value.
        unit: Its unit.
        range_: Length of the axis, which says how many digits tell its ticks apart.
    """
    range_ = abs(range_) or 1.0
    if abs(value) < 1e-9 * range_:
        value = 0.0
    if unit == "share":
        return f"{100 * value:.3g}%"
    sign = "$" if unit == "dollars" else ""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{sign}{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    digits = 4
    if value:
        digits = max(4, 2 + math.ceil(math.log10(abs(value) / range_)))
    return f"{sign}{value:.{min(digits, 9)}g}"


def _lines(axes: Axes, chart: Chart) -> None:
    for number, series in enumerate(chart.series):
        colour, dashes = SERIES[number], DASHES[number]
        xs = [point.x for point in series.points]
        smooth = any(point.smooth is not None for point in series.points)
        line = [(p.x, p.smooth) for p in series.points if p.smooth is not None] if smooth else None
        _band(axes, series, colour, smooth=smooth)
        on_line = line if line is not None else [(p.x, p.y) for p in series.points]
        axes.plot(
            [x for x, _ in on_line],
            [y for _, y in on_line],
            color=colour,
            linewidth=0.0 if chart.y_ticks else 1.6,  # rows of events have no line between them
            dashes=dashes or (None, None),
            label=series.name,
        )
        axes.plot(
            xs,
            [point.y for point in series.points],
            linestyle="none",
            marker=MARKERS[number],
            markersize=3.4 if smooth else 4.5,
            color=colour,
            alpha=0.75 if smooth else 1.0,
            markeredgewidth=0,
            gid=f"points{number}",
        )


def _band(axes: Axes, series: Series, colour: str, *, smooth: bool) -> None:
    """The interval: a band around a line, bars at single values."""
    known = [p for p in series.points if p.low is not None and p.high is not None]
    if not known:
        return
    low = [float(p.low or 0.0) for p in known]
    high = [float(p.high or 0.0) for p in known]
    if smooth:
        axes.fill_between([p.x for p in known], low, high, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines([p.x for p in known], low, high, color=colour, alpha=0.6, linewidth=1.4)


def _stack(axes: Axes, chart: Chart) -> None:
    """Parts of a whole; each point sits on top of its part."""
    xs = [point.x for point in chart.series[0].points]
    below = [0.0] * len(xs)
    for number, series in enumerate(chart.series):
        top = [b + point.y for b, point in zip(below, series.points, strict=True)]
        axes.fill_between(
            xs, below, top, color=SERIES[number], alpha=0.35, linewidth=0, label=series.name
        )
        axes.plot(xs, top, color=SERIES[number], linewidth=1.0)
        axes.plot(
            xs, top, linestyle="none", marker=MARKERS[number], markersize=3.0,
            color=SERIES[number], markeredgewidth=0, gid=f"points{number}",
        )  # fmt: skip
        below = top


def _bars(axes: Axes, chart: Chart) -> None:
    """A row per category, and a bar per series in it."""
    count = len(chart.series)
    for number, series in enumerate(chart.series):
        shift = (number - (count - 1) / 2) * 0.8 / count
        ys = [point.x + shift for point in series.points]
        values = [point.y for point in series.points]
        axes.barh(ys, values, height=0.7 / count, color=SERIES[number], alpha=0.4,
                  label=series.name)  # fmt: skip
        known = [(y, p) for y, p in zip(ys, series.points, strict=True) if p.low is not None]
        axes.hlines(
            [y for y, _ in known],
            [float(p.low or 0.0) for _, p in known],
            [float(p.high or 0.0) for _, p in known],
            color=SERIES[number],
            linewidth=1.6,
        )
        axes.plot(
            values, ys, linestyle="none", marker=MARKERS[number], markersize=4,
            color=SERIES[number], markeredgewidth=0, gid=f"points{number}",
        )  # fmt: skip


def _limits(axes: Axes, chart: Chart) -> None:
    if chart.kind == "bars":
        axes.set_ylim(len(chart.categories) - 0.4, -0.6)
        low, high = _range(chart)
        axes.set_xlim(low, high)
        return
    xs = [p.x for series in chart.series for p in series.points] + [m.x for m in chart.marks]
    xs += chart.x_range or ()
    first, last = min(xs), max(xs)
    room = 0.02 * (last - first) or 0.5
    axes.set_xlim(first - room, last + room)
    axes.set_ylim(*_range(chart))


def _range(chart: Chart) -> tuple[float, float]:
    """What of the values' axis is shown: all of them, bands and levels, with a little room."""
    if chart.y_ticks and chart.y_range is not None:  # rows, not values
        return chart.y_range
    values = _heights(chart) + [level for level, _ in chart.levels]
    low, high = min(values), max(values)
    if chart.y_range is not None:  # which a stranger's numbers may go beyond
        low, high = min(low, chart.y_range[0]), max(high, chart.y_range[1])
        return low - 0.03 * (high - low), high + 0.03 * (high - low)
    if 0 < low <= high - low or chart.kind != "lines":  # far from 0 it would flatten the rest
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-9 if chart.unit == "share" else 0.5)
    return (low if low == 0 else low - room), high + room


def _heights(chart: Chart) -> list[float]:
    """Every value that is drawn; parts of a whole by where they end."""
    if chart.kind == "stack":
        columns = zip(*(series.points for series in chart.series), strict=True)
        return [sum_ for column in columns for sum_ in itertools.accumulate(p.y for p in column)]
    points = [point for series in chart.series for point in series.points]
    return [v for p in points for v in (p.y, p.smooth, p.low, p.high) if v is not None]


def _marks(axes: Axes, chart: Chart) -> None:
    for level, _ in chart.levels:
        axes.axhline(level, color=MUTED, linewidth=0.9, dashes=(4, 3))
    styles: dict[str, Any] = {"alarm": (ALARM, (3, 2)), "resume": (MUTED, (1, 2))}
    labels: dict[float, list[str]] = {}
    for mark in chart.marks:
        colour, dashes = styles[mark.kind]
        if mark.x not in labels:
            axes.axvline(mark.x, color=colour, linewidth=1.0, dashes=dashes)
        labels.setdefault(mark.x, []).append(mark.label)
    for x, names in labels.items():
        text = " ".join(names) if len(names) < 4 else f"{names[0]}…{names[-1]}"
        axes.text(
            x, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom",
            fontsize=7.5, color=MUTED if text.startswith("R") else ALARM,
        )  # fmt: skip
