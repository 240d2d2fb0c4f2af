"""Charts of a set of episodes: shares and means with their intervals, one bar per thing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from agentgym.report.plots.chart import Chart, Point, Series, Unit
from agentgym.statistics import mean_estimate, share_estimate

BAR_TEXT = (
    "Lines across the bars' ends: 95 % intervals clustered by task (Wilson's for shares, t for "
    "means); none with fewer than two tasks."
)


def share_point(row: int, hits: Sequence[bool], tasks: Sequence[Hashable]) -> Point:
    """A share of episodes.

    Args:
        row: Which bar.
        hits: Shape `(n,)`, at least one.
        tasks: Shape `(n,)`, the task of each.
    """
    found = share_estimate(hits, tasks)
    about = f"{sum(hits)} of {found.n} episodes, {found.n_clusters} tasks"
    if found.n_clusters < 2:
        return Point(x=row, y=found.mean, about=about)
    return Point(x=row, y=found.mean, low=found.low, high=found.high, about=about)


def mean_point(row: int, values: Sequence[float], tasks: Sequence[Hashable]) -> Point:
    """A mean over episodes; see `share_point`."""
    found = mean_estimate(values, tasks)
    about = f"{found.n} episodes, {found.n_clusters} tasks"
    if found.n_clusters < 2:
        return Point(x=row, y=found.mean, about=about)
    return Point(x=row, y=found.mean, low=found.low, high=found.high, about=about)


def bar_chart(
    key: str,
    title: str,
    bars: Mapping[str, Mapping[str, Point]],
    *,
    about: str,
    unit: Unit = "share",
    **more: Any,
) -> Chart:
    """A chart of bars.

    Args:
        key: The chart's anchor.
        title: Its heading.
        bars: Series to category to its value; rows are in the order of the first series' categories
            and of those that only later ones have.
        about: What is shown.
        unit: Of the values.
        **more: Further fields of the chart.
    """
    rows = list(dict.fromkeys(name for each in bars.values() for name in each))
    series = []
    for name, values in bars.items():
        points = [
            Point(x=rows.index(row), y=p.y, low=p.low, high=p.high, about=p.about)
            for row, p in values.items()
        ]
        series.append(Series(name, tuple(sorted(points, key=lambda point: point.x))))
    return Chart(
        key=key,
        title=title,
        about=about,
        series=tuple(each for each in series if each.points),
        unit=unit,
        kind="bars",
        categories=tuple(rows),
        **{"x_label": "", **more},
    )
