"""The script and style of the viewer: small files, one idea each, put together for the page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SCRIPTS = (
    "dom.js",
    "format.js",
    "text.js",
    "query.js",
    "store.js",
    "list.js",
    "turn.js",
    "verdict.js",
    "episode.js",
    "compare.js",
    "keys.js",
    "main.js",
)
"""In this order: a file uses those before it while it is being read."""


@cache
def style() -> str:
    """The page's CSS."""
    return _asset("viewer.css")


@cache
def script() -> str:
    """The page's JavaScript, which starts when the document is there."""
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return (
        '"use strict";\ndocument.addEventListener("DOMContentLoaded", () => {\n' + parts + "\n});\n"
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
