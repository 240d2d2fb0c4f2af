"""Trace files as the viewer reads them: all there are, as far as they go, whatever else lies there.

A viewer is opened when something is odd, so nothing in a file stops it: a line that is torn, of
another version or no trace at all is left out and remarked upon. Files grow while a run goes on;
asked again, the reader goes on where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agentgym.errors import TraceError
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile
from agentgym.types import printable

_FAULTS_TOLD = 5
"""Per file; of one that was edited, every line may be faulty."""
_FOREIGN_LINES = 5
"""JSON lines of something else at a file's beginning, after which no trace is looked for."""
_TORN_LINES = 1_000
"""The same for lines that are no JSON: a crash or several writers may leave some in a row."""
_HEAD_BYTES = 256
"""Of a file's beginning, by which it is known again: a trace begins with its id."""
_STEP = re.compile(r"(step|eval|held-out)-?(\d+)")
_NO_TRACE = "not a trace"


class FileReplaced(Exception):
    """A file is no longer the one of which a part was read."""


class Line(NamedTuple):
    """One trace and where it is."""

    file: int
    """Position among `TraceFolder.files`."""
    offset: int
    """Where its line begins, bytes."""
    trace: Trace


class TraceFolder:
    """The trace files that some paths name.

    Args:
        paths: Files, or folders whose `*.jsonl` files are looked through, also in their folders.

    Raises:
        TraceError: If one isn't there.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self.files: list[GrowingFile] = []
        """Those that have traces so far, in the order in which they were found to."""
        self._known: dict[Path, GrowingFile] = {}
        self._found: dict[Path, Path] = {}
        for path in paths:
            if not path.exists():
                raise TraceError(f"no such file or folder: {path}")
        self._find()

    def news(self, *, whole: bool) -> Iterator[Line]:
        """The traces that were not read yet.

        Args:
            whole: Whether a last line without its line feed is taken as it is. Otherwise it waits:
                it may be half of what is being written.

        Raises:
            FileReplaced: If a file is another than before.
        """
        self._find()
        for file in self._known.values():
            number = file.number
            for offset, trace in file.news(whole=whole):
                if number is None:
                    number = file.number = len(self.files)
                    self.files.append(file)
                yield Line(number, offset, trace)

    @property
    def notes(self) -> list[str]:
        """What was left out, in words."""
        known = list(self._known.values())  # another thread may be finding files meanwhile
        return [note for file in known for note in file.notes()]

    @property
    def hopeless(self) -> bool:
        """Whether no file is one of traces, nor empty and perhaps about to be."""
        return all(file.why_foreign() for file in self._known.values())

    def why_empty(self) -> str:
        """Why there are no traces, where there are none."""
        where = ", ".join(str(path) for path in self._paths)
        if not self._known:
            return f"no traces in {where}: there is no *.jsonl file"
        told = [reason for file in self._known.values() if (reason := file.why_foreign())]
        if told:
            more = f"; and {len(told) - 3} more files" if len(told) > 3 else ""
            return f"no traces in {where}: {'; '.join(told[:3])}{more}"
        return f"no traces in {where}: no episode has finished yet, the files are empty"

    def _find(self) -> None:
        for path in self._paths:
            if not path.is_dir():
                name = str(path) if len(self._paths) > 1 else path.name
                self._add(path, name)
                continue
            prefix = "" if len(self._paths) == 1 else f"{path}/"
            for found in sorted(path.rglob("*.jsonl")):
                if found.is_file():
                    self._add(found, prefix + found.relative_to(path).as_posix())

    def _add(self, path: Path, name: str) -> None:
        """Take a file in, once: it may be named twice, or be linked to."""
        if path not in self._found:
            real = self._found[path] = path.resolve()
            if real not in self._known:
                self._known[real] = GrowingFile(path, printable(name))


class GrowingFile:
    """One file, read from where the last reading ended.

    Args:
        path: The file.
        name: What it is called on the page.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.number: int | None = None
        self._state: tuple[int, int] | None = None
        self._head = b""
        self._offset = 0
        self._lines = 0
        self._traces = 0
        self._faults = 0
        self._foreign_lines = 0
        self._told: list[tuple[int, str]] = []
        self._unfinished = False
        self._unreadable: str | None = None

    def facts(self) -> dict[str, str | int | None]:
        """What the page knows of it: its name, and the training step in it."""
        step = _STEP.search(self.path.name)
        return {"name": self.name, "step": int(step[2]) if step else None}

    def news(self, *, whole: bool) -> Iterator[tuple[int, Trace]]:
        """The traces after those already read, with the offsets of their lines.

        A file that can't be read has none, and a note: the others' traces come all the same.
        """
        if self._given_up:
            return
        try:
            about = self.path.stat()
            state = (about.st_size, about.st_mtime_ns)
            if state == self._state:
                return
            with self.path.open("rb") as lines:
                self._make_sure_of(lines, about.st_size)
                yield from self._read(lines, whole=whole)
            self._state, self._unreadable = state, None
        except OSError as error:
            self._unreadable = f"{self.name} can't be read: {error.strerror or error}"

    @property
    def _given_up(self) -> bool:
        if self._traces:
            return False
        return self._foreign_lines >= _FOREIGN_LINES or self._faults >= _TORN_LINES

    def _make_sure_of(self, lines: BinaryIO, size: int) -> None:
        """That it is the file that it was, and read on from where the last reading ended."""
        if size < self._offset or lines.read(len(self._head)) != self._head:
            raise FileReplaced(self.path)
        lines.seek(0)
        self._head = lines.read(min(_HEAD_BYTES, size))
        lines.seek(self._offset)

    def _read(self, lines: BinaryIO, *, whole: bool) -> Iterator[tuple[int, Trace]]:
        traces = TraceFile(self.path)
        for line in lines:
            self._unfinished = not line.endswith(b"\n")
            if self._unfinished and not whole:
                return
            offset, self._offset = self._offset, self._offset + len(line)
            self._lines += 1
            if not line.strip():
                continue
            try:
                trace = traces.at(offset)
            except TraceError as error:
                self._fault(str(error), offset)
                if self._given_up:
                    return
                continue
            self._traces += 1
            yield offset, trace

    def _fault(self, message: str, offset: int) -> None:
        self._faults += 1
        self._foreign_lines += _NO_TRACE in message
        if len(self._told) < _FAULTS_TOLD:
            reason = message.removeprefix(f"{self.path}, byte {offset}: ")
            torn = reason == "no JSON begins there"
            self._told.append((self._lines, "torn: no JSON" if torn else printable(reason[:300])))

    def notes(self) -> list[str]:
        """What was left out of a trace file; of a file of something else only if that is odd."""
        if reason := self.why_foreign():
            return [] if _NO_TRACE in reason else [reason]
        told = [f"{self.name}, line {line} is left out: {reason}" for line, reason in self._told]
        if self._faults > len(self._told):
            told.append(f"{self.name}: {self._faults - len(self._told)} more lines are left out")
        if self._unfinished and not self._told:
            told.append(f"{self.name}: its last line has no end: it is being written, or was cut")
        return told + ([self._unreadable] if self._unreadable else [])

    def why_foreign(self) -> str | None:
        """Why nothing in it is a trace; None if something is, or it is empty."""
        if self._traces:
            return None
        if self._told:
            line, reason = self._told[0]
            return f"{self.name} is no trace file (line {line}: {reason})"
        return self._unreadable
