"""Traces as JSON lines: one append per episode, and a reader that survives a crash.

An episode is one line, written by one `write` to a file opened for appending while an advisory lock
is held, so several threads and processes may share a file without tearing each other's lines. What
a kill or a full disk leaves behind is at most one torn line: a failed write is taken back, the next
writer starts a fresh line, and the reader skips and reports what is not JSON. Nothing is ever
rewritten.

A file may be larger than memory. Whoever only wants to know which episodes there are reads
`entries`, which makes no trace of any line; whoever wants the traces gets them one by one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from agentgym.durable import LineFile
from agentgym.errors import TraceError
from agentgym.redaction import Redactor
from agentgym.trace import CUT_BY_BUDGET, SCHEMA_VERSION, Trace
from agentgym.types import clean_json

T = TypeVar("T")
logger = logging.getLogger(__name__)

_TORN_LOGGED = 5  # of a file that was edited, every line may be


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


EpisodeKey: TypeAlias = tuple[str | None, int, str]
"""Task, sample, and "" where the task is known: what was never given a task has only its id."""


class Entry(NamedTuple):
    """What tells a line of a trace file from the others, without holding its trace."""

    offset: int
    """Where the line begins, bytes."""
    trace_id: str
    task_id: str | None
    sample: int
    seed: int | None
    group: str | None
    reward: float | None
    """None where it has no score."""
    cut_by_budget: bool = False
    """Whether it has none since the run's budget cut it off."""

    @property
    def scored(self) -> bool:
        """Whether it has a score."""
        return self.reward is not None

    @property
    def key(self) -> EpisodeKey:
        """The episode; the last of several lines with the same one counts."""
        return (self.task_id, self.sample, "" if self.task_id else self.trace_id)


class TraceFile:
    """The traces of one file, in the order they were written.

    Iterate as often as needed; after a pass, `torn` holds the numbers of the lines that were no
    JSON, which is what a crash leaves behind.

    Args:
        path: A file made by `TraceWriter`.
        on_torn: Called with the line number of each torn line; by default it is logged, once.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, on_torn: Callable[[int], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.torn: tuple[int, ...] = ()
        self._on_torn = on_torn or self._log_torn
        self._logged: set[int] = set()

    def _log_torn(self, number: int) -> None:
        if number in self._logged:
            return
        self._logged.add(number)
        if len(self._logged) <= _TORN_LOGGED:
            logger.warning("%s, line %d is torn and left out", self.path, number)
        elif len(self._logged) == _TORN_LOGGED + 1:
            logger.warning("%s has further torn lines, which are left out, too", self.path)

    def __iter__(self) -> Iterator[Trace]:
        """Read the traces.

        Raises:
            TraceError: If the file can't be read, has another schema version or is no trace file.
        """
        return (trace for _, trace in self._read(self._trace))

    def entries(self) -> Iterator[Entry]:
        """What tells the traces apart; a fraction of the time and memory of reading them.

        Raises:
            TraceError: As for reading the traces.
        """
        return (
            Entry(
                offset=offset,
                trace_id=outline.trace_id,
                task_id=outline.task_id,
                sample=outline.sample,
                seed=outline.seed,
                group=outline.group,
                reward=outline.verdict.reward,
                cut_by_budget=(outline.error or "").startswith(CUT_BY_BUDGET),
            )
            for offset, outline in self._read(self._outline)
        )

    def latest(self) -> dict[EpisodeKey, Entry]:
        """The last line of each episode; a repeated attempt supersedes the earlier one.

        Traces that failed before a task was chosen are episodes of their own.
        """
        found: dict[EpisodeKey, Entry] = {}
        for entry in self.entries():
            found.pop(entry.key, None)
            found[entry.key] = entry
        return found

    def with_successors(self) -> Iterator[tuple[Trace, str | None]]:
        """Each trace, and the id of the one that counts in its place; None if it counts itself.

        The successor of a trace has its id where the same conversation was judged again.

        Raises:
            TraceError: As for reading the traces.
        """
        last = {key: (entry.offset, entry.trace_id) for key, entry in self.latest().items()}
        for offset, trace in self._read(self._trace):
            key = (trace.task_id, trace.sample, "" if trace.task_id else trace.trace_id)
            end, successor = last.get(key, (offset, trace.trace_id))
            yield trace, None if offset >= end else successor

    def at(self, offset: int) -> Trace:
        """The trace whose line begins at an offset, as `Entry` has it.

        Raises:
            TraceError: If there is none, or it can't be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                line = file.readline()
            return self._trace(line, f"{self.path}, byte {offset}")
        except OSError as error:
            raise TraceError(f"can't read {self.path}: {error.strerror or error}") from error
        except _Torn as error:
            raise TraceError(f"{self.path}, byte {offset}: no JSON begins there") from error

    def finished(self, *, retry_masked: bool = False) -> set[tuple[str, int]]:
        """The (task_id, sample) pairs that need not run again.

        Args:
            retry_masked: Whether episodes without a score count as missing.
        """
        return {
            (entry.task_id, entry.sample)
            for entry in self.latest().values()
            if entry.task_id is not None
            and (entry.scored or not retry_masked)
            and not entry.cut_by_budget
        }

    # --- lines --------------------------------------------------------------------------------

    def _read(self, parse: Callable[[bytes, str], T]) -> Iterator[tuple[int, T]]:
        """Every line with its offset, as `parse` takes it."""
        torn: list[int] = []
        offset = 0
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    begin, offset = offset, offset + len(line)
                    if not line.strip():
                        continue
                    try:
                        found = parse(line, f"{self.path}, line {number}")
                    except _Torn:
                        torn.append(number)
                        self._on_torn(number)
                        continue
                    yield begin, found
        except OSError as error:
            raise TraceError(f"can't read {self.path}: {error.strerror or error}") from error
        finally:
            self.torn = tuple(torn)

    def _outline(self, line: bytes, where: str) -> _Outline:
        try:
            outline = _Outline.model_validate_json(_skimmed(line))
            if outline.schema_version == SCHEMA_VERSION:
                return outline
        except ValidationError:
            pass  # read the careful way, which says what is wrong
        return _Outline.model_validate(self._trace(line, where).model_dump())

    def _trace(self, line: bytes, where: str) -> Trace:
        try:
            trace = Trace.model_validate_json(line)
            if "schema_version" in trace.model_fields_set:
                return trace
        except ValidationError:
            pass  # as above; it also takes text that is no Unicode
        try:
            return _checked(json.loads(line), where)
        except (ValueError, RecursionError) as error:  # the latter: brackets by the hundred
            raise _Torn from error


class _Torn(Exception):
    """A line is no JSON."""


class _Verdict(BaseModel):
    reward: float | None


class _Outline(BaseModel):
    """The few fields of a trace that tell it from others."""

    schema_version: int
    trace_id: str
    task_id: str | None = None
    sample: int = 0
    seed: int | None = None
    group: str | None = None
    verdict: _Verdict
    error: str | None = None
    started_at: str
    """Comes after the verdict, so that a line that is torn there is no outline."""


def _skimmed(line: bytes) -> bytes:
    """A line without its middle, the conversation: the part that makes reading slow.

    The fields stand in the order of `Trace`, and inside a string every quote is escaped, so that
    what looks like a key is one. The last key `verdict` is the trace's, since nothing after it has
    keys of its own making. A line written otherwise comes back whole, or as what isn't JSON.
    """
    head, tail = line.find(b',"policy":'), line.rfind(b',"verdict":{')
    return line[:head] + line[tail:] if 0 < head < tail else line


def _checked(values: Any, where: str) -> Trace:
    """A trace from plain values.

    Raises:
        TraceError: If it has another schema version or is none; one line.
    """
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


def read_traces(
    path: str | os.PathLike[str], *, on_torn: Callable[[int], None] | None = None
) -> Iterator[Trace]:
    """Read the traces of a file one by one; see `TraceFile`.

    Raises:
        TraceError: If the file can't be read, has another schema version or is no trace file.
    """
    return iter(TraceFile(path, on_torn=on_torn))
