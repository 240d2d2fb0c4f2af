"""An alarm, and the book that a run keeps of them: each is raised once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from agentgym.durable import LineFile
from agentgym.train.monitors.json_lines import read_json_lines
from agentgym.types import Finite, Record, printable


class Alarm(Record):
    """Something that keeps a run from learning, with the evidence."""

    name: str
    """Which alarm; `gate:NAME` names the gate."""
    step: int
    """Training steps done when it was raised."""
    seen: str
    """What is the matter, with the figures."""
    cause: str
    """What it most likely comes from."""
    change: str
    """The first thing to change."""
    numbers: dict[str, Finite] = Field(default_factory=dict)
    """The figures behind it, by name."""

    @property
    def kind(self) -> str:
        """The name without what it is about: `gate` of `gate:truncated`."""
        return self.name.partition(":")[0]

    def text(self) -> str:
        """All of it in one line."""
        return printable(f"{self.name}: {self.seen}: {self.cause}; try {self.change}")


class AlarmBook:
    """The alarms of a run; a resumed run goes on with those it had.

    Args:
        path: File to keep them in, one JSON line each; None keeps them in memory.
        done: Training steps done. Alarms of later steps are of an attempt that counts no more: they
            are taken out of the file, and may be raised again.

    Raises:
        OSError: If the file can't be read or written.
    """

    def __init__(self, path: Path | None = None, *, done: int = 0) -> None:
        self._path = path
        known = [] if path is None else read_alarms(path)
        self.alarms: list[Alarm] = [alarm for alarm in known if alarm.step <= done]
        if path is not None and len(self.alarms) < len(known):
            shorter = path.with_suffix(".tmp")
            shorter.write_text("".join(map(_line, self.alarms)), encoding="utf-8")
            shorter.replace(path)

    def add(self, found: Iterable[Alarm]) -> list[Alarm]:
        """Note alarms.

        Returns:
            Those that were not raised before.

        Raises:
            TraceError: If the file can't be written.
        """
        known = {alarm.name for alarm in self.alarms}
        fresh = []
        for alarm in found:
            if alarm.name not in known:
                known.add(alarm.name)
                fresh.append(alarm)
        self.alarms += fresh
        if self._path is not None and fresh:
            file = LineFile(self._path)
            for alarm in fresh:
                file.append(_line(alarm).encode())
            file.close()
        return fresh


def _line(alarm: Alarm) -> str:
    return f"{alarm.model_dump_json()}\n"


def read_alarms(path: Path) -> list[Alarm]:
    """The alarms in a file; none if there is no file, and what a crash tore is left out."""
    alarms = []
    for found in read_json_lines(path):
        with suppress(ValidationError):
            alarms.append(Alarm.model_validate(found))
    return alarms
