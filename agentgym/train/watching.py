"""What watches over a run while it trains: the terminal's line, the monitors, the evaluations."""

from __future__ import annotations

from typing import Any

from agentgym.train.config import TrainConfig
from agentgym.train.files import METRICS_FILE
from agentgym.train.held_out import HeldOut, HeldOutTasks
from agentgym.train.monitors.callback import RunMonitor
from agentgym.train.progress import RunLine, RunReport
from agentgym.train.rollout import Rollout


def watch(
    trainer: Any, config: TrainConfig, *, held_out: HeldOutTasks | None, progress: bool
) -> RunMonitor:
    """Give a trainer all its watchers.

    Args:
        trainer: The `GRPOTrainer`.
        config: The run.
        held_out: What to evaluate on; None evaluates never.
        progress: Whether to show a line on stderr.
    """
    from transformers import PrinterCallback

    line = RunLine(show=progress and trainer.accelerator.is_main_process)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunReport(config.out / METRICS_FILE, line))
    monitor = RunMonitor(
        trainer,
        out=config.out,
        thresholds=config.monitors,
        stop_on=config.stop_on,
        tell=line.note,
    )
    trainer.add_callback(monitor)
    if isinstance(trainer.rollout_func, Rollout):
        trainer.rollout_func.progress = line
        trainer.rollout_func.keep_traces_every = config.keep.traces_every
    if held_out is not None:
        trainer.add_callback(
            HeldOut(trainer, config, held_out, tell=line.note, listener=monitor.take_score)
        )
    return monitor
