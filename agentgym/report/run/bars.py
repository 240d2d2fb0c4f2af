"""Charts of a set of episodes: shares and means with their intervals, one bar per thing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from agentgym.report.plots.chart import Chart, Point, Series, Unit
from agentgym.statistics import Estimate, mean_estimate, share_estimate

BAR_TEXT = (
    "Lines across the bars' ends: 95 % intervals clustered by task (Wilson's for shares, t for "
    "means); none with fewer than two tasks, or where all are the same number."
)


def estimate_point(estimate: Estimate, *, about: str = "") -> Point:
    """A bar's end, with the interval if anything is known of the spread.

    Args:
        estimate: The figure.
        about: What it rests on; default: its episodes and tasks.
    """
    told = about or f"{estimate.n} episodes"
    told = f"{told}, {estimate.n_clusters} tasks"
    if estimate.n_clusters < 2 or estimate.low == estimate.high:  # which is no certainty
        return Point(x=0, y=estimate.mean, about=told)
    return Point(x=0, y=estimate.mean, low=estimate.low, high=estimate.high, about=told)


def share_point(hits: Sequence[bool], tasks: Sequence[Hashable]) -> Point:
    """A share of episodes.

    Args:
        hits: Shape `(n,)`, at least one.
        tasks: Shape `(n,)`, the task of each.
    """
    return estimate_point(share_estimate(hits, tasks), about=f"{sum(hits)} of {len(hits)} episodes")


def mean_point(values: Sequence[float], tasks: Sequence[Hashable]) -> Point:
    """A mean over episodes; see `share_point`."""
    return estimate_point(mean_estimate(values, tasks))


def bar_chart(
    key: str,
    title: str,
    bars: Mapping[str, Mapping[str, Point]],
    *,
    about: str,
    unit: Unit = "share",
    order: Sequence[str] = (),
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
        order: Of the rows, where that of the series won't do.
        **more: Further fields of the chart.
    """
    named = dict.fromkeys(name for each in bars.values() for name in each)
    rows = [name for name in order if name in named]
    rows += [name for name in named if name not in rows]
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
