"""A training run as it goes: one line on the terminal, every metric in a file.

TRL logs some forty numbers a step. The line shows the few that say whether the run is alive, the
file keeps all of them as JSON lines, one per step.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

_SHOWN = {
    "reward": "reward",
    "agentgym/correct": "correct",
    "agentgym/completed": "done",
    "agentgym/masked": "masked",
    "agentgym/groups_without_signal": "flat",
    "agentgym/rollout_s": "rollout_s",
}


class RunReport(TrainerCallback):  # type: ignore[misc]
    """Writes metrics and moves the bar.

    Args:
        path: The file of metrics; appended to.
        show: Whether to show the bar.
    """

    def __init__(self, path: Path, *, show: bool) -> None:
        self._path = path
        self._show = show
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar, at the step resumed from."""
        if state.is_world_process_zero:
            self._bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="training",
                unit="step",
                disable=not self._show,
                file=sys.stderr,
                dynamic_ncols=True,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Append a step's metrics and show the telling ones."""
        if not state.is_world_process_zero or not logs:
            return
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in logs.items()
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **clean}) + "\n")
        if self._bar is not None:
            shown = {
                short: clean[name] for name, short in _SHOWN.items() if clean.get(name) is not None
            }
            self._bar.set_postfix({short: f"{value:.3g}" for short, value in shown.items()})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
