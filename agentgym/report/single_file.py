"""A page that is one file: its own style and script, nothing from elsewhere, nobody else's script.

What models and tools wrote ends up in these pages, so the page's policy trusts nothing but the
script and the style that were hashed when it was written: no other script runs, whatever markup
slipped in, and nothing is loaded from anywhere. `require-trusted-types-for` makes a browser refuse
text as markup even from our own script.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentgym.types import clean_text, printable


def why_no_page_may_replace(path: Path) -> str | None:
    """What speaks against writing a page there, such as a run's metrics; None if nothing."""
    if path.exists() and not path.is_file():
        return f"can't write a page to {path}: it is no file"
    try:
        with path.open("rb") as file:
            begin = file.read(15)
    except OSError:
        return None  # not there; or the writing says what is wrong
    if begin and begin.lower() != b"<!doctype html>":
        return f"{path} is there and no HTML page; name another file for the page"
    return None


def content_security_policy(*, style: str, script: str, served: bool = False) -> str:
    """The policy of a page with one inline style and one inline script.

    Args:
        style: Text of the style element, to the byte.
        script: Text of the script element, to the byte; "" where there is none.
        served: Whether the page may ask the server that it came from.
    """
    parts = [
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'" if script else "script-src 'none'",
        "img-src data:",  # the empty icon, for which a browser would ask otherwise
        "connect-src 'self'" if served else "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return "; ".join(parts)


def page_head(
    *, title: str, style: str, script: str = "", served: bool = False, refresh_s: int | None = None
) -> str:
    """A page up to its body, whose tag is open; the script runs once the page is complete or cut.

    Args:
        title: Plain text.
        style: CSS.
        script: JavaScript that waits for `DOMContentLoaded` itself.
        served: Whether it comes from a server that it may ask for more, rather than from disk.
        refresh_s: Seconds after which the browser reads the page anew; None never.
    """
    refresh = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    policy = content_security_policy(style=style, script=script, served=served)
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"{" data-served" if served else ""}>',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
            refresh,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{html.escape(printable(clean_text(title)))}</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{style}</style>",
            f"<script>{script}</script>" if script else "",
            "</head>",
            "<body>",
            "",
        ]
    )


def page(
    *,
    title: str,
    style: str,
    script: str = "",
    body: Iterable[str] = (),
    served: bool = False,
    refresh_s: int | None = None,
) -> Iterator[str]:
    """A whole page, in parts; `body` is markup in which every text is escaped already."""
    yield page_head(title=title, style=style, script=script, served=served, refresh_s=refresh_s)
    yield from body
    yield "</body>\n</html>\n"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
