"""The viewer as one HTML file that has the episodes in itself and works from disk, offline.

The index of the list is one deflated block; the episodes lie in further blocks of some hundred kB,
inflated when one of theirs is opened. Siblings share their prompts, so a block deflates better than
its episodes apart. The file is written block by block: as much is in memory as the index takes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import TraceError
from agentgym.report.single_file import page, why_no_page_may_replace
from agentgym.report.viewer.external import ExternalScores
from agentgym.report.viewer.pages import script, style
from agentgym.report.viewer.reading import TraceFolder
from agentgym.report.viewer.rows import COLUMNS, body_json, row_of
from agentgym.types import clean_text

BLOCK_CHARS = 400_000
"""JSON per block; a longer episode is a block of its own."""
_NO_SCRIPT = "<noscript>This page needs JavaScript; it runs its own only.</noscript>\n"


class Exported(NamedTuple):
    """What is in a written page."""

    episodes: int
    size: int
    """Bytes."""
    notes: tuple[str, ...]
    """What was left out."""


def write_page(paths: Sequence[Path], out: Path, *, title: str) -> Exported:
    """Write the episodes of some files and folders as a page.

    Args:
        paths: Trace files, or folders with some.
        out: The HTML file; replaced as a whole if it is a page. Its folder is made if missing.
        title: Plain text.

    Raises:
        TraceError: If there is no trace, `out` is a file of something else, or something can't be
            read or written.
    """
    folder = TraceFolder(paths)
    out = out.resolve()
    if (why := why_no_page_may_replace(out)) is not None:
        raise TraceError(why)
    content = _Content(folder)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                parts = page(title=title, style=style(), script=script(), body=content.blocks())
                file.writelines(parts)
            if not content.rows:
                raise TraceError(folder.why_empty())
            partial.replace(out)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
    except OSError as error:
        raise TraceError(f"can't write {out}: {error.strerror or error}") from error
    notes = (*folder.notes, *content.scores.notes)
    return Exported(len(content.rows), out.stat().st_size, notes)


class _Content:
    """The blocks of a page, and the index that grows meanwhile and comes last."""

    def __init__(self, folder: TraceFolder) -> None:
        self._folder = folder
        self.scores = ExternalScores()
        self.rows: list[list[Any]] = []

    def blocks(self) -> Iterator[str]:
        yield _NO_SCRIPT
        number, waiting, size = 0, list[str](), 0
        for line in self._folder.news(whole=True):
            body = body_json(line.trace)
            if waiting and size + len(body) > BLOCK_CHARS:
                yield _block(f"block-{number}", f"[{','.join(waiting)}]")
                number, waiting, size = number + 1, [], 0
            external = self.scores.of(self._folder.files[line.file].path, line.trace)
            row = row_of(line.trace, line.file, external)
            self.rows.append([*row, number, len(waiting)])
            waiting.append(body)
            size += len(body)
        yield _block(f"block-{number}", f"[{','.join(waiting)}]")
        index = {
            "columns": [*COLUMNS, "block", "place"],
            "rows": self.rows,
            "files": [file.facts() for file in self._folder.files],
            "notes": [clean_text(note) for note in (*self._folder.notes, *self.scores.notes)],
        }
        yield _block("index", json.dumps(index, separators=(",", ":")))


def _block(name: str, text: str) -> str:
    """JSON, deflated and in base64, in an element that no browser runs or shows."""
    data = base64.b64encode(zlib.compress(text.encode(), level=6)).decode()
    return f'<script type="text/plain" id="{name}">{data}</script>\n'
