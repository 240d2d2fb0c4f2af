"""Trace files as the viewer reads them: all there are, as far as they go, whatever else lies there.

A viewer is opened when something is odd, so nothing in a file stops it: a line that is torn, of
another version or no trace at all is left out and remarked upon. Files grow while a run goes on;
asked again, the reader goes on where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agentgym.errors import TraceError
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile
from agentgym.types import printable

_FAULTS_TOLD = 5
"""Per file; of one that was edited, every line may be faulty."""
_FAULTS_OF_FOREIGN = 5
"""Faulty lines at a file's beginning, and no trace among them, after which it is no trace file."""
_STEP = re.compile(r"(step|eval|held-out)-?(\d+)")
_NO_TRACE = "not a trace"


class FileReplaced(Exception):
    """A file is shorter than what was read of it, so that it is another one now."""


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
            TraceError: If a file can't be read.
            FileReplaced: If one is another than before.
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
        return all(file.foreign for file in self._known.values())

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
        if path not in self._known:
            self._known[path] = GrowingFile(path, printable(name))


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
        self._offset = 0
        self._lines = 0
        self._traces = 0
        self._faults = 0
        self._told: list[tuple[int, str]] = []
        self._unfinished = False

    def facts(self) -> dict[str, str | int | None]:
        """What the page knows of it: its name, and the training step in it."""
        step = _STEP.search(self.path.name)
        return {"name": self.name, "step": int(step[2]) if step else None}

    @property
    def foreign(self) -> bool:
        """Whether it seems to be a file of something else."""
        return not self._traces and self._faults >= min(_FAULTS_OF_FOREIGN, max(1, self._lines))

    def news(self, *, whole: bool) -> Iterator[tuple[int, Trace]]:
        """The traces after those already read, with the offsets of their lines."""
        if not self._traces and self._faults >= _FAULTS_OF_FOREIGN:
            return
        try:
            if self.path.stat().st_size < self._offset:
                raise FileReplaced(self.path)
            traces = TraceFile(self.path)
            with self.path.open("rb") as lines:
                lines.seek(self._offset)
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
                        if not self._traces and self._faults >= _FAULTS_OF_FOREIGN:
                            return
                        continue
                    self._traces += 1
                    yield offset, trace
        except OSError as error:
            raise TraceError(f"can't read {self.path}: {error.strerror or error}") from error

    def _fault(self, message: str, offset: int) -> None:
        self._faults += 1
        if len(self._told) < _FAULTS_TOLD:
            reason = message.removeprefix(f"{self.path}, byte {offset}: ")
            torn = reason == "no JSON begins there"
            self._told.append((self._lines, "torn: no JSON" if torn else printable(reason[:300])))

    def notes(self) -> list[str]:
        """What was left out of a trace file; of a file of something else only if that is odd."""
        if self.foreign:
            reason = self.why_foreign()
            return [reason] if reason and _NO_TRACE not in reason else []
        told = [f"{self.name}, line {line} is left out: {reason}" for line, reason in self._told]
        if self._faults > len(self._told):
            told.append(f"{self.name}: {self._faults - len(self._told)} more lines are left out")
        if self._unfinished and not self._told:
            told.append(f"{self.name}: its last line has no end: it is being written, or was cut")
        return told

    def why_foreign(self) -> str | None:
        """Why it is no trace file; None if it is one, or empty."""
        if not self.foreign:
            return None
        line, reason = self._told[0]
        return f"{self.name} is no trace file (line {line}: {reason})"
