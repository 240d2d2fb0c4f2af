"""What episodes have cost, one by one, as their traces tell.

Every attempt was paid for: those that failed, those that a later one took the place of, those that
were cancelled. A trace has its own attempts in its usage; a line that a later one supersedes is an
attempt, too, and where only the verdict was made again it shares the conversation's bill with its
successor, so that just the verdict's part is new.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentgym.client import Prices
from agentgym.errors import DataError, TraceError
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile
from agentgym.types import Usage

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["rollout", "training", "evaluation"]

_STEP_FILE = re.compile(
    r"traces-(?P<kind>[a-z-]+?)(?P<step>\d{6,})(-rank\d+)?(?P<unused>\.unused\d+)?$"
)
_EVALUATION = "traces"
"""The folder in which `agentgym eval run` has a file per column."""


@dataclass(frozen=True)
class EpisodeBill:
    """What one line of a trace file stands for, as far as it costs anything."""

    usage: Mapping[str, Usage]
    """Tokens and dollars by role."""
    counts: bool
    """Whether it is an episode; if not, an attempt of one that is elsewhere, or cancelled."""
    kind: Kind = "rollout"
    step: int | None = None
    """Training steps done when it was played; None outside of training."""
    task: str = ""
    """The env and the task, or what tells it from all others where that isn't known."""
    played: bool = False
    """Whether it was played to an end that is the policy's own doing."""
    scored: bool = False
    solved: bool = False
    earlier: int = 0
    """Attempts at it before this one, which are in its usage."""
    turns: Sequence[Usage | None] = ()
    """The policy's call of each turn, attempts that failed included."""
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    """Which models answered, by role, as far as the trace tells."""


@dataclass(frozen=True)
class ModelFacts:
    """What a trace tells of one role's model."""

    name: str | None
    prices: Prices | None = None


def bills_of(paths: Sequence[Path]) -> Iterator[EpisodeBill]:
    """The bills of all episodes in files and folders; nothing is kept.

    A file that is named twice, or that lies in a folder that is named, too, is read once.

    Args:
        paths: Trace files, and folders of runs: of `agentgym rollout`, `eval run` or `train`, or
            with such folders somewhere inside.

    Raises:
        DataError: If there is no trace in one of them.
        TraceError: If a file can't be read, or has something else in it.
    """
    read: set[Path] = set()
    for path in paths:
        files = trace_files(path)
        found = False
        for file in files:
            if (whole := file.resolve()) in read:
                found = True
                continue
            read.add(whole)
            for bill in _bills_of_file(file):
                found = found or bill.counts
                yield bill
        if not found:
            raise DataError(
                f"{path} has no traces to add up; name a trace file, or a folder that "
                "`agentgym rollout`, `eval run` or `train` has written"
            )


def trace_files(path: Path) -> list[Path]:
    """The files with traces in a folder, those of cancelled attempts too; or the file itself.

    Raises:
        DataError: If there is no such file or folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"there is no {path}")
    found = sorted(
        file
        for file in path.rglob("*.jsonl")
        if file.name.startswith("traces") or file.parent.name == _EVALUATION
    )
    beside = {file.parent / "cancelled.jsonl" for file in found if file.name == "traces.jsonl"}
    return found + sorted(file for file in beside if file.exists())


def _bills_of_file(path: Path) -> Iterator[EpisodeBill]:
    if path.name == "cancelled.jsonl":
        yield from _cancelled(path)
        return
    kind, step, unused = _place(path)
    models: dict[str, Mapping[str, ModelFacts]] = {}
    for trace, successor in TraceFile(path).with_successors():
        key = trace.env_spec + json.dumps(trace.policy.get("model"))
        if key not in models:
            models[key] = _models(trace)
        if successor is not None or unused:
            judged_again = successor == trace.trace_id and not unused
            spent = trace.verdict.spent if judged_again else trace.usage
            yield EpisodeBill(dict(spent), counts=False, kind=kind, step=step, models=models[key])
            continue
        yield _bill(trace, kind, step, models[key])


def _bill(
    trace: Trace, kind: Kind, step: int | None, models: Mapping[str, ModelFacts]
) -> EpisodeBill:
    return EpisodeBill(
        trace.usage,
        counts=True,
        kind=kind,
        step=step,
        task=_task(trace),
        played=trace.failure_class in (None, "policy") and bool(trace.turns),
        scored=trace.scored,
        solved=trace.verdict.correct is True,
        earlier=len(trace.earlier),
        turns=tuple(turn.usage for turn in trace.turns),
        models=models,
    )


def _task(trace: Trace) -> str:
    """What tells a task from those of the other envs; an env's parameters don't."""
    if trace.task_id is None:
        return trace.trace_id
    return f"{_env_id(trace.env_spec)} {trace.task_id}"


@lru_cache(maxsize=256)
def _env_id(env_spec: str) -> str:
    try:
        spec = json.loads(env_spec)
    except ValueError:
        return env_spec
    return str(spec.get("id")) if isinstance(spec, dict) else env_spec


def _place(path: Path) -> tuple[Kind, int | None, bool]:
    """What a file is: of which part of a run, of which step, and whether it counts no more."""
    match = _STEP_FILE.match(path.name.removesuffix(".jsonl"))
    if match is None:
        return ("evaluation" if path.parent.name == _EVALUATION else "rollout"), None, False
    kind: Kind = "training" if match["kind"] == "step" else "evaluation"
    return kind, int(match["step"]), match["unused"] is not None


def _cancelled(path: Path) -> Iterator[EpisodeBill]:
    """What cancelled episodes have cost, which no trace tells."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"can't read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            usage = {role: Usage.model_validate(used) for role, used in values.items()}
        except (ValueError, AttributeError) as error:
            logger.warning("%s, line %d is left out: %s", path, number, type(error).__name__)
            continue
        yield EpisodeBill(usage, counts=False)


def _models(trace: Trace) -> dict[str, ModelFacts]:
    """The models that a trace names: the policy's, and those in the env's parameters."""
    model = trace.policy.get("model")
    found = {"policy": ModelFacts(model if isinstance(model, str) else None)}
    try:
        spec = json.loads(trace.env_spec)
    except ValueError:
        return found
    kwargs = spec.get("kwargs") if isinstance(spec, dict) else None
    for role, value in (kwargs or {}).items():
        if isinstance(value, dict) and "base_url" in value and "model" in value:
            found[str(value.get("role", role))] = ModelFacts(
                str(value["model"]), _prices(value.get("prices"))
            )
    return found


def _prices(values: Any) -> Prices | None:
    try:
        return Prices.model_validate(values) if values else None
    except ValueError:
        return None
