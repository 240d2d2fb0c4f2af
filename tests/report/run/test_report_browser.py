"""The run report in a real Chromium: what it looks like and what it does behind one's back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from saved_runs import COLLAPSES, LEARNS, save
from synthetic_runs import HEALTHY, flat

from agentgym.report.run import report_page

pytestmark = pytest.mark.e2e

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for run in (LEARNS, COLLAPSES):
        found[run.name] = folder / f"{run.name}.html"
        found[run.name].write_text(report_page(run, now=NOW).html, encoding="utf-8")
    return found


def test_opens_from_disk_and_asks_nobody_for_anything(
    open_page: Callable[..., Any], pages: dict[str, Path]
) -> None:
    visit = open_page(pages["collapses"])
    assert visit.page.title() == "Training run collapses"
    assert visit.page.locator("figure svg[role=img]").count() > 20
    assert visit.page.locator("ul.alarms li").count() == 6
    visit.page.locator("nav a", has_text="Policy").click()
    assert visit.page.evaluate("location.hash") == "#policy"
    visit.assert_harmless()


def test_pictures_for_the_docs(open_page: Callable[..., Any], pages: dict[str, Path]) -> None:
    small = {"width": 1120, "height": 600}
    for run, section, name in (
        ("collapses", "alarms", "report-alarms"),
        ("learns", "learning", "report-learning"),
        ("collapses", "signal", "report-signal"),
    ):
        visit = open_page(pages[run], viewport=small)
        assert visit.page.locator("#fig-held-out svg[role=img]").is_visible()
        if name != "report-alarms":  # which shows the header, too
            visit.page.evaluate(f"document.querySelector('#{section}').scrollIntoView()")
        visit.screenshot(name)


def test_a_point_says_its_value_and_is_easily_met(
    open_page: Callable[..., Any], pages: dict[str, Path]
) -> None:
    page = open_page(pages["learns"]).page
    point = page.locator("#fig-reward .points use").nth(11)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    # A few pixels beside the middle of the marker are still the marker's.
    x, y = box["x"] + box["width"] / 2 + 4, box["y"] + box["height"] / 2
    said = page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y)?.querySelector('title')?.textContent", [x, y]
    )
    assert re.match(r"training step \d+, reward: 0\.\d+ \(mean 0\.", said)


def test_figures_stand_under_each_plot(
    open_page: Callable[..., Any], pages: dict[str, Path]
) -> None:
    page = open_page(pages["learns"]).page
    table = page.locator("#fig-reward table")
    assert not table.is_visible()
    page.locator("#fig-reward summary").focus()
    page.keyboard.press("Enter")  # by keyboard, too
    assert table.is_visible()
    assert page.locator("#fig-reward tbody tr").count() == 24


def test_dark_mode_turns_paper_ink_and_plots(
    open_page: Callable[..., Any], pages: dict[str, Path]
) -> None:
    seen = {}
    for dark in (False, True):
        visit = open_page(pages["learns"], dark=dark, viewport={"width": 1120, "height": 600})
        seen[dark] = visit.page.evaluate(
            """() => {
              const style = (q, name) => getComputedStyle(document.querySelector(q))[name];
              return [style('body', 'backgroundColor'), style('body', 'color'),
                      style('#fig-reward svg[role=img] text', 'fill'),
                      style('#fig-reward .points use', 'fill')];
            }"""
        )
        if dark:
            visit.page.evaluate("document.querySelector('#policy').scrollIntoView()")
            visit.screenshot("report-dark")
        visit.assert_harmless()
    assert seen[False] == [
        "rgb(255, 255, 255)", "rgb(34, 34, 34)", "rgb(34, 34, 34)", "rgb(0, 114, 178)"
    ]  # fmt: skip
    assert seen[True] == [
        "rgb(22, 22, 22)", "rgb(232, 232, 232)", "rgb(232, 232, 232)", "rgb(86, 180, 233)"
    ]  # fmt: skip


HOSTILE = (
    "<script>alert(1)</script>\"'><img src=http://evil.test/x onerror=alert(2)>"
    "</title></svg></style><style>*{display:none}</style> $\\frac{ \u202e\x00\x1b[31m\ud800"
)


def test_hostile_names_are_harmless(open_page: Callable[..., Any], tmp_path: Path) -> None:
    run = save(
        tmp_path / "x", replace(HEALTHY, gate=flat(0.9)), steps=6, eval_every=3,
        **{f"agentgym/components/{HOSTILE}": 0.5, f"agentgym/gates/{HOSTILE}": 1.0,
           f"agentgym/usage/{HOSTILE}/tokens_in": 7, f"agentgym/usage/{HOSTILE}/usd": 0.1},
    )  # fmt: skip
    config = {"env": HOSTILE, "model": HOSTILE, "env_kwargs": {HOSTILE: HOSTILE * 1000}}
    (run / "train.json").write_text(json.dumps(config))
    page = tmp_path / "x.html"
    page.write_text(report_page(run, now=NOW).html, encoding="utf-8")
    visit = open_page(page)
    assert visit.page.locator("script, img, iframe").count() == 0
    assert visit.page.locator("#fig-gates svg[role=img]").is_visible()
    assert "<script>alert(1)</script>" in visit.page.locator("#fig-gates .legend").inner_text()
    wide = visit.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0  # long names wrap
    visit.assert_harmless()


def test_fits_a_narrow_window(open_page: Callable[..., Any], pages: dict[str, Path]) -> None:
    visit = open_page(pages["collapses"], viewport={"width": 420, "height": 800})
    wide = visit.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0


def test_a_page_of_a_run_that_goes_on_is_read_anew(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    run = save(tmp_path / "x", HEALTHY, steps=1)
    (run / "train.json").write_text(json.dumps({"steps": 9}))
    file = tmp_path / "x.html"
    file.write_text(report_page(run, now=NOW, refresh_s=1).html, encoding="utf-8")
    visit = open_page(file)
    file.write_text(file.read_text().replace("1 of 9 steps", "2 of 9 steps"), encoding="utf-8")
    visit.page.get_by_text("2 of 9 steps").wait_for()
    visit.assert_harmless()
