"""Traces as JSON lines: one append per episode, and a reader that survives a crash.

An episode is one line, written by one `write` to a file opened for appending while an advisory lock
is held, so several threads and processes may share a file without tearing each other's lines. What
a kill or a full disk leaves behind is at most one torn line: a failed write is taken back, the next
writer starts a fresh line, and the reader skips and reports what is not JSON. Nothing is ever
rewritten.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgym.durable import LineFile
from agentgym.errors import TraceError
from agentgym.redaction import Redactor
from agentgym.trace import SCHEMA_VERSION, Trace
from agentgym.types import clean_json

logger = logging.getLogger(__name__)


class TraceWriter:
    """Appends traces to a file.

    Args:
        path: The file; it and its folder are made if missing.
        secrets: Values that must not reach the disk, beside those that `agentgym.redaction` knows
            of itself: the environment's credentials, and what has the form of a key.

    Raises:
        TraceError: If the file can't be opened for appending.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        self._redact = Redactor(secrets)
        self._file = LineFile(self.path)

    def write(self, trace: Trace) -> None:
        """Append one trace; when this returns, the line is in the file.

        Raises:
            TraceError: If it can't be written (disk full, …); the file then holds what it held.
        """
        self._file.append(self._redact(trace.to_json_line()).encode())

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TraceFile:
    """The traces of one file, in the order they were written.

    Iterate as often as needed; after a pass, `torn` holds the numbers of the lines that were no
    JSON, which is what a crash leaves behind.

    Args:
        path: A file made by `TraceWriter`.
        on_torn: Called with the line number of each torn line; by default it is logged.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, on_torn: Callable[[int], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.torn: tuple[int, ...] = ()
        self._on_torn = on_torn or self._log_torn

    def _log_torn(self, number: int) -> None:
        logger.warning("%s, line %d is torn and left out", self.path, number)

    def __iter__(self) -> Iterator[Trace]:
        """Read the traces.

        Raises:
            TraceError: If the file can't be read, has another schema version or is no trace file.
        """
        torn: list[int] = []
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    try:
                        values = json.loads(line)
                    except ValueError:
                        torn.append(number)
                        self._on_torn(number)
                        continue
                    yield self._trace(values, number)
        except OSError as error:
            raise TraceError(f"can't read {self.path}: {error.strerror or error}") from error
        finally:
            self.torn = tuple(torn)

    def _trace(self, values: Any, number: int) -> Trace:
        where = f"{self.path}, line {number}"
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version is None:
            raise TraceError(f"{where}: not a trace (no schema_version)")
        if version != SCHEMA_VERSION:
            raise TraceError(
                f"{where}: schema version {version!r}; this agentgym reads version {SCHEMA_VERSION}"
            )
        try:
            return Trace.model_validate(clean_json(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise TraceError(f"{where}: {field}: {first['msg']}") from error

    def latest(self) -> dict[tuple[str | None, int, str], Trace]:
        """The last trace of each (task, sample); a repeated attempt supersedes the earlier one.

        Traces that failed before a task was chosen have no such key and are kept one by one.
        """
        found: dict[tuple[str | None, int, str], Trace] = {}
        for trace in self:
            key = (trace.task_id, trace.sample, "" if trace.task_id else trace.trace_id)
            found.pop(key, None)
            found[key] = trace
        return found

    def finished(self, *, retry_masked: bool = False) -> set[tuple[str, int]]:
        """The (task_id, sample) pairs that need not run again.

        Args:
            retry_masked: Whether episodes without a score count as missing.
        """
        return {
            (trace.task_id, trace.sample)
            for trace in self.latest().values()
            if trace.task_id is not None and (trace.scored or not retry_masked)
        }


def read_traces(
    path: str | os.PathLike[str], *, on_torn: Callable[[int], None] | None = None
) -> Iterator[Trace]:
    """Read the traces of a file one by one; see `TraceFile`.

    Raises:
        TraceError: If the file can't be read, has another schema version or is no trace file.
    """
    return iter(TraceFile(path, on_torn=on_torn))
