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
    from agentgym.report.viewer.reading import TraceFolder
    from agentgym.trace import Trace

_NUMBER = re.compile(r"-?\d{1,6}")
"""What is longer is the beginning of an id."""
_LEAST_WIDTH = 20


def show(path: Path, episode: str | None, *, width: int | None, full: bool) -> int:
    """Print one episode.

    Args:
        path: A trace file, or a folder with some.
        episode: Its number, id or task; None is the first.
        width: Columns; None is the terminal's.
        full: Whether long texts are shown whole.

    Raises:
        ConfigError: If there is no such episode.
        TraceError: If nothing can be read.
    """
    from agentgym.report.episode_text import episode_console, print_episode
    from agentgym.report.viewer.reading import TraceFolder

    if width is not None and width < _LEAST_WIDTH:
        raise ConfigError(f"--width takes at least {_LEAST_WIDTH} columns, got {width}")
    folder = TraceFolder([path])
    trace = _find(folder, episode)
    console = episode_console(width=width)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Unicode
    print_episode(trace, console, full=full)
    for note in folder.notes[:3]:
        print(f"agentgym: {note}", file=sys.stderr)
    return 0


def _find(folder: TraceFolder, episode: str | None) -> Trace:
    traces = (line.trace for line in folder.news(whole=True))
    if episode is None:
        return _default(folder, traces)
    if _NUMBER.fullmatch(episode):
        return _numbered(folder, traces, int(episode))
    return _named(folder, traces, episode)


def _default(folder: TraceFolder, traces: Iterator[Trace]) -> Trace:
    first = next(traces, None)
    if first is None:
        raise TraceError(folder.why_empty())
    if next(traces, None) is not None:
        print(
            "agentgym: the first of several episodes; --episode shows another, `agentgym view` all",
            file=sys.stderr,
        )
    return first


def _numbered(folder: TraceFolder, traces: Iterator[Trace], number: int) -> Trace:
    count = 0
    last: deque[Trace] = deque(maxlen=max(1, -number))
    for count, trace in enumerate(traces, start=1):
        if count == number:
            return trace
        if number < 0:
            last.append(trace)
    if not count:
        raise TraceError(folder.why_empty())
    if 0 < -number <= count:
        return last[0]
    raise ConfigError(f"no episode {number}: there are {count}, numbered from 1; -1 is the last")


def _named(folder: TraceFolder, traces: Iterator[Trace], name: str) -> Trace:
    """By its id; else by the beginning of it, if no other begins so; else the last of a task."""
    begins: dict[str, Trace] = {}
    of_task: Trace | None = None
    count = 0
    for trace in traces:
        count += 1
        if trace.trace_id == name:
            return trace
        if trace.trace_id.startswith(name) and len(begins) < 2:
            begins[trace.trace_id] = trace
        if trace.task_id == name:
            of_task = trace
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
