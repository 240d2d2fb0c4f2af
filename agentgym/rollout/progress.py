"""How a run is going, while it goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol, runtime_checkable

from agentgym.rollout.figures import Figures
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import Trace
from agentgym.types import Usage


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

    def tick(self, in_flight: Sequence[Whereabouts]) -> None:
        """About a second has passed.

        Args:
            in_flight: Where each episode is that has begun and isn't over.
        """


@runtime_checkable
class Dropping(Protocol):
    """A progress that also hears of episodes that were cancelled."""

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """An episode was cancelled, and has no trace.

        Args:
            usage: What it had cost, by role.
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
        self._figures = Figures(clock=clock)
        self._last_s = 0.0
        self._shown = (0, 0)

    def begin(self, total: int | None) -> None:
        """Start counting."""
        self._figures = Figures(total, self._clock)
        self._last_s = 0.0
        self._shown = (0, 0)

    def turn(self, tokens: int) -> None:
        """Count a turn."""
        self._figures.add_turn(tokens)

    def finish(self, trace: Trace) -> None:
        """Count an episode, and write a line if it is time."""
        self._figures.add(trace)
        if self._is_time():
            self._write()

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """Count an episode that was cancelled."""
        self._figures.drop(usage)

    def note(self, text: str) -> None:
        """Show a remark in the lines to come."""
        self._figures.note = text

    def tick(self, in_flight: Sequence[Whereabouts]) -> None:
        """Write a line if it is time, whatever has happened since the last one."""
        figures = self._figures
        figures.look(in_flight)
        if self._is_time():
            idle = figures.moves == self._shown
            waiting = f" · {figures.standstill()}" if idle else ""
            self._write(f", {figures.commonest_wait()}", waiting)

    def end(self) -> None:
        """Write the last line."""
        self._figures.look(())
        self._write()

    def _is_time(self) -> bool:
        return self._figures.elapsed_s - self._last_s >= self._every_s

    def _write(self, in_flight: str = "", waiting: str = "") -> None:
        figures = self._figures
        self._last_s = figures.elapsed_s
        self._shown = figures.moves
        line = f"[{figures.elapsed_s:.0f} s] {figures.count()} episodes{in_flight}"
        line += f" · {figures.tokens} tokens · {figures.text()}{waiting}"
        print(line, file=self._stream, flush=True)


class LiveProgress:
    """A bar that redraws itself, for a terminal; the figures stand below it."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._waiting = ""
        self._live: Any = None
        self._bar: Any = None
        self._text: Any = None
        self._task: Any = None

    def begin(self, total: int | None) -> None:
        """Draw the bar."""
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        if self._live is not None:  # of another run at the same time
            self._live.stop()
        self._figures = Figures(total)
        self._waiting = ""
        self._bar = Bar(
            TextColumn("episodes"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("episodes", total=total)
        self._text = Text()
        self._live = Live(Group(self._bar, self._text), console=Console(stderr=True))
        self._live.start()

    def turn(self, tokens: int) -> None:
        """Count a turn; the figures are redrawn a few times a second at most."""
        self._figures.add_turn(tokens)
        if self._figures.moves[1] % 16 == 0:
            self._draw()

    def finish(self, trace: Trace) -> None:
        """Count an episode."""
        self._figures.add(trace)
        self._draw()

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """Count an episode that was cancelled."""
        self._figures.drop(usage)
        self._draw()

    def note(self, text: str) -> None:
        """Show a remark beside the figures."""
        self._figures.note = text
        self._draw()

    def tick(self, in_flight: Sequence[Whereabouts]) -> None:
        """Redraw the figures, and what most episodes wait for."""
        self._figures.look(in_flight)
        self._waiting = f"{self._figures.commonest_wait()} · "
        self._draw()

    def end(self) -> None:
        """Leave the finished bar on the screen."""
        if self._live is not None:
            self._figures.look(())
            self._waiting = ""
            self._draw()
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self._figures.episodes)
        self._text.plain = self._waiting + self._figures.text()


def progress_for(choice: bool | Progress | None) -> Progress:
    """The progress to use.

    Args:
        choice: One of your own; True for a live bar on a terminal and plain lines elsewhere; False
            or None for nothing.
    """
    if isinstance(choice, bool) or choice is None:
        if not choice:
            return NoProgress()
        if sys.stderr is None:  # it was closed before Python began
            return NoProgress()
        return LiveProgress() if sys.stderr.isatty() else LineProgress()
    return choice
