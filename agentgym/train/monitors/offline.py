"""A run read from its folder, and looked at step by step as if it were going on."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from agentgym.errors import TrainingError
from agentgym.traces import read_traces
from agentgym.train.batch import PlayedBatch
from agentgym.train.files import ALARMS_FILE, CONFIG_FILE, EVALUATIONS_FILE, METRICS_FILE
from agentgym.train.metrics import batch_metrics, expected_without_signal
from agentgym.train.monitors.alarm import Alarm, AlarmBook, read_alarms
from agentgym.train.monitors.checks import look
from agentgym.train.monitors.history import OURS, RunHistory, Thresholds, mean
from agentgym.train.monitors.json_lines import read_json_lines
from agentgym.train.monitors.scores import HeldOutScore, read_scores
from agentgym.train.monitors.tasks import TaskHistory, outcomes_of
from agentgym.train.rows import training_row
from agentgym.types import Finite, Record, in_one_line

_TRACES = re.compile(r"traces-step(\d+)(-[^.]*)?\.jsonl")
_ENOUGH = OURS + "groups_equal"
"""A metric that says that the step's own line has all that its traces could tell."""


class Moved(Record):
    """A figure at the two ends of a run."""

    name: str
    first: Finite
    """Mean over the first steps."""
    last: Finite
    """Mean over the last window."""
    low: Finite | None
    """Lower end of the last one's interval, three standard errors; None with one step."""
    high: Finite | None
    n: int
    """Steps that have it."""


class Diagnosis(Record):
    """What the files of a run say."""

    run: Path
    steps: int
    """Training steps done."""
    alarms: tuple[Alarm, ...]
    """Every alarm at the step at which there was evidence for it."""
    lasting: tuple[str, ...]
    """Names of the alarms for which there still is at the end."""
    figures: tuple[Moved, ...]
    held_out: tuple[HeldOutScore, ...]
    usage: dict[str, dict[str, Finite]] = Field(default_factory=dict)
    """Role to `tokens_in`, `tokens_out` and, where all steps have prices, `usd`, over all training
    steps; held-out evaluations are not in it."""
    groups: dict[str, Finite] = Field(default_factory=dict)
    """Shares of equal groups in the last window: `seen`, `expected`, `expected_by_task`; with
    `p` and `group_size`."""
    seconds: dict[str, Finite] = Field(default_factory=dict)
    """Seconds of a step in the last window, by what they went to."""


def diagnose(
    run: Path,
    *,
    thresholds: Thresholds | None = None,
    steps: Iterable[tuple[int, dict[str, Any]]] | None = None,
) -> Diagnosis:
    """Read a run and look at it after each of its steps.

    Args:
        run: Folder of a training run: `metrics.jsonl`, traces of its steps, or both.
        thresholds: Where alarms begin; default: those of the run's own config.
        steps: What `read_steps` said, for a caller that has asked already.

    Raises:
        TrainingError: If there is no run, or its files can't be read.
        TraceError: If its traces can't be read.
    """
    history = RunHistory(thresholds or thresholds_of(run))
    scores = read_scores(run / EVALUATIONS_FILE)
    book = AlarmBook()
    for step, values in read_steps(run) if steps is None else steps:
        while scores and scores[0].step <= step:
            history.add_evaluation(scores.pop(0))
        history.add(step, values)
        book.add(look(history))
    for score in scores:
        history.add_evaluation(score)
    if not history.steps:
        raise TrainingError(_missing(run))
    at_the_end = look(history)
    book.add(at_the_end)
    alarms = {alarm.name: alarm for alarm in book.alarms}
    if thresholds is None:  # what the run itself raised, also before it was resumed
        alarms |= {alarm.name: alarm for alarm in read_alarms(run / ALARMS_FILE)}
    return Diagnosis(
        run=run,
        steps=history.now,
        alarms=tuple(sorted(alarms.values(), key=lambda alarm: alarm.step)),
        lasting=tuple(alarm.name for alarm in at_the_end),
        figures=tuple(_figures(history)),
        held_out=tuple(history.evaluations),
        usage=_usage(history),
        groups=_groups(history),
        seconds=_seconds(history),
    )


def _missing(run: Path) -> str:
    """What is wrong with a folder that has no run."""
    wanted = (
        f"give the folder that `agentgym train --out` got, with {METRICS_FILE} or "
        "traces-step….jsonl in it"
    )
    if not run.exists():
        return f"there is no folder {run}: {wanted}"
    if not run.is_dir():
        return f"{run} is a file: {wanted}"
    if (run / CONFIG_FILE).exists() or any(run.glob("traces-step*.jsonl")):
        return (
            f"{run} has a run, and no step that is done and can be read: wait for its first, or "
            f"copy its {METRICS_FILE}"
        )
    for file in (CONFIG_FILE, METRICS_FILE):
        inside = [found.parent.name for found in sorted(run.glob(f"*/{file}"))]
        if inside:
            return f"{run} has no steps of a training run, but its folder {inside[0]!r} may"
    return f"{run} has no steps of a training run: {wanted}"


def read_steps(run: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The metrics of each step, from `metrics.jsonl` and, for what that lacks, from the traces.

    Traces beyond the last step that was logged are of a step that isn't done, or of an attempt that
    counts no more. Where nothing was logged, the last traces are of a step that isn't done if they
    are fewer than a step has.

    Yields:
        Training steps done with it, and its metrics by the names under which they are logged.
    """
    logged = _read_metrics(run / METRICS_FILE)
    last = max(logged, default=math.inf)
    files: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(run.glob("traces-step*.jsonl")) if run.is_dir() else ():
        match = _TRACES.fullmatch(path.name)
        if match is not None and int(match[1]) < last:
            files[int(match[1]) + 1].append(path)
    tasks = TaskHistory()
    whole = _episodes_of_a_step(run)
    newest = max(files, default=0) if not logged else 0
    for step in sorted({*logged, *files}):
        values = logged.get(step, {})
        if _ENOUGH not in values and step in files:
            values = {**_from_traces(files[step], step - 1, tasks), **values}
            played = values.get(OURS + "episodes", 0.0)
            if step == newest and played < whole:
                return
            whole = max(whole, played)
        if values:
            yield step, values


def _episodes_of_a_step(run: Path) -> float:
    """What a step of the run has at least, by its config; 0 where there is none."""
    try:
        settings = json.loads((run / CONFIG_FILE).read_text(encoding="utf-8"))
        return float(settings["tasks_per_step"] * settings["group_size"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def _from_traces(paths: list[Path], step: int, tasks: TaskHistory) -> dict[str, float]:
    """A step's metrics from its traces; how long its rollout took isn't in them."""
    traces = [trace for path in paths for trace in read_traces(path)]
    if not traces:
        return {}
    rows = [training_row(trace, filler_id=0) for trace in traces]
    has_ids = any(turn.completion_ids for trace in traces for turn in trace.turns)
    rewards = [
        None if row.fault and has_ids else trace.reward
        for row, trace in zip(rows, traces, strict=True)
    ]
    metrics = batch_metrics(PlayedBatch(step, True, traces, rows, rewards, seconds=0.0))
    if (expected := tasks.expect(outcomes_of(traces))) is not None:
        metrics["groups_equal_expected_by_task"] = expected
    left_out = {"rollout_s", "tokens_per_s"} | (set() if has_ids else {"masked/rows"})
    return {OURS + name: value for name, value in metrics.items() if name not in left_out}


def _read_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Lines of a metrics file by step; a resumed run's later line takes the earlier one's place."""
    found: dict[int, dict[str, Any]] = {}  # by rising step
    for values in read_json_lines(path):
        step = values.pop("step", None)
        if type(step) is not int or step < 1:
            continue
        while found and next(reversed(found)) >= step:
            found.popitem()
        found[step] = values
    return found


def thresholds_of(run: Path) -> Thresholds:
    """Those that the run was made with; the usual ones where it doesn't say.

    Raises:
        TrainingError: If its settings can't be read.
    """
    path = run / CONFIG_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        return Thresholds.model_validate(settings.get("monitors") or {})
    except (FileNotFoundError, NotADirectoryError):
        return Thresholds()
    except ValidationError as error:
        raise TrainingError(
            f"can't read the monitors' settings in {path}: {in_one_line(error)}"
        ) from error
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise TrainingError(
            f"can't read the settings in {path}, which should be the JSON object that `agentgym "
            f"train` wrote: {error}"
        ) from error


_FIGURES = (
    "reward", "agentgym/correct", "agentgym/completed", "agentgym/groups_without_signal",
    "agentgym/malformed", "agentgym/cut_off", "agentgym/turn_cap_unanswered",
    "agentgym/truncated", "agentgym/masked", "agentgym/turns", "agentgym/tokens", "entropy",
    "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean", "kl",
    "grad_norm", "agentgym/weights/lag",
)  # fmt: skip


_SHARES = frozenset(
    {"correct", "completed", "groups_without_signal", "malformed", "cut_off", "masked"}
    | {"turn_cap_unanswered", "truncated"}
)


def _figures(history: RunHistory) -> Iterator[Moved]:
    parts = [
        f"{OURS}{part}/{name}"
        for part in ("components", "gates")
        for name in history.names(f"{part}/")
    ]
    for full in (*_FIGURES, *parts):
        name = full.removeprefix(OURS)
        if full == "reward" and not history.of(name):
            name = "reward/mean"
        is_share = name in _SHARES or name.startswith("gates/")
        range_ = history.share(name) if is_share else history.mean(name)
        last = history.recent(name) if is_share else mean(history.last(name))
        first = mean(history.first(name))
        if first is None or last is None:
            continue
        yield Moved(
            name=full.removeprefix(OURS),
            first=first,
            last=last,
            low=None if range_ is None else range_.low,
            high=None if range_ is None else range_.high,
            n=len(history.of(name)),
        )


def _usage(history: RunHistory) -> dict[str, dict[str, float]]:
    total: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    priced: dict[str, set[bool]] = defaultdict(set)
    for step in history.steps:
        for name, value in step.values.items():
            if name.startswith(f"{OURS}usage/"):
                role, _, what = name.removeprefix(f"{OURS}usage/").rpartition("/")
                total[role][what] += value
                if what != "usd" and value:
                    priced[role].add(f"{OURS}usage/{role}/usd" in step.values)
    for role in total:
        if priced[role] == {True, False}:  # a price that was known from some step on
            total[role].pop("usd")
    return {role: dict(each) for role, each in total.items()}


def _groups(history: RunHistory) -> dict[str, float]:
    names = {
        "seen": "groups_equal", "expected_by_task": "groups_equal_expected_by_task",
        "p": "correct", "group_size": "group_size",
    }  # fmt: skip
    recent = {short: history.recent(name) for short, name in names.items()}
    found = {short: value for short, value in recent.items() if value is not None}
    if 0 <= found.get("p", -1) <= 1 and found.get("group_size", 0) >= 1:
        found["expected"] = expected_without_signal(found["p"], found["group_size"])
    return found


def _seconds(history: RunHistory) -> dict[str, float]:
    found = {name: history.recent(f"time_s/{name}") for name in history.names("time_s/")}
    return {name: value for name, value in found.items() if value is not None}
