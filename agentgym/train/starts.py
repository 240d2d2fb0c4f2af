"""When a run was started, resumed and ended by its budget: a line for each in its folder.

Curves of a run that was resumed may have a step where another TRL, another machine or another
setting took over; the numbers alone don't tell.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

import agentgym
from agentgym.durable import LineFile
from agentgym.train.files import CONFIG_FILE, STARTS_FILE
from agentgym.train.monitors.json_lines import read_json_lines
from agentgym.types import Record

_PACKAGES = ("trl", "vllm", "torch", "transformers", "peft")


class RunStart(Record):
    """One start of a run; all but the first go on from a checkpoint."""

    started_at: str
    """UTC, ISO 8601."""
    step: int = Field(ge=0)
    """Training steps done before."""
    processes: int = Field(default=1, ge=1)
    versions: dict[str, str] = Field(default_factory=dict)
    """Package to version; those that aren't installed are left out."""
    changed: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """Settings that the start before had otherwise: what it had, and what it is."""


def note_start(
    out: Path, settings: Mapping[str, Any], *, checkpoint: Path | None, processes: int
) -> None:
    """Write a start down, before the run's settings are replaced by these.

    Args:
        out: The run's folder.
        settings: The run's config, as the folder keeps it.
        checkpoint: What it goes on from, `checkpoint-N`; None starts from the beginning.
        processes: Processes that train.

    Raises:
        TraceError: If it can't be written.
    """
    step = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    before: Any = settings
    with suppress(OSError, ValueError):  # a first start; what can't be read can't be compared
        before = json.loads((out / CONFIG_FILE).read_text(encoding="utf-8"))
    start = RunStart(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        step=step,
        processes=processes,
        versions=_versions(),
        changed=dict(_changes(before, settings)) if isinstance(before, Mapping) else {},
    )
    _append(out, start)


class RunEnd(Record):
    """An end before the last step that was not the doing of an alarm or a crash."""

    ended_at: str
    """UTC, ISO 8601."""
    step: int = Field(ge=0)
    """Training steps done."""
    budget: str
    """What is spent of which budget, and how to go on."""


def note_budget_end(out: Path, *, step: int, budget: str) -> None:
    """Write down that a run ended with its budget.

    Args:
        out: The run's folder.
        step: Training steps done.
        budget: What is spent, and how to go on.

    Raises:
        TraceError: If it can't be written.
    """
    end = RunEnd(ended_at=datetime.now(UTC).isoformat(timespec="seconds"), step=step, budget=budget)
    _append(out, end)


def _append(out: Path, line: Record) -> None:
    file = LineFile(out / STARTS_FILE)
    file.append(f"{line.model_dump_json()}\n".encode())
    file.close()


def read_budget_end(out: Path) -> RunEnd | None:
    """The end of a run whose budget was used up; None if it has been resumed since."""
    last: RunEnd | None = None
    for line in read_json_lines(out / STARTS_FILE):
        try:
            last = RunEnd.model_validate(line)
        except ValidationError:
            last = None
    return last


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any], table: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Settings with another value than before; in tables of the same names, as `table.name`."""
    for name, value in now.items():
        if name not in before or before[name] == value:
            continue
        old = before[name]
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old.keys() == value.keys():
            yield from _changes(old, value, f"{table}{name}.")
        else:
            yield f"{table}{name}", (old, value)


def read_starts(out: Path) -> list[RunStart]:
    """The starts of a run, oldest first; none where its folder doesn't tell."""
    found = []
    for line in read_json_lines(out / STARTS_FILE):
        with suppress(ValidationError):
            found.append(RunStart.model_validate(line))
    return found


def _versions() -> dict[str, str]:
    found = {"agentgym": agentgym.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
