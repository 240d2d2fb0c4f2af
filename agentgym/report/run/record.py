"""All that the folder of a training run tells, read once.

Nothing here needs the training stack: a folder can be copied to a laptop and looked at there. A run
that is still going, was killed or was resumed is read as far as it went.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from agentgym.client import named_secrets, public_url
from agentgym.errors import TraceError, TrainingError
from agentgym.redaction import Redactor
from agentgym.roles import public_kwargs
from agentgym.traces import TraceFile
from agentgym.train.files import CONFIG_FILE, EVALUATIONS_FILE, METRICS_FILE, STARTS_FILE
from agentgym.train.monitors import Alarm, Diagnosis, RunHistory, Thresholds, diagnose
from agentgym.train.monitors.history import OURS
from agentgym.train.monitors.offline import read_steps, thresholds_of
from agentgym.train.starts import RunEnd, RunStart, read_budget_end, read_starts

State = Literal["finished", "stopped", "budget", "unfinished"]
_QUIET_STEPS = 10
"""Steps' time without a word after which a run has hardly just been slow."""
_QUIET_S = 600.0
"""The same where no step has told how long it takes."""
_GROWING = (METRICS_FILE, EVALUATIONS_FILE, STARTS_FILE)


@dataclass(frozen=True)
class TrainingRecord:
    """A training run as its files have it."""

    folder: Path
    config: Mapping[str, Any]
    """The run's settings, without secrets; empty where there are none."""
    history: RunHistory
    diagnosis: Diagnosis
    starts: Sequence[RunStart]
    package: str | None
    """Version of agentgym that the first trace names, for runs without `starts.jsonl`."""
    written_at: datetime
    """When a file of the run was last written."""
    state: State
    now: datetime
    """When it was read."""
    budget_end: RunEnd | None = None
    """How its budget ended it, if that was the last that happened."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What is odd about the files, a sentence each."""

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self.history.now

    @property
    def planned(self) -> int | None:
        """Training steps that the run is to have."""
        steps = self.config.get("steps")
        return steps if type(steps) is int else None

    @property
    def thresholds(self) -> Thresholds:
        """Where alarms begin."""
        return self.history.thresholds

    @property
    def alarms(self) -> Sequence[Alarm]:
        """By the step at which there was evidence for them."""
        return self.diagnosis.alarms

    @property
    def resumes(self) -> list[RunStart]:
        """The starts that went on from a checkpoint."""
        return [start for start in self.starts if start.step > 0]

    @cached_property
    def seems_alive(self) -> bool:
        """Whether an unfinished run has written something lately."""
        steps_s = self.history.last("time_s/step") or self.history.last("step_time")
        patience = _QUIET_STEPS * max(steps_s) if steps_s else _QUIET_S
        quiet = (self.now - self.written_at).total_seconds()
        return self.state == "unfinished" and quiet < max(patience, 60.0)

    def values(self, name: str) -> tuple[list[int], list[float]]:
        """Steps that have a metric, and its values; ours without their prefix."""
        return self.history.steps_with(name), list(self.history.of(name))

    def names(self, prefix: str) -> list[str]:
        """Names of our metrics that begin so, without the prefix, in any step."""
        full = OURS + prefix
        found = {name for step in self.history.steps for name in step.values}
        return sorted(name.removeprefix(full) for name in found if name.startswith(full))


def read_training(folder: Path, *, now: datetime | None = None) -> TrainingRecord:
    """Read a run.

    Args:
        folder: What `agentgym train --out` got.
        now: The time, for what is said about a run that is still going.

    Raises:
        TrainingError: If there is no run, no step of it is done, or its files can't be read.
        TraceError: If its traces can't be read.
    """
    thresholds = thresholds_of(folder)
    steps = list(read_steps(folder))
    if (folder / CONFIG_FILE).exists() and (not steps or no_step_is_done(folder)):
        raise TrainingError(
            f"{folder} has a run of which no step is done yet ({CONFIG_FILE} is there, "
            f"{METRICS_FILE} has no step); --watch waits for the first"
        )
    diagnosis = diagnose(folder, steps=steps)
    history = RunHistory(thresholds)
    for step, values in steps:
        history.add(step, values)
    for score in diagnosis.held_out:
        history.add_evaluation(score)
    if not any(history.of(name) for name in ("reward", "reward/mean", "masked", "loss")):
        raise TrainingError(
            f"{folder / METRICS_FILE} has {len(history.steps)} steps and no metric of TRL's or "
            "agentgym's in them; give the folder that `agentgym train --out` got"
        )
    config = _settings(folder)
    now = now or datetime.now(UTC)
    budget_end = read_budget_end(folder)
    return TrainingRecord(
        folder=folder,
        config=config,
        history=history,
        diagnosis=diagnosis,
        starts=[_public_start(start) for start in read_starts(folder)],
        package=_package(folder),
        written_at=_last_written(folder, now),
        state=_state(config, history, diagnosis, budget_end),
        now=now,
        budget_end=budget_end,
        notes=tuple(_notes(folder, history, config)),
    )


def no_step_is_done(folder: Path) -> bool:
    """Whether a run has logged nothing and plays its first step, whose traces are only a part."""
    if (folder / METRICS_FILE).exists():
        return False
    return all(path.name.startswith("traces-step000000") for path in _step_traces(folder))


def _step_traces(folder: Path) -> list[Path]:
    return sorted(folder.glob("traces-step*.jsonl"))


def _settings(folder: Path) -> dict[str, Any]:
    """The config without secrets; `thresholds_of` has seen that it can be read."""
    try:
        text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    except OSError:
        return {}
    found: dict[str, Any] = _public(json.loads(text))
    return found


def _public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without secrets."""
    clean = public_kwargs(settings)
    policy = dict(clean["policy"]) if isinstance(clean.get("policy"), Mapping) else {}
    for name in ("servers", "service"):
        urls = policy.get(name)
        if isinstance(urls, str):
            policy[name] = public_url(urls)
        elif isinstance(urls, list):
            policy[name] = [public_url(str(url)) for url in urls]
    if policy:
        clean["policy"] = policy
    redactor = Redactor(named_secrets(clean))  # TRL's own settings have some, such as `hub_token`
    redacted: dict[str, Any] = json.loads(redactor(json.dumps(clean)))
    return redacted


def _public_start(start: RunStart) -> RunStart:
    """A start whose changed settings have no secrets."""
    changed = {}
    for name, values in start.changed.items():
        table, _, inner = name.rpartition(".")
        found = []
        for value in values:
            clean = _public({table: {inner: value}} if table else {inner: value})
            found.append(clean[table][inner] if table else clean[inner])
        changed[name] = (found[0], found[1])
    return start.model_copy(update={"changed": changed})


def _package(folder: Path) -> str | None:
    """The version in the first trace; traces that can't be read cost only that."""
    with suppress(TraceError):
        for path in sorted(folder.glob("traces-*.jsonl"))[:1]:
            for trace in TraceFile(path):
                version = trace.metadata.get("agentgym")
                return version if isinstance(version, str) else None
    return None


def _last_written(folder: Path, now: datetime) -> datetime:
    paths = [folder / name for name in _GROWING] + sorted(folder.glob("traces-*.jsonl"))
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return datetime.fromtimestamp(max(times), UTC) if times else now


def _state(
    config: Mapping[str, Any],
    history: RunHistory,
    diagnosis: Diagnosis,
    budget_end: RunEnd | None,
) -> State:
    stop_on = set(config.get("stop_on") or ())
    now = [alarm for alarm in diagnosis.alarms if alarm.step == history.now]
    planned = config.get("steps")
    if type(planned) is int and history.now >= planned:
        return "finished"
    if any(stop_on & {alarm.name, alarm.kind} for alarm in now):
        return "stopped"
    if budget_end is not None:
        return "budget"
    return "unfinished"


def _notes(folder: Path, history: RunHistory, config: Mapping[str, Any]) -> list[str]:
    numbers = [step.step for step in history.steps]
    missing = sum(b - a - 1 for a, b in pairwise(numbers)) + (numbers[0] - 1)
    notes = []
    if missing:
        notes.append(
            f"{missing} of the steps up to {numbers[-1]} are not in the files; lines go across "
            "such gaps."
        )
    if not config:
        notes.append(f"There is no {CONFIG_FILE}, so the settings are unknown.")
    metrics = folder / METRICS_FILE
    if not metrics.exists():
        notes.append(
            f"There is no {METRICS_FILE}; the figures are worked out from the traces, which know "
            "nothing of the optimiser and of time."
        )
    elif torn := _torn_lines(metrics):
        notes.append(
            f"{torn} line(s) of {METRICS_FILE} could not be read, as after a crash, and are left "
            "out."
        )
    return notes


def _torn_lines(path: Path) -> int:
    torn = 0
    with path.open("rb") as file:
        for line in file:
            try:
                torn += bool(line.strip()) and not isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                torn += 1
    return torn
