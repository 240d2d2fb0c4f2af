"""The pages of the documentation site that live elsewhere, and the links between all of them.

A text has one home. README and changelog, the environments' cards, the examples and the measured
results are pulled into the site from where they are; their links, written for the repository, are
turned into the site's when it is built.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^ *```[^\n]*\n.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


@dataclass(frozen=True)
class Pulled:
    """A file of the repository that is shown on the site.

    Attributes:
        uri: Where on the site, as mkdocs names sources: `envs/webshop.md`.
        source: The file.
        title: What the navigation calls it; empty for a picture.
    """

    uri: str
    source: Path
    title: str = ""

    def content(self) -> bytes:
        """What the site's file says: the file itself, or a page around a program."""
        if self.source.suffix in {".md", ".svg", ".png"}:
            return self.source.read_bytes()
        return _code_page(self.source).encode()


def pulled() -> list[Pulled]:
    """Every file of the repository outside docs/ that the site shows, in the order of its menu."""
    found = [
        Pulled("index.md", ROOT / "README.md", "Home"),
        Pulled("changelog.md", ROOT / "CHANGELOG.md", "Changelog"),
    ]
    cards = sorted((ROOT / "agentgym" / "envs").glob("*/README.md"))
    found += [Pulled(f"envs/{card.parent.name}.md", card, _title(card)) for card in cards]
    examples = sorted(p for p in (ROOT / "examples").iterdir() if p.suffix in {".py", ".toml"})
    found += [Pulled(f"examples/{path.name}.md", path, path.name) for path in examples]
    results = ROOT / "benchmarks" / "results"
    pages, pictures = sorted(results.glob("*.md")), sorted(results.glob("*.svg"))
    found += [Pulled(f"measurements/{page.name}", page, _title(page)) for page in pages]
    found += [Pulled(f"measurements/{picture.name}", picture) for picture in pictures]
    return found


def menu(folder: str) -> list[dict[str, str]]:
    """The navigation of the pages pulled into a folder of the site: title to uri."""
    inside = (p for p in pulled() if p.title and p.uri.startswith(folder))
    return [{page.title: page.uri} for page in inside]


def site_sources() -> dict[Path, str]:
    """Where on the site each file of the repository is."""
    own = {path: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()}
    return own | {page.source: page.uri for page in pulled()}


def with_site_links(text: str, *, source: Path, uri: str, sites: Mapping[Path, str]) -> str:
    """Turn links between files of the repository into links between pages of the site.

    A link to a file that the site doesn't show loses its link and keeps its text. One that leads
    nowhere stays as it is, for mkdocs to complain about.

    Args:
        text: Markdown.
        source: The file it is from; its links are relative to it.
        uri: Where on the site it is.
        sites: As `site_sources` gives it.
    """

    def turned(match: re.Match[str]) -> str:
        path = match["path"]
        if "://" in path or path.startswith("mailto:"):
            return match[0]
        target = Path(os.path.normpath(source.parent / path))
        if target in sites:
            there = os.path.relpath(sites[target], PurePosixPath(uri).parent)
            return f"{match['image']}[{match['text']}]({there}{match['anchor'] or ''})"
        return match["text"] if target.exists() and not match["image"] else match[0]

    return "".join(_outside_fences(text, lambda part: _LINK.sub(turned, part)))


def _outside_fences(text: str, change: Callable[[str], str]) -> Iterator[str]:
    at = 0
    for fence in _FENCE.finditer(text):
        yield change(text[at : fence.start()])
        yield fence[0]
        at = fence.end()
    yield change(text[at:])


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("# ").strip()


def _code_page(program: Path) -> str:
    text = program.read_text(encoding="utf-8")
    name = program.relative_to(ROOT).as_posix()
    about = ""
    if program.suffix == ".py":
        about = (ast.get_docstring(ast.parse(text)) or "").split("\n\n", 1)[0]
    language = {".py": "python", ".toml": "toml"}[program.suffix]
    # Four backticks: a docstring may hold three.
    return f"# {program.name}\n\n{about}\n\n````{language} title={name!r}\n{text}````\n"
