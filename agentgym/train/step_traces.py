"""The traces of a run: one sink for the engine, a file per step."""

from __future__ import annotations

import itertools
from pathlib import Path

from agentgym.trace import Trace
from agentgym.traces import TraceWriter


class StepTraces:
    """Writes the step that is being played.

    Args:
        folder: Where the files are; None keeps none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: TraceWriter | None = None

    def open(self, step: int, *, training: bool, rank: int, anew: bool) -> None:
        """Begin with a step, or go on with it.

        Args:
            step: Training steps done.
            training: Whether the episodes are trained on.
            rank: This process.
            anew: Whether nothing of the step was played yet. What is there was then left by an
                attempt that was cut short, and is kept beside the new file.
        """
        if self._folder is None:
            return
        kind = "step" if training else "eval"
        name = f"traces-{kind}{step:06d}" + (f"-rank{rank}" if rank else "")
        path = self._folder / f"{name}.jsonl"
        if anew and path.exists():
            path.rename(_unused(path))
        self._writer = TraceWriter(path)

    def write(self, trace: Trace) -> None:
        """Keep one trace, of a step that is kept."""
        if self._writer is not None:
            self._writer.write(trace)

    def close(self) -> None:
        """End the step's file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _unused(path: Path) -> Path:
    numbers = itertools.count(1)
    return next(p for n in numbers if not (p := path.with_suffix(f".unused{n}.jsonl")).exists())
