"""How far a command is: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any


class Counting:
    """Counts things as they finish; use it as a context manager.

    Args:
        what: What is counted, in the plural.
        total: How many there are.
        quiet: Whether to say nothing.
        stream: Where to; default: stderr.
        every_s: Least time between two plain lines, seconds.
        clock: Seconds, from any origin.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        quiet: bool = False,
        stream: IO[str] | None = None,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._every_s = every_s
        self._clock = clock
        self._started_s = self._last_s = clock()
        self._figures = ""
        self._bar: Any = None
        self._task: Any = None
        self.done = 0
        """Finished so far."""

    def __enter__(self) -> Counting:
        if not self._quiet and self._stream.isatty():
            self._start_bar()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and self.done:
            self._write()

    def add(self, figures: str = "") -> None:
        """Count one.

        Args:
            figures: What to show beside the count.
        """
        self.done += 1
        self._figures = figures
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, figures=figures)
        elif not self._quiet and self._clock() - self._last_s >= self._every_s:
            self._write()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn(self._what),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
        )
        self._task = self._bar.add_task(self._what, total=self._total, figures="")
        self._bar.start()

    def _write(self) -> None:
        self._last_s = self._clock()
        elapsed_s = self._last_s - self._started_s
        figures = f" · {self._figures}" if self._figures else ""
        line = f"[{elapsed_s:.0f} s] {self.done}/{self._total} {self._what}{figures}"
        print(line, file=self._stream, flush=True)
