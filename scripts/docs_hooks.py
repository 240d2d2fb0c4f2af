"""What mkdocs calls while it builds the site: adds the pages that aren't files in docs/.

`mkdocs.yml` names the menu. Where a section's entry ends in a slash (`Examples: examples/`), the
pages are those that are made or pulled in under that folder.
"""

from __future__ import annotations

import os
from typing import Any

import docs_pages
import docs_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the menus of the folders."""
    config.nav = [_filled(entry) for entry in config.nav or []]
    return config


def _filled(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_filled(inner) for inner in value]}
    if value == "reference/":
        return {title: docs_reference.reference_menu()}
    if value.endswith("/"):
        return {title: docs_pages.menu(value)}
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is pulled in and what is made."""
    for page in docs_pages.pulled():
        files.append(File.generated(config, page.uri, content=page.content()))
    for uri, text in docs_reference.reference_pages().items():
        files.append(File.generated(config, uri, content=text))
    # Help is wrapped at the terminal's width, of which a site has none.
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        help_page = docs_reference.command_page()
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns
    files.append(File.generated(config, "reference/cli.md", content=help_page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the repository's links into the site's; guides are found before names and figures."""
    if page.file.src_uri.startswith(("reference/", "measurements/", "changelog")):
        page.meta.setdefault("search", {"boost": 0.1})
    sites = docs_pages.site_sources()
    sources = {uri: source for source, uri in sites.items()}
    uri = page.file.src_uri
    if uri not in sources:  # made: its links are the site's already
        return markdown
    return docs_pages.with_site_links(markdown, source=sources[uri], uri=uri, sites=sites)
