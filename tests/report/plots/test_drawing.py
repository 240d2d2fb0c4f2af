from __future__ import annotations

import re
import sys
from dataclasses import replace

import matplotlib as mpl
import pytest
from parsed import assert_inert, parse

from agentgym.errors import MissingExtraError
from agentgym.report.plots.chart import Chart, Mark, Point, Series, hover_text, shown
from agentgym.report.plots.drawing import draw, tick_text
from agentgym.report.plots.palette import DARK, LIGHT, SERIES
from agentgym.types import printable

LINE = Series(
    "reward", tuple(Point(x, x / 10, x / 10, x / 10 - 0.1, x / 10 + 0.1) for x in range(1, 9))
)
CHART = Chart("reward", "Reward", "What it is.", (LINE,), marks=(Mark(3, "A1", "alarm"),))
BARS = Chart(
    "bars", "Bars", "About.",
    (Series("solved", (Point(0, 0.5, low=0.4, high=0.6), Point(1, 0.0))),),
    kind="bars", unit="share", categories=("plain", "$x$ <b>\u202e"),
)  # fmt: skip
STACK = Chart(
    "time", "Time", "About.", (LINE, replace(LINE, name="judge")), kind="stack", unit="seconds"
)


@pytest.mark.parametrize("chart", [CHART, BARS, STACK], ids=lambda chart: chart.kind)
def test_every_point_says_its_value_when_pointed_at(chart: Chart) -> None:
    svg = parse(draw(chart))
    groups = svg.all("g", **{"class": "points"})
    for series, group in zip(chart.series, groups, strict=True):
        said = [title.text for title in group.all("title")]
        assert said == [printable(hover_text(chart, series, point)) for point in series.points]
        assert len(group.all("use")) == len(series.points)


def test_hover_texts_have_value_interval_and_what_they_rest_on() -> None:
    assert hover_text(CHART, LINE, LINE.points[1]) == (
        "training step 2, reward: 0.2 (mean 0.2, 0.1 to 0.3)"
    )
    point = Point(0, 0.25, low=0.1, high=0.5, about="3 tasks")
    assert (
        hover_text(BARS, BARS.series[0], point) == "plain, solved: 25.0% (10.0% to 50.0%); 3 tasks"
    )


@pytest.mark.parametrize("chart", [CHART, BARS, STACK], ids=lambda chart: chart.kind)
def test_plot_is_inert_described_and_has_text_as_text(chart: Chart) -> None:
    page = parse(draw(chart))
    assert_inert(page)
    (svg,) = page.all("svg")
    assert svg.attributes["role"] == "img"
    assert [svg.children[i].tag for i in (0, 1)] == ["title", "desc"]
    assert [svg.children[i].text for i in (0, 1)] == [chart.title, chart.about]
    assert any("training step" in text.text for text in svg.all("text")) or chart is BARS


def test_colours_are_the_pages_matter() -> None:
    svg = draw(CHART)
    for colour in re.findall(r'(?:fill|stroke)="([^"]*)"', svg):
        assert colour == "none" or re.fullmatch(r"var\(--[a-z0-9]+, #[0-9a-f]{6}\)", colour)
    assert f"var(--s0, {SERIES[0]})" in svg
    assert LIGHT.keys() == DARK.keys()


def test_colours_can_be_told_from_the_paper() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        lin = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    for theme in (LIGHT, DARK):
        for name in ("ink", "muted", "alarm", *(f"s{i}" for i in range(6))):
            ends = sorted((luminance(theme[name]), luminance(theme["paper"])))
            contrast = (ends[1] + 0.05) / (ends[0] + 0.05)
            assert contrast >= (4.5 if name in ("ink", "muted", "alarm") else 3.0), (name, contrast)


def test_same_chart_gives_same_bytes_whatever_the_users_settings() -> None:
    before = draw(CHART)
    with mpl.rc_context({"axes.grid": False, "font.size": 30, "svg.fonttype": "path"}):
        assert draw(CHART) == before
    assert mpl.rcParams["svg.fonttype"] == "path"  # and leaves them alone


def test_names_of_strangers_reach_no_formula_and_no_markup() -> None:
    hostile = r"$\frac{" + "</title><script>alert(1)</script>"
    svg = draw(replace(CHART, series=(replace(LINE, name=hostile),), title=hostile))
    page = parse(svg)
    assert_inert(page)
    assert hostile in page.all("title")[0].text
    # With one name that is not plain, no name is drawn.
    assert [t.text for t in parse(draw(BARS)).all("text")][-2:] == ["1", "2"]


def test_alone_it_brings_legend_and_colours() -> None:
    two = replace(CHART, series=(LINE, replace(LINE, name="other")))
    alone = parse(draw(two, alone=True))
    assert "prefers-color-scheme:dark" in alone.all("style")[0].text
    assert {"reward", "other"} <= {text.text for text in alone.all("text")}


def test_one_point_and_equal_values_can_be_drawn() -> None:
    for values in ([(1, 0.0)], [(1, 1.0), (2, 1.0)], [(1, 1e12)], [(5, -3.0)]):
        series = Series("x", tuple(Point(x, y) for x, y in values))
        assert parse(draw(replace(CHART, series=(series,), marks=()))).all("use")


@pytest.mark.parametrize("value", [5.0, -3e30, 3.4e38, 1e-300])
def test_values_that_make_no_sense_are_drawn_all_the_same(value: float) -> None:
    series = Series("x", (Point(1, value), Point(2, -value), Point(3, 0.5)))
    for chart in (
        replace(CHART, series=(series,), unit="share", y_range=(0.0, 1.0)),
        replace(STACK, series=(series, series)),
        replace(BARS, series=(replace(series, points=series.points[1:2]),), categories=("a",) * 3),
    ):
        assert parse(draw(chart)).all("g", **{"class": "points"})


def test_more_series_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="7 series, at most 6"):
        draw(replace(CHART, series=(LINE,) * 7))


@pytest.mark.parametrize(
    ("value", "unit", "range_", "text"),
    [
        (0.25, "share", 1.0, "25%"), (1500000, "number", 2e6, "1.5M"), (0.0, "number", 1.0, "0"),
        (25000, "number", 1e5, "25k"), (0.5, "dollars", 1.0, "$0.5"), (1e-20, "number", 1.0, "0"),
        (1.000005, "number", 1e-5, "1.000005"), (0.75, "number", 1.0, "0.75"),
    ],
)  # fmt: skip
def test_ticks_are_short_and_differ(value: float, unit: str, range_: float, text: str) -> None:
    assert tick_text(value, unit, range_) == text


def test_values_are_shown_with_their_unit() -> None:
    assert shown(None, "share") == "–"
    assert shown(0.1234, "share") == "12.3%"
    assert shown(0.00012, "dollars") == "$0.0001"
    assert shown(1234.5, "dollars") == "$1,234.50"
    assert shown(3.0, "seconds") == "3 s"
    assert shown(123456.7, "number") == "123,457"


def test_without_matplotlib_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r'pip install "agentgym-envs\[report\]"'):
        draw(CHART)
