"""Which kind of run there is, and its page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from agentgym.errors import DataError
from agentgym.report.plots.drawing import require_matplotlib
from agentgym.report.run.evaluations import evaluation_page
from agentgym.report.run.page import html
from agentgym.report.run.record import no_step_is_done, read_training
from agentgym.report.run.rollouts import TRACES_FILE, is_rollouts, rollouts_page
from agentgym.report.run.training import training_page
from agentgym.train.files import CONFIG_FILE, METRICS_FILE

RunKind: TypeAlias = Literal["training", "rollouts", "evaluation"]
RESULT_FILE = "result.json"
"""What `agentgym eval run` calls its result."""


@dataclass(frozen=True)
class Report:
    """A page, and whether there will be more to say."""

    html: str
    over: bool
    """Whether the run has come to its end."""


def kind_of(run: Path) -> RunKind:
    """What a path leads to.

    Raises:
        DataError: If it is nothing that has a report.
    """
    if not run.exists():
        raise DataError(
            f"there is no {run}; give the folder that `agentgym train`, `rollout` or `eval run` "
            "got with --out"
        )
    if run.is_file():
        if run.name.endswith(".jsonl"):
            raise DataError(f"{run} is a file of lines; give its folder, or `agentgym view {run}`")
        return "evaluation"
    if any((run / name).exists() for name in (CONFIG_FILE, METRICS_FILE)):
        return "training"
    if next(run.glob("traces-step*.jsonl"), None) is not None:
        return "training"
    if is_rollouts(run):
        return "rollouts"
    if (run / RESULT_FILE).is_file():
        return "evaluation"
    inside = sorted(
        path.parent.name
        for name in (CONFIG_FILE, METRICS_FILE, TRACES_FILE, RESULT_FILE)
        for path in run.glob(f"*/{name}")
    )
    hint = f", but its folder {inside[0]!r} may" if inside else ""
    raise DataError(
        f"{run} has no run{hint}: give what `agentgym train`, `agentgym rollout` or `agentgym eval "
        "run` wrote"
    )


def is_waited_for(run: Path) -> bool:
    """Whether there is a folder in which no step and no episode is done yet."""
    if not run.is_dir() or (run / RESULT_FILE).exists():
        return False
    if is_rollouts(run):
        return (run / TRACES_FILE).stat().st_size == 0
    if (run / CONFIG_FILE).exists():
        return no_step_is_done(run)
    return not (run / METRICS_FILE).exists() and not any(run.glob("traces-step*.jsonl"))


def report_page(run: Path, *, now: datetime | None = None, refresh_s: int | None = None) -> Report:
    """The page of a run of any kind.

    Args:
        run: Folder of a training run or a rollout run, or the result file of an evaluation.
        now: The time, for what is said of a run that is still going.
        refresh_s: Seconds after which a browser is to read the page anew, while the run goes on.

    Raises:
        DataError: If there is no such run, or nothing in it yet.
        TrainingError: If a training run's files can't be read.
        TraceError: If traces can't be read.
        MissingExtraError: If matplotlib isn't installed.
    """
    require_matplotlib()
    kind = kind_of(run)
    if kind == "training":
        record = read_training(run, now=now)
        over = record.state != "unfinished"
        return Report(html(training_page(record, refresh_s=None if over else refresh_s)), over)
    if kind == "rollouts":
        return Report(html(rollouts_page(run, now=now, refresh_s=refresh_s)), over=False)
    path = run / RESULT_FILE if run.is_dir() else run
    return Report(html(evaluation_page(path, now=now)), over=True)
