"""What `agentgym show` does: find the episode, print it."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from agentgym.report.viewer.external import External, ExternalScores
    from agentgym.report.viewer.reading import Line, TraceFolder
    from agentgym.trace import Trace

_NUMBER = re.compile(r"-?\d{1,6}")
"""What is longer is the beginning of an id."""
_LEAST_WIDTH = 20


def show(
    path: Path, episode: str | None, *, external: str | None, width: int | None, full: bool
) -> int:
    """Print one episode.

    Args:
        path: A trace file, or a folder with some.
        episode: Its number, id or task; None is the first.
        external: Only episodes of which an evaluation's external score says this; None: all.
        width: Columns; None is the terminal's.
        full: Whether long texts are shown whole.

    Raises:
        ConfigError: If there is no such episode.
        TraceError: If nothing can be read.
    """
    from agentgym.report.episode_text import episode_console, print_episode
    from agentgym.report.viewer.external import ExternalScores
    from agentgym.report.viewer.reading import TraceFolder

    if width is not None and width < _LEAST_WIDTH:
        raise ConfigError(f"--width takes at least {_LEAST_WIDTH} columns, got {width}")
    folder, scores = TraceFolder([path]), ExternalScores()
    line = _find(folder, _wanted(folder, scores, external), episode)
    console = episode_console(width=width)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Unicode
    print_episode(line.trace, console, full=full, external=_external(folder, scores, line))
    for note in [*folder.notes, *scores.notes][:3]:
        print(f"agentgym: {note}", file=sys.stderr)
    return 0


def _wanted(folder: TraceFolder, scores: ExternalScores, wanted: str | None) -> Iterator[Line]:
    """The episodes in question: all, or those of which an external score says something.

    Raises:
        ConfigError: At the end, if there are some, and none is wanted.
    """
    count = found = 0
    for line in folder.news(whole=True):
        count += 1
        if wanted is None or wanted in _said(_external(folder, scores, line), line.trace):
            found += 1
            yield line
    if count and not found:
        raise ConfigError(
            f"--external {wanted} is none of the {count} episodes; external scores are in the "
            "result.json of an evaluation, beside its traces/"
        )


def _external(folder: TraceFolder, scores: ExternalScores, line: Line) -> External | None:
    return scores.of(folder.files[line.file].path, line.trace)


def _said(external: External | None, trace: Trace) -> set[str]:
    """What `--external` finds an episode by."""
    if external is None:
        return set()
    success = {True: "solved", False: "unsolved", None: "unscored"}[external.correct]
    return {success, "disagreed"} if external.disagrees_with(trace) else {success}


def _find(folder: TraceFolder, lines: Iterator[Line], episode: str | None) -> Line:
    if episode is None:
        return _default(folder, lines)
    if _NUMBER.fullmatch(episode):
        return _numbered(folder, lines, int(episode))
    return _named(folder, lines, episode)


def _default(folder: TraceFolder, lines: Iterator[Line]) -> Line:
    first = next(lines, None)
    if first is None:
        raise TraceError(folder.why_empty())
    if next(lines, None) is not None:
        print(
            "agentgym: the first of several episodes; --episode shows another, `agentgym view` all",
            file=sys.stderr,
        )
    return first


def _numbered(folder: TraceFolder, lines: Iterator[Line], number: int) -> Line:
    count = 0
    last: deque[Line] = deque(maxlen=max(1, -number))
    for count, line in enumerate(lines, start=1):
        if count == number:
            return line
        if number < 0:
            last.append(line)
    if not count:
        raise TraceError(folder.why_empty())
    if 0 < -number <= count:
        return last[0]
    raise ConfigError(f"no episode {number}: there are {count}, numbered from 1; -1 is the last")


def _named(folder: TraceFolder, lines: Iterator[Line], name: str) -> Line:
    """By its id; else by the beginning of it, if no other begins so; else the last of a task."""
    begins: dict[str, Line] = {}
    of_task: Line | None = None
    count = 0
    for line in lines:
        count, trace = count + 1, line.trace
        if trace.trace_id == name:
            return line
        if trace.trace_id.startswith(name) and len(begins) < 2:
            begins[trace.trace_id] = line
        if trace.task_id == name:
            of_task = line
    if not count:
        raise TraceError(folder.why_empty())
    if len(begins) > 1:
        raise ConfigError(f"several trace ids begin with {name!r}; give more of it")
    found = next(iter(begins.values()), of_task)
    if found is None:
        raise ConfigError(
            f"none of {count} episodes has the trace id or task {name!r}; "
            "`agentgym view` lists them"
        )
    return found
