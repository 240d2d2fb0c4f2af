"""One progress for several columns, whose engines each think that they are the only one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgym.rollout.progress import Dropping, Noting, Progress, Ticking
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import Trace
from agentgym.types import Usage


class SharedProgress:
    """Passes on what engines tell, but for beginning and end, which are the evaluation's.

    Args:
        shown: What people see.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def open(self, total: int) -> None:
        """The evaluation begins.

        Args:
            total: Episodes to come, over all columns.
        """
        self._shown.begin(total)

    def close(self) -> None:
        """It is over."""
        self._shown.end()

    def begin(self, total: int | None) -> None:
        """A column begins."""

    def end(self) -> None:
        """A column is over."""

    def turn(self, tokens: int) -> None:
        """A policy answered."""
        self._shown.turn(tokens)

    def finish(self, trace: Trace) -> None:
        """An episode is over."""
        self._shown.finish(trace)

    def tick(self, in_flight: Sequence[Whereabouts]) -> None:
        """About a second has passed."""
        if isinstance(self._shown, Ticking):
            self._shown.tick(in_flight)

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """An episode was cancelled."""
        if isinstance(self._shown, Dropping):
            self._shown.drop(usage)

    def note(self, text: str) -> None:
        """Show a remark."""
        if isinstance(self._shown, Noting):
            self._shown.note(text)
