"""A run that ends early: nothing that was finished is lost, and nothing half done is saved."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from agentgym.errors import AgentGymError
from agentgym.train.rollout import Rollout


@contextmanager
def stoppable(trainer: Any) -> Iterator[None]:
    """Save a checkpoint of the last whole step when Ctrl-C ends the run, or its servers do.

    While episodes run the weights are at rest, so an interrupt may strike at once; during an
    optimiser step it is held back until the step is done, for half an update must never be saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from transformers import TrainerCallback

    requested = False

    class StopAfterStep(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if requested:
                control.should_training_stop = True

    def hold_back(signum: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        print("\nstopping after this step; once more stops at once", file=sys.stderr)

    @contextmanager
    def let_through() -> Iterator[None]:
        if requested:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, hold_back)

    rollout = trainer.rollout_func
    trainer.add_callback(StopAfterStep())
    before = signal.signal(signal.SIGINT, hold_back)
    if isinstance(rollout, Rollout):
        rollout.while_playing = let_through
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
    except AgentGymError:  # of a rollout or a weight sync, when no step is half done
        _save(trainer)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if not (interrupted or requested):
        return
    step = _save(trainer)
    kept = f"checkpoint at step {step}" if step else "no step was finished"
    out = trainer.args.output_dir
    print(
        f"stopped: {kept}, traces in {out}; `agentgym train --out {shlex.quote(out)} --resume` "
        "continues",
        file=sys.stderr,
    )
    raise KeyboardInterrupt


def _save(trainer: Any) -> int:
    """Save a checkpoint if there isn't one; returns the steps that were made."""
    step: int = trainer.state.global_step
    folder = Path(trainer.args.output_dir) / f"checkpoint-{step}"
    if step and not folder.exists():
        trainer._save_checkpoint(trainer.model, None)
    return step
