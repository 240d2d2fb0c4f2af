"""The page that lists the service's requests, for people.

FastAPI's own is Swagger UI from a content delivery network: a blank page on a cluster that reaches
nothing outside, and a script of somebody else's on the page of a service with tokens. This one is
plain HTML without a script, made from the same OpenAPI schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """\
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem; }
code { font-size: 1rem; }
dt { margin-top: 1rem; }
pre { white-space: pre-wrap; font: inherit; margin: 0; }
"""


def request_page(schema: Mapping[str, Any], *, schema_url: str) -> str:
    """The page.

    Args:
        schema: The OpenAPI schema.
        schema_url: Where it is served, for generators of clients.

    Returns:
        HTML that refers to nothing but the schema.
    """
    about = schema["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).append(_entry(method, path, operation))
    lists = "".join(
        f"<h2>{escape(tag)}</h2>\n<dl>\n{''.join(entries)}</dl>\n"
        for tag, entries in by_tag.items()
    )
    title = escape(f"{about['title']} {about['version']}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        f"<pre>{escape(about['description'])}</pre>\n"
        f'<p>Every field is in the <a href="{escape(schema_url)}">OpenAPI schema</a>.</p>\n'
        f"{lists}</body></html>\n"
    )


def _entry(method: str, path: str, operation: Mapping[str, Any]) -> str:
    name = escape(f"{method.upper()} {path}")
    text = escape(operation.get("description", operation.get("summary", "")))
    return f"<dt><code>{name}</code></dt>\n<dd><pre>{text}</pre></dd>\n"
