"""A training run as it goes: a line per step on the terminal, every metric in a file.

TRL logs some forty numbers a step. The lines show the few that say whether the run is alive and
learning; the file keeps all of them as JSON lines. Between two lines a terminal shows how far the
rollout is.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformers import TrainerCallback

from agentgym.trace import Trace
from agentgym.types import printable

_SHOWN = {
    "reward": "reward",
    "agentgym/correct": "correct",
    "agentgym/completed": "completed",
    "agentgym/masked": "masked",
    "agentgym/groups_without_signal": "no-signal groups",
}
_CLEAR = "\r\x1b[K"


class RunLine:
    """What the terminal shows; also the rollout engine's `Progress`.

    Args:
        stream: Where to; stderr by default.
        show: Whether at all.
    """

    def __init__(self, *, stream: IO[str] | None = None, show: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._show = show
        self._live = show and self._stream.isatty()
        self._step = 0
        self._steps = 0
        self._episodes = 0
        self._finished = 0
        self._last_drawn = 0.0
        self._step_started = time.monotonic()

    def at(self, step: int, steps: int) -> None:
        """A run stands before a step.

        Args:
            step: Steps done.
            steps: Steps in all.
        """
        self._step, self._steps = step, steps
        self._step_started = time.monotonic()

    def begin(self, total: int | None) -> None:
        """A rollout starts."""
        self._episodes, self._finished = total or 0, 0

    def turn(self, tokens: int) -> None:
        """A policy answered."""

    def finish(self, trace: Trace) -> None:
        """An episode is over."""
        self._finished += 1
        now = time.monotonic()
        if self._live and now - self._last_drawn > 0.2:
            self._last_drawn = now
            where = f"step {self._step + 1}/{self._steps}"
            self._write(f"{_CLEAR}{where}: {self._finished}/{self._episodes} episodes")

    def end(self) -> None:
        """A rollout is over; the optimiser's part follows."""
        if self._live:
            self._write(f"{_CLEAR}step {self._step + 1}/{self._steps}: updating the policy")

    def done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done."""
        if not self._show:
            return
        seconds = time.monotonic() - self._step_started
        shown = "  ".join(
            f"{short} {metrics[name]:.3g}"
            for name, short in _SHOWN.items()
            if metrics.get(name) is not None
        )
        left_s = seconds * (self._steps - step)
        clear = _CLEAR if self._live else ""
        clock = f"{seconds:.1f} s  {left_s / 60:.0f} min left"
        self._write(f"{clear}step {step}/{self._steps}  {shown}  {clock}\n")
        self.at(step, self._steps)

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        if self._show:
            self._write(f"{_CLEAR if self._live else ''}{printable(text)}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class RunReport(TrainerCallback):
    """Writes every step's metrics to a file and a few to the terminal.

    Args:
        path: The file of metrics; appended to, and made with its folder where it isn't there.
        line: The terminal's line; None shows nothing.
    """

    def __init__(self, path: Path, line: RunLine | None = None) -> None:
        self._path = path
        self._line = line or RunLine(show=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say where the run starts, which after a resume is not at 0."""
        self._line.at(state.global_step, state.max_steps)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Append the metrics and show the telling ones."""
        if not state.is_world_process_zero or not logs or "reward" not in logs:
            return
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in logs.items()
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **clean}) + "\n")
        self._line.done(state.global_step, clean)
