"""The documentation site: all has its place, nothing leads nowhere, nothing comes from outside.

Which pages there are and what the reference lists is read without building. One test builds the
site as `make docs` does, where every warning is an error, and looks at what came out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import agentgym

ROOT = Path(__file__).parent.parent
ELSEWHERE = re.compile(r"(https?:)?//")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


pages = script("docs_pages")
reference = script("docs_reference")


def uris(entry: object) -> list[str]:
    """The pages and folders of a navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry if isinstance(entry, list) else list(entry.values())  # type: ignore[attr-defined]
    return [uri for value in inner for uri in uris(value)]


def configured_menu() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return uris(yaml.safe_load(text)["nav"])


def test_every_page_is_in_the_menu_once() -> None:
    menu = configured_menu()
    assert len(menu) == len(set(menu))
    folders = tuple(uri for uri in menu if uri.endswith("/"))
    own = {path.relative_to(pages.DOCS).as_posix() for path in pages.DOCS.rglob("*.md")}
    made = {page.uri for page in pages.pulled() if page.title}
    assert own & made == set(), "a page of docs/ hides one that is pulled in"
    missing = {uri for uri in own | made if uri not in menu and not uri.startswith(folders)}
    assert missing == set(), "add it to the menu in mkdocs.yml"
    assert {uri for uri in menu if not uri.endswith("/")} - own - made == set()


def test_every_card_example_and_measurement_is_pulled_in() -> None:
    sources = {page.source for page in pages.pulled()}
    assert set((ROOT / "agentgym" / "envs").glob("*/README.md")) <= sources
    assert set((ROOT / "examples").glob("*.py")) <= sources
    assert set((ROOT / "benchmarks" / "results").glob("*.md")) <= sources


def links(text: str) -> str:
    sites = {
        ROOT / "docs" / "trl.md": "trl.md",
        ROOT / "examples" / "trl_script.py": "examples/trl_script.py.md",
    }
    source = ROOT / "docs" / "trl.md"
    return str(pages.with_site_links(text, source=source, uri="trl.md", sites=sites))


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("see [it](../examples/trl_script.py).", "see [it](examples/trl_script.py.md)."),
        ("[a\nb](trl.md#the-end)", "[a\nb](trl.md#the-end)"),
        ("[the `code`](../Makefile) here", "the `code` here"),
        ("[gone](../nowhere.md)", "[gone](../nowhere.md)"),
        ("![picture](../Makefile)", "![picture](../Makefile)"),
        ("[out](https://example.org/a)", "[out](https://example.org/a)"),
        ("[here](#below)", "[here](#below)"),
        ("```md\n[it](../Makefile)\n```\n", "```md\n[it](../Makefile)\n```\n"),
    ],
    ids=["page", "anchor", "not shown", "dead", "dead picture", "outside", "same page", "fence"],
)
def test_links_of_the_repository_become_links_of_the_site(text: str, turned: str) -> None:
    assert links(text) == turned


def exported() -> list[tuple[str, str]]:
    """Every name of every `__all__`, package by package, asked of Python itself."""
    found = []
    for path in sorted((ROOT / "agentgym").rglob("__init__.py")):
        if "__all__" in path.read_text(encoding="utf-8"):
            package = ".".join(path.relative_to(ROOT).parent.parts)
            found += [(package, name) for name in importlib.import_module(package).__all__]
    return [(package, name) for package, name in found if not name.startswith("__")]


def test_every_exported_name_has_an_entry() -> None:
    made = reference.reference_pages()
    assert ("agentgym", "AgentEnv") in exported()
    missing = []
    for package, name in exported():
        home = reference.home_of(package, name)
        whole = f"::: {home}\n"
        entry = f"::: {home}.{name}\n"
        if not any(whole in f"{text}\n" or entry in text for text in made.values()):
            missing.append(f"{package}.{name}")
    assert missing == []


def test_every_name_that_an_example_imports_has_an_entry() -> None:
    text = "\n".join(reference.reference_pages().values())
    imported = [
        reference.home_of(module, name)
        for module, name in reference.imported_by_examples(reference.pages_with_examples())
        if name and reference.file_of(f"{module}.{name}") is None
    ]
    assert imported
    assert {home for home in imported if f"::: {home}" not in text} == set()


def test_names_are_followed_to_where_they_are_defined() -> None:
    assert reference.home_of("agentgym", "Engine") == "agentgym.rollout.engine"
    assert agentgym.Engine.__module__ == "agentgym.rollout.engine"
    with pytest.raises(LookupError, match="agentgym has no name Motor"):
        reference.home_of("agentgym", "Motor")


def test_every_command_is_on_the_page_of_commands() -> None:
    from agentgym.cli import command_names

    page = reference.command_page()
    assert {name for name in command_names() if f"## agentgym {name}\n" not in page} == set()


class _Loaded(HTMLParser):
    """What a browser fetches for a page by itself; links that one clicks don't count."""

    FETCHING = frozenset({"script", "img", "iframe", "source", "video", "audio", "embed", "object"})

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.text: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in self.FETCHING:
            self.urls.append(given.get("src", given.get("data", "")))
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.urls.append(given["href"])
        self._in_script = tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.text.append(data)


def read_html(text: str) -> _Loaded:
    reader = _Loaded()
    reader.feed(text)
    return reader


def test_reader_tells_what_is_fetched_from_what_is_clicked() -> None:
    text = '<link rel="icon" href="a.png"><script src="//b/c.js"></script><a href="https://d">e</a>'
    read = read_html(text)
    assert read.urls == ["a.png", "//b/c.js"]
    assert read.text == ["e"]


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", *arguments, "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


@pytest.mark.thorough
def test_site_builds_without_a_warning_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    site = tmp_path / "site"
    result = build(site)
    assert result.returncode == 0, result.stdout
    built = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    shown = {page.uri for page in pages.pulled() if page.title} | set(reference.reference_pages())
    assert {uri for uri in shown if uri.removesuffix(".md") + ".html" not in built} == set()
    anchors = {
        anchor
        for path in (site / "reference").rglob("*.html")
        for anchor in re.findall(r'id="(agentgym\.[\w.]+)"', path.read_text(encoding="utf-8"))
    }
    entries = {f"{reference.home_of(package, name)}.{name}" for package, name in exported()}
    assert entries - anchors == set(), "give it a docstring"
    from_outside, raw = set(), set()
    for name, path in built.items():
        read = read_html(path.read_text(encoding="utf-8"))
        from_outside |= {(name, url) for url in read.urls if ELSEWHERE.match(url)}
        raw |= {name for text in read.text if "```" in text or ":::" in text}
    assert from_outside == set()
    assert raw == set(), "a fence or a reference that was not rendered"
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any(re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text) for text in styles)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("# A\n\n[b](gone.md)\n", "'gone.md'"),
        ("# A\n\n[b](index.md#gone)\n", "'index.md#gone'"),
        ("# A\n\n::: agentgym.Nothing\n", "agentgym.Nothing"),
    ],
    ids=["page", "anchor", "name"],
)
def test_what_leads_nowhere_fails_the_build(tmp_path: Path, page: str, complaint: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n", encoding="utf-8")
    (docs / "a.md").write_text(page, encoding="utf-8")
    config = f"""\
        INHERIT: {ROOT / "mkdocs.yml"}
        docs_dir: docs
        hooks: []
        watch: []
        nav: [index.md, a.md]
        """
    (tmp_path / "mkdocs.yml").write_text(textwrap.dedent(config), encoding="utf-8")
    result = build(tmp_path / "site", "-f", str(tmp_path / "mkdocs.yml"))
    assert result.returncode == 1
    assert complaint in result.stdout


def test_figures_of_the_comparison_are_the_measured_ones() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    part = text.partition("## Measured side by side")[2]
    figures = set(re.findall(r"\b\d+\.\d+\b", part)) - {"0.4"}  # a version
    results = ROOT / "benchmarks" / "results"
    measured = "".join(
        (results / name).read_text(encoding="utf-8") for name in ("side_by_side.md", "trl_loop.md")
    )
    assert len(figures) > 5
    assert {figure for figure in figures if not re.search(rf"\b{figure}\b", measured)} == set()
