"""One self-contained HTML file with charts: no script, no request, nothing that isn't escaped.

What a run calls its components, gates, tasks and models may have been written by anyone. So every
text goes through `escaped`, and the page's policy (`agentgym.report.single_file`) forbids scripts,
foreign styles and connections altogether: its only style sheet is named by its hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from agentgym.report import single_file
from agentgym.report.plots.chart import Chart
from agentgym.report.plots.palette import variables_css
from agentgym.report.plots.svg import STYLE
from agentgym.report.run.figure import figure_html
from agentgym.report.run.markup import Table, escaped, table_html


@dataclass(frozen=True)
class Item:
    """Something to attend to, with what is said about it."""

    name: str
    where: str
    """Such as the step."""
    facts: Sequence[tuple[str, str]]
    over: bool = False
    """Whether it is a matter of the past."""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    title: str
    charts: Sequence[Chart] = ()
    items: Sequence[Item] = ()
    tables: Sequence[Table] = ()
    intro: str = ""


@dataclass(frozen=True)
class Page:
    """A page."""

    title: str
    status: tuple[str, str]
    """How it stands, in a word, and more about it."""
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    settings: str = ""
    """The whole configuration as text."""
    footer: str = ""
    refresh_s: int | None = None
    """Seconds after which a browser reads the file anew; None never."""
    missing: Sequence[str] = ()
    """What could be shown, were it in the files."""


def html(page: Page) -> str:
    """The page as one HTML document.

    Raises:
        MissingExtraError: If matplotlib isn't installed.
    """
    sheet = files("agentgym.report.run").joinpath("page.css").read_text(encoding="utf-8")
    return "".join(
        single_file.page(
            title=page.title,
            style=f"{variables_css()}{STYLE}{sheet}",
            body=_body(page),
            refresh_s=page.refresh_s,
        )
    )


def _body(page: Page) -> Iterator[str]:
    word, more = page.status
    yield f"<header>\n<h1>{escaped(page.title)}</h1>\n"
    yield f'<p class="status"><strong>{escaped(word)}</strong> {escaped(more)}</p>\n'
    yield _facts("facts", page.facts)
    for note in page.notes:
        yield f'<p class="notes">{escaped(note)}</p>\n'
    links = [f'<a href="#{s.key}">{escaped(s.title)}</a>' for s in page.sections]
    yield f'</header>\n<nav aria-label="Sections">{"".join(links)}</nav>\n<main>\n'
    for section in page.sections:
        yield from _section(section)
    yield "</main>\n"
    if page.settings:
        yield "<details><summary>All settings</summary>"
        yield f"<pre>{escaped(page.settings)}</pre></details>\n"
    if page.missing:
        yield f'<p class="notes">Not in the files: {escaped(", ".join(page.missing))}.</p>\n'
    yield f"<footer>{escaped(page.footer)}</footer>\n"


def _facts(kind: str, facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in facts if value
    )
    return f'<dl class="{kind}">{rows}</dl>\n' if rows else ""


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.key}">\n<h2>{escaped(section.title)}</h2>\n'
    if section.intro:
        yield f"<p>{escaped(section.intro)}</p>\n"
    if section.items:
        yield '<ul class="alarms">\n'
        for item in section.items:
            over = ' class="over"' if item.over else ""
            yield f"<li{over}><b>{escaped(item.name)}</b> {escaped(item.where)}"
            yield f"{_facts('said', item.facts)}</li>\n"
        yield "</ul>\n"
    for table in section.tables:
        yield f'<div class="scroll" tabindex="0">{table_html(table)}</div>\n'
    if section.charts:
        yield '<div class="charts">\n'
        for chart in section.charts:
            yield figure_html(chart)
        yield "</div>\n"
    yield "</section>\n"
