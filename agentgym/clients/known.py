"""The calls that a recording holds already, for a run that goes on with it.

An episode that was cut in the middle asks, when it is played again, what it asked before: the same
messages, the same parameters, the same seed. Those answers are paid for, so they are given again
from the file, each once, and only what lies beyond them is sent.

Money is told once. A call that was made before a trace of its episode was written is in that
trace's usage; whoever continues says how many those are, and they are given without being charged.
What several traces share the cost of, some of which may not be written yet, is told of in part; the
rest is charged.
Every other call is charged to the episode that continues: when its answer is given, when it failed
and is made anew, or, if nobody asks for it any more, when the episode's turns are over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentgym.errors import DataError
from agentgym.metering import add_by_role
from agentgym.types import Usage

VERSIONS = (1, 2)
"""Of a recording's lines that are read; 2 has calls that were made in place of failed ones."""


class _Anything(BaseModel):
    """A part of a line that is skipped unread."""


class _Line(BaseModel):
    """What must be known of a recorded call to find it again."""

    recording: int
    run: str
    role: str
    episode: str
    k: int
    request: str
    model: str | None = None
    completion: _Anything | None = None
    instead_of: tuple[int, ...] = ()


@dataclass
class _Call:
    """One recorded call, by its place in the file."""

    offset: int
    episode: str
    k: int
    request: str
    model: str | None
    answered: bool
    given: bool = False
    charged: bool = False


@dataclass(frozen=True)
class Known:
    """A recorded answer, and what the recorded calls cost that nobody has been charged for yet."""

    completion: dict[str, Any]
    spent: dict[str, Usage]


class KnownCalls:
    """What a file held before this run.

    Args:
        path: A recording, which may not exist yet.
        wanted: Whether an episode, by its name, may be continued; the others aren't looked at.
        counted: By episode and role, how many of the first calls are in a trace's usage already.
        told: By episode and role, how much of what its calls cost is, where it isn't whole calls.

    Raises:
        DataError: If it can't be read or is no recording.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wanted: Callable[[str], bool] | None = None,
        counted: Mapping[str, Mapping[str, int]] | None = None,
        told: Mapping[str, Mapping[str, Usage]] | None = None,
    ) -> None:
        self.path = Path(path)
        self._calls: dict[str, dict[str, list[_Call]]] = {}
        self._runs: dict[tuple[str, str], str] = {}
        self._told = {episode: dict(usage) for episode, usage in (told or {}).items()}
        counted = counted or {}
        for offset, line in self._lines():
            if wanted is not None and not wanted(line.episode):
                continue
            calls = self._calls.setdefault(line.episode, {}).setdefault(line.role, [])
            place = (line.role, line.episode)
            if self._runs.get(place) != line.run:  # recorded anew: the last time counts
                self._runs[place] = line.run
                calls.clear()
            answered = line.completion is not None
            call = _Call(offset, line.episode, line.k, line.request, line.model, answered)
            call.charged = line.k < counted.get(line.episode, {}).get(line.role, 0)
            for earlier in calls:
                earlier.given |= earlier.k in line.instead_of
            calls.append(call)

    def run_of(self, role: str, episode: str) -> str | None:
        """The run that the role's calls of an episode belong to; None if there are none."""
        return self._runs.get((role, episode))

    def made_for(self, episode: str) -> dict[str, int]:
        """By role, how many calls of an episode there are, failed ones included."""
        found = self._calls.get(episode, {})
        return {role: max(call.k for call in calls) + 1 for role, calls in found.items()}

    def take(self, role: str, episode: str, request: str, model: str | None) -> Known | None:
        """The answer to a request; None if it must be sent.

        Args:
            role: Who asks.
            episode: For which episode.
            request: The request's key.
            model: Who must have answered; None takes any.
        """
        for call in self._of(role, episode, request):
            if not call.answered or (model is not None and call.model not in (None, model)):
                continue
            call.given = True
            line = self._read(call)
            return Known(line["completion"], self._charge(call, line))
        return None

    def failed(self, role: str, episode: str, request: str) -> tuple[tuple[int, ...], Any]:
        """The places of the calls that a new one is made instead of, and what they cost."""
        spent: dict[str, Usage] = {}
        places = []
        for call in self._of(role, episode, request):
            if not call.answered:
                call.given = True
                places.append(call.k)
                add_by_role(spent, self._charge(call, self._read(call)))
        return tuple(places), spent

    def left_over(self, episode: str, *, besides: str) -> dict[str, Usage]:
        """What an episode's calls cost that nobody has been charged for, each once.

        Args:
            episode: The episode.
            besides: A role that may still ask.
        """
        spent: dict[str, Usage] = {}
        for role, calls in self._calls.get(episode, {}).items():
            for call in calls:
                if role != besides and not call.charged:
                    add_by_role(spent, self._charge(call, self._read(call)))
        return spent

    # --- inside -------------------------------------------------------------------------------

    def _of(self, role: str, episode: str, request: str) -> Iterator[_Call]:
        calls = self._calls.get(episode, {}).get(role, ())
        return (call for call in calls if call.request == request and not call.given)

    def _charge(self, call: _Call, line: dict[str, Any]) -> dict[str, Usage]:
        if call.charged:
            return {}
        call.charged = True
        spent = {role: Usage(**usage) for role, usage in line["spent"].items()}
        told = self._told.get(call.episode, {})
        for role in spent.keys() & told.keys():
            spent[role], told[role] = _less(spent[role], told[role]), _less(told[role], spent[role])
        return spent

    def _read(self, call: _Call) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(call.offset)
            found: dict[str, Any] = json.loads(file.readline())
        return found

    def _lines(self) -> Iterator[tuple[int, _Line]]:
        """Every whole line with its offset."""
        if not self.path.exists():
            return
        offset = 0
        try:
            with self.path.open("rb") as lines:
                for number, text in enumerate(lines, start=1):
                    begin, offset = offset, offset + len(text)
                    if not text.strip():
                        continue
                    line = self._line(text, number)
                    if line is not None:
                        yield begin, line
        except OSError as error:
            raise DataError(f"can't read {self.path}: {error.strerror or error}") from error

    def _line(self, text: bytes, number: int) -> _Line | None:
        """A line; None if a kill has torn it."""
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            try:
                json.loads(text)
            except ValueError:
                return None
            raise DataError(f"{self.path}, line {number}: not a recorded call") from error
        if line.recording not in VERSIONS:
            versions = " or ".join(map(str, VERSIONS))
            raise DataError(
                f"{self.path}, line {number}: not a recorded call of version {versions}"
            )
        return line


def check_is_recording(path: Path) -> None:
    """See that what is there may be appended to; its first line tells, torn or whole.

    Raises:
        DataError: If it can't be read or is no recording.
    """
    if not path.is_file():  # a device's first line may never end
        return
    try:
        with path.open("rb") as file:
            first = file.readline()
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror or error}") from error
    try:
        found: Any = json.loads(first)
    except ValueError:
        found = {"recording": None} if first[:1] in (b"", b"{") else None
    if not (isinstance(found, dict) and "recording" in found):
        raise DataError(f"{path} is there and no recording; record to another file")


def _less(usage: Usage, other: Usage) -> Usage:
    """What is left of a usage without another one, nothing below 0."""
    counts = {
        name: max(0, value - getattr(other, name))
        for name, value in usage.model_dump().items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    cost_usd = usage.cost_usd
    if cost_usd is not None:
        cost_usd = max(0.0, cost_usd - (other.cost_usd or 0.0))
    return usage.model_copy(update={**counts, "cost_usd": cost_usd})
