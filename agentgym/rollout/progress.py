"""How a run is going, while it goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, Any, Protocol, runtime_checkable

from agentgym.trace import Trace


@runtime_checkable
class Progress(Protocol):
    """What an engine tells while it runs."""

    def begin(self, total: int | None) -> None:
        """A run starts.

        Args:
            total: Episodes to come, if known.
        """

    def turn(self, tokens: int) -> None:
        """A policy answered.

        Args:
            tokens: Tokens it generated.
        """

    def finish(self, trace: Trace) -> None:
        """An episode is over."""

    def end(self) -> None:
        """The run is over, also when it failed or was interrupted."""


@runtime_checkable
class Ticking(Protocol):
    """A progress that is also told the time, so that it can speak while nothing happens."""

    def tick(self, in_flight: int) -> None:
        """About a second has passed.

        Args:
            in_flight: Episodes that have begun and aren't over.
        """


@runtime_checkable
class Noting(Protocol):
    """A progress that shows a remark beside its figures."""

    def note(self, text: str) -> None:
        """Show a remark from now on.

        Args:
            text: The remark, instead of the one before; empty for none.
        """


class NoProgress:
    """Says nothing."""

    def begin(self, total: int | None) -> None:
        """Nothing."""

    def turn(self, tokens: int) -> None:
        """Nothing."""

    def finish(self, trace: Trace) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Tally:
    """The figures that progress shows.

    Args:
        clock: Seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.total: int | None = None
        self.episodes = 0
        self.turns = 0
        self.tokens = 0
        self.failures: Counter[str] = Counter()
        self.note = ""
        self._reward_sum = 0.0
        self._scored = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def add_turn(self, tokens: int) -> None:
        """Count a turn."""
        self.turns += 1
        self.tokens += tokens

    def add(self, trace: Trace) -> None:
        """Count an episode."""
        self.episodes += 1
        if trace.reward is None:
            self.failures[trace.failure_class or "unknown"] += 1
        else:
            self._scored += 1
            self._reward_sum += trace.reward

    def text(self) -> str:
        """All figures but the episodes, in one line."""
        per_s = self.tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0
        mean = f"{self._reward_sum / self._scored:.3f}" if self._scored else "-"
        line = f"{self.turns} turns · {per_s:.0f} tok/s · reward {mean}"
        if self.failures:
            classes = ", ".join(f"{name} {n}" for name, n in self.failures.most_common())
            line += f" · masked {self.failures.total()} ({classes})"
        if self.note:
            line += f" · {self.note}"
        return line

    def count(self) -> str:
        """Episodes so far, of how many."""
        return f"{self.episodes}/{self.total}" if self.total is not None else str(self.episodes)


class LineProgress:
    """A plain line every few seconds, for logs; also while nothing happens.

    Args:
        stream: Where to; default: stderr.
        every_s: Least time between two lines, seconds.
        clock: Seconds, from any origin.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._every_s = every_s
        self._clock = clock
        self._tally = Tally(clock)
        self._last_s = 0.0
        self._shown = (0, 0)

    def begin(self, total: int | None) -> None:
        """Start counting."""
        self._tally = Tally(self._clock)
        self._tally.total = total
        self._last_s = 0.0
        self._shown = (0, 0)

    def turn(self, tokens: int) -> None:
        """Count a turn."""
        self._tally.add_turn(tokens)

    def finish(self, trace: Trace) -> None:
        """Count an episode, and write a line if it is time."""
        self._tally.add(trace)
        if self._is_time():
            self._write()

    def note(self, text: str) -> None:
        """Show a remark in the lines to come."""
        self._tally.note = text

    def tick(self, in_flight: int) -> None:
        """Write a line if it is time, whatever has happened since the last one."""
        if self._is_time():
            idle = (self._tally.episodes, self._tally.turns) == self._shown
            self._write(f", {in_flight} in flight", " · waiting" if idle else "")

    def end(self) -> None:
        """Write the last line."""
        self._write()

    def _is_time(self) -> bool:
        return self._tally.elapsed_s - self._last_s >= self._every_s

    def _write(self, in_flight: str = "", waiting: str = "") -> None:
        tally = self._tally
        self._last_s = tally.elapsed_s
        self._shown = (tally.episodes, tally.turns)
        line = f"[{tally.elapsed_s:.0f} s] {tally.count()} episodes{in_flight}"
        line += f" · {tally.tokens} tokens · {tally.text()}{waiting}"
        print(line, file=self._stream, flush=True)


class LiveProgress:
    """A bar that redraws itself, for a terminal."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._bar: Any = None
        self._task: Any = None

    def begin(self, total: int | None) -> None:
        """Draw the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._tally = Tally()
        self._bar = Bar(
            TextColumn("episodes"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("episodes", total=total, figures="")
        self._bar.start()

    def turn(self, tokens: int) -> None:
        """Count a turn; the figures are redrawn a few times a second at most."""
        self._tally.add_turn(tokens)
        if self._tally.turns % 16 == 0:
            self._draw()

    def finish(self, trace: Trace) -> None:
        """Count an episode."""
        self._tally.add(trace)
        self._draw()

    def note(self, text: str) -> None:
        """Show a remark beside the figures."""
        self._tally.note = text
        self._draw()

    def tick(self, in_flight: int) -> None:
        """Redraw the figures."""
        self._draw()

    def end(self) -> None:
        """Leave the finished bar on the screen."""
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None

    def _draw(self) -> None:
        tally = self._tally
        self._bar.update(self._task, completed=tally.episodes, figures=tally.text())


def progress_for(choice: bool | Progress | None) -> Progress:
    """The progress to use.

    Args:
        choice: One of your own; True for a live bar on a terminal and plain lines elsewhere; False
            or None for nothing.
    """
    if isinstance(choice, bool) or choice is None:
        if not choice:
            return NoProgress()
        return LiveProgress() if sys.stderr.isatty() else LineProgress()
    return choice
