"""The episodes that a served page shows: rows in memory, conversations on disk.

A thread reads the files, at the start and whenever a page asks for news, and appends rows. What a
page has already got stays as it is; where a file was replaced, or an evaluation's result was
written, the `generation` changes and the page begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import TraceError
from agentgym.report.viewer.external import ExternalScores
from agentgym.report.viewer.reading import FileReplaced, TraceFolder
from agentgym.report.viewer.rows import COLUMNS, body_json, conversation_texts, row_of
from agentgym.traces.jsonl import TraceFile

ROWS_AT_ONCE = 5_000
SEARCH_SLICE_S = 0.5
"""How long one request searches, so that the page can tell how far it is, or stop."""
_REST_S = 0.5
"""Between two readings."""


class Shelf:
    """Rows and bodies of the episodes of some paths; threads may share it.

    Args:
        paths: Trace files, or folders with some.

    Raises:
        TraceError: If one isn't there, or none has traces or is an empty file that may get some.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._folder = _folder_with_traces(self._paths)
        self._scores = ExternalScores()
        self._lock = threading.Lock()
        self._generation = time.time_ns() // 1_000  # so another viewer's page begins anew
        self._rows: list[list[Any]] = []
        self._places: list[tuple[Path, int]] = []
        self._fault: str | None = None
        self._reading = True
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading, name="viewer", daemon=True)

    def start(self) -> None:
        """Read the files from now on."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """Read no longer."""
        self._closed.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    # --- what a page asks ---------------------------------------------------------------------

    def rows(self, generation: int | None, after: int) -> dict[str, Any]:
        """Rows that a page hasn't got yet, and how things stand.

        Args:
            generation: The page's; None if it has none.
            after: Rows that it has.
        """
        self._wanted.set()
        with self._lock:
            begin = max(0, after) if generation == self._generation else 0
            rows = self._rows[begin : begin + ROWS_AT_ONCE]
            return {
                "generation": self._generation,
                "columns": COLUMNS,
                "rows": rows,
                "more": begin + len(rows) < len(self._rows),
                "files": [file.facts() for file in self._folder.files],
                "notes": [
                    *self._folder.notes,
                    *self._scores.notes,
                    *([self._fault] if self._fault else []),
                ],
                "reading": self._reading,
            }

    def body(self, generation: int, row: int) -> str:
        """One episode as JSON.

        Raises:
            TraceError: If there is no such row any more, or its file can't be read.
        """
        path, offset = self._place(generation, row)
        return body_json(TraceFile(path).at(offset))

    def search(self, generation: int, text: str, after: int) -> dict[str, Any]:
        """Rows whose conversation has a text, upper or lower case, as far as half a second goes.

        Raises:
            TraceError: If the rows are others now.
        """
        wanted, found, row = text.lower(), list[int](), after
        until = time.monotonic() + SEARCH_SLICE_S
        with self._lock:
            end = len(self._places)
        while row < end and (row == after or time.monotonic() < until):
            path, offset = self._place(generation, row)
            if self._has(path, offset, wanted):
                found.append(row)
            row += 1
        return {"rows": found, "next": max(row, after + 1)}

    def _has(self, path: Path, offset: int, wanted: str) -> bool:
        try:
            trace = TraceFile(path).at(offset)
        except TraceError:  # deleted since, which a note says; the others can be searched
            return False
        return any(wanted in part.lower() for part in conversation_texts(trace))

    def _place(self, generation: int, row: int) -> tuple[Path, int]:
        with self._lock:
            if generation != self._generation or not 0 <= row < len(self._places):
                raise TraceError("the files are others by now; load the page again")
            return self._places[row]

    # --- reading ------------------------------------------------------------------------------

    def _keep_reading(self) -> None:
        while self._wanted.wait() and not self._closed.is_set():
            self._wanted.clear()
            try:
                self.read()
            except Exception as error:  # the page says so, rather than wait for ever
                self._fault = f"the reading stumbled: {type(error).__name__}: {error}"
            self._reading = False
            self._closed.wait(_REST_S)

    def read(self) -> None:
        """Take in what the files have gained."""
        if self._scores.stale:  # an evaluation writes its result when its episodes are over
            self._begin_anew()
        try:
            for line in self._folder.news(whole=False):
                if self._closed.is_set():
                    return
                path = self._folder.files[line.file].path
                row = row_of(line.trace, line.file, self._scores.of(path, line.trace))
                with self._lock:
                    self._rows.append(row)
                    self._places.append((path, line.offset))
        except FileReplaced:
            self._begin_anew()
            self.read()

    def _begin_anew(self) -> None:
        with self._lock:
            self._folder = TraceFolder(self._paths)
            self._scores = ExternalScores()
            self._generation += 1
            self._rows, self._places = [], []


def _folder_with_traces(paths: Sequence[Path]) -> TraceFolder:
    looked_at = TraceFolder(paths)
    if next(looked_at.news(whole=False), None) is None and looked_at.hopeless:
        raise TraceError(looked_at.why_empty())
    return TraceFolder(paths)
