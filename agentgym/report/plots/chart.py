"""What a chart shows, without how it is drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["number", "share", "seconds", "dollars"]

MOST_SERIES = 6
"""Series that one chart can tell apart, by colour, dashes and marker."""


@dataclass(frozen=True)
class Point:
    """One measured value."""

    x: float
    y: float
    smooth: float | None = None
    """Mean of this value and its neighbours, where the series has a line of its own."""
    low: float | None = None
    """Lower end of the interval: of `smooth` if there is one, else of `y`."""
    high: float | None = None
    about: str = ""
    """What else there is to know of it, such as how many episodes it rests on."""


@dataclass(frozen=True)
class Series:
    """Values of one thing, by rising `x`."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Mark:
    """Something that happened at one `x`, such as an alarm."""

    x: float
    label: str
    """Short: it is written above the chart, `A1`."""
    kind: Literal["alarm", "resume"]


@dataclass(frozen=True)
class Chart:
    """One figure with all that a reader needs to read it."""

    key: str
    """Its anchor in a page, of letters, digits and dashes."""
    title: str
    about: str
    """What is shown, how many things it rests on, and what the band is."""
    series: tuple[Series, ...]
    """At most `MOST_SERIES`. None: there is nothing to draw, and `about` says why."""
    read: str = ""
    """How to read it, and what to do about what it may show."""
    x_label: str = "training step"
    y_label: str = ""
    unit: Unit = "number"
    kind: Literal["lines", "stack", "bars"] = "lines"
    """Values over `x`; parts of a whole over `x`; one bar per category."""
    categories: tuple[str, ...] = ()
    """Names of the bars: `x` is the index of one."""
    marks: tuple[Mark, ...] = ()
    levels: tuple[tuple[float, str], ...] = ()
    """Values to compare with, such as where an alarm begins, and what each is."""
    x_range: tuple[float, float] | None = None
    """What of the x axis is shown, so that the charts of a run can be compared; None fits it."""
    y_range: tuple[float, float] | None = None
    """None fits the values, with 0 in sight unless they are far from it."""
    y_ticks: tuple[tuple[float, str], ...] = ()
    """Where the y axis names rows instead of values."""


_PLAIN_NAME = re.compile(r"[ -~]{1,28}")


def names_its_rows(chart: Chart) -> bool:
    """Whether the bars' names are short and plain enough to stand in the plot."""
    return all(_PLAIN_NAME.fullmatch(name) for name in chart.categories)


def shown(value: float | None, unit: Unit) -> str:
    """A value as a reader takes it in."""
    if value is None:
        return "–"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "dollars":
        return f"${value:,.4f}" if abs(value) < 1 else f"${value:,.2f}"
    suffix = " s" if unit == "seconds" else ""
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}{suffix}"
    return f"{value:,.6g}{suffix}" if abs(value) < 1e5 else f"{value:,.0f}{suffix}"


def hover_text(chart: Chart, series: Series, point: Point) -> str:
    """What a point says when it is pointed at."""
    if chart.kind == "bars":
        where = chart.categories[int(point.x)]
    else:
        where = f"{chart.x_label.partition(' (')[0]} {point.x:g}"
    text = f"{where}, {series.name}: {shown(point.y, chart.unit)}"
    if point.low is not None and point.high is not None:
        ends = f"{shown(point.low, chart.unit)} to {shown(point.high, chart.unit)}"
        middle = "" if point.smooth is None else f"mean {shown(point.smooth, chart.unit)}, "
        text += f" ({middle}{ends})"
    return f"{text}; {point.about}" if point.about else text
