"""The file that an evaluation leaves: who attempted which tasks, and what came of each attempt.

It holds facts, one row per episode, and no figures: means, intervals and comparisons are derived
from the rows by whoever reads them, so that two readers can't disagree and a formula that is mended
is mended for old files, too. What decides whether two files may be compared (the environment, the
content of the tasks, sampling, prompts, judges, code) is in it as well.

Written whole or not at all, and read strictly: half a file, another schema or no episode at all is
one line that says so. `schema_version` goes up whenever a reader of the old shape would misread the
new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from agentgym.durable import write_whole
from agentgym.errors import DataError
from agentgym.redaction import Redactor
from agentgym.types import (
    FailureClass,
    Finite,
    Record,
    TruncationReason,
    Usage,
    clean_json,
    in_one_line,
)

SCHEMA_VERSION: Literal[1] = 1
KIND: Literal["agentgym-evaluation"] = "agentgym-evaluation"
RESULT_FILE = "result.json"
"""What it is called in the folder of an evaluation."""

ColumnKind: TypeAlias = Literal["policy", "baseline", "scripted"]


class Attempt(Record):
    """What came of one episode."""

    task_id: str
    sample: int = Field(default=0, ge=0)
    """Which attempt at the task this is."""
    trace_id: str | None = None
    """The episode in the column's trace file."""
    external: Finite | None = None
    """The external score, which is not the training reward; None where the episode has none,
    because something other than the policy broke."""
    correct: bool | None = None
    """Whether the task was solved by the external score; None exactly where that is None."""
    completed: bool = False
    """Whether a final answer (a purchase, …) came. Not the same as correct."""
    reward: Finite | None = None
    """The training reward, for comparison; None when masked."""
    turns: int = Field(default=0, ge=0)
    truncation_reason: TruncationReason | None = None
    """Which limit cut it; None where none did."""
    malformed: int = Field(default=0, ge=0)
    """Calls that could not be read as they were, over all turns."""
    gates: dict[str, bool] = Field(default_factory=dict)
    """Gate name to whether it tripped."""
    failure_class: FailureClass | None = None
    """Who is to blame where it has no score or was not solved."""
    error: str | None = None
    """Why it has no score, in one line."""
    usage: dict[str, Usage] = Field(default_factory=dict)
    """Tokens and dollars by role, earlier attempts at the episode included."""
    seconds: Finite = Field(default=0.0, ge=0)
    """Time it took; waiting in a queue is not counted."""

    @model_validator(mode="after")
    def _unscored_is_not_zero(self) -> Self:
        if (self.external is None) != (self.correct is None):
            raise ValueError("external and correct are both known or both None")
        return self

    @property
    def scored(self) -> bool:
        """Whether it has an external score; one that has none is no failure of the policy."""
        return self.correct is not None

    @property
    def cost_usd(self) -> float | None:
        """US dollars over all roles; None where a role that was used has no price."""
        costs = [usage.cost_usd for usage in self.usage.values() if not usage.is_nothing]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


class TaskFacts(Record):
    """What identifies a task beyond its name."""

    content: str
    """Hash of what the task is: see `content_hash`. The same id may be another task elsewhere."""
    family: str | None = None
    """Kind of task, where the env has kinds."""


class Column(Record):
    """One system that attempted the tasks."""

    name: str = Field(min_length=1)
    """What it is called in tables; unique within the file."""
    kind: ColumnKind
    """`policy`: a model that is or could be trained. `baseline`: a model to compare with, such as a
    hosted one. `scripted`: no model (random, rule, oracle)."""
    model: str | None = None
    """Model name as the server knows it; None for a scripted policy."""
    endpoint: str | None = None
    """Where it was asked, without what may be a secret."""
    weight_version: str | None = None
    """The weights it had, where that is known."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters in effect."""
    hashes: dict[str, str] = Field(default_factory=dict)
    """What else a score hangs on, by name (`prompt`, `judge`, `simulator`, `external`), each as a
    `content_hash`."""
    code_version: str
    """Version of agentgym that played it, with the commit where that is known."""
    trace_file: str | None = None
    """Its traces, relative to the result file."""
    attempts: tuple[Attempt, ...] = ()

    @model_validator(mode="after")
    def _each_attempt_once(self) -> Self:
        counts = Counter((attempt.task_id, attempt.sample) for attempt in self.attempts)
        twice = next((key for key, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"task {twice[0]!r} has two attempts with sample {twice[1]}")
        return self


class EvaluationResult(Record):
    """An evaluation: its tasks, and one column per system that attempted them."""

    kind: Literal["agentgym-evaluation"] = KIND
    schema_version: Literal[1] = SCHEMA_VERSION
    created_at: str
    """UTC, ISO 8601."""
    env_id: str
    env_spec: str
    """Gymnasium's `EnvSpec` as JSON, without what may be a secret."""
    split: str | None = None
    external_score: str
    """Name of the external score, such as `webshop/purchase`."""
    samples: int = Field(ge=1)
    """Attempts per task and column that were asked for."""
    seed: int | None = None
    """The run's seed."""
    limits: dict[str, int] = Field(default_factory=dict)
    """Limits on an episode that the run set, such as `max_turns`; else the env's own hold."""
    tasks: dict[str, TaskFacts]
    """The tasks that were asked for, by id, in order."""
    columns: tuple[Column, ...]

    @model_validator(mode="after")
    def _columns_fit_the_tasks(self) -> Self:
        names = Counter(column.name for column in self.columns)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"two columns are called {twice!r}")
        for column in self.columns:
            for attempt in column.attempts:
                if attempt.task_id not in self.tasks:
                    raise ValueError(
                        f"column {column.name!r} has an attempt at {attempt.task_id!r}, which is "
                        "none of the tasks"
                    )
        return self

    @property
    def tasks_hash(self) -> str:
        """One hash for the contents of all tasks, whatever their order."""
        return content_hash({task: facts.content for task, facts in self.tasks.items()})

    @property
    def n_planned(self) -> int:
        """Episodes per column that were asked for."""
        return len(self.tasks) * self.samples

    def column(self, name: str) -> Column:
        """A column by its name.

        Raises:
            DataError: If there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(column.name for column in self.columns)
        raise DataError(f"no column {name!r}; the columns are {names}")

    def to_json(self) -> str:
        """The file's text: one line per task and attempt, so that differences can be read."""
        head = self.model_dump(mode="json", exclude={"columns", "tasks"})
        tasks = [
            f"{_json(task)}: {_json(facts.model_dump())}" for task, facts in self.tasks.items()
        ]
        columns = [
            _opened(_json(column.model_dump(mode="json", exclude={"attempts"})))
            + '"attempts": [\n'
            + ",\n".join(_row(attempt) for attempt in column.attempts)
            + "\n]}"
            for column in self.columns
        ]
        return (
            _opened(_json(head, indent=1)).rstrip()
            + '\n "tasks": {\n'
            + ",\n".join(tasks)
            + '\n },\n "columns": [\n'
            + ",\n".join(columns)
            + "\n]}\n"
        )


def _row(attempt: Attempt) -> str:
    try:
        return attempt.model_dump_json(exclude_defaults=True)
    except ValueError:  # pydantic-core's: lone surrogates; the slow way takes all
        return _json(attempt.model_dump(exclude_defaults=True))


def _json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(clean_json(value), indent=indent, allow_nan=False)


def _opened(text: str) -> str:
    """The text of a JSON object, ready to take another field."""
    return text.removesuffix("}").rstrip() + ", "


def content_hash(value: Any) -> str:
    """A hash of a JSON value that doesn't depend on the order of its keys; 16 hex digits.

    For a task, the value is what makes it this task: opening messages, tools, reference.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_result(path: str | os.PathLike[str], result: EvaluationResult) -> None:
    """Write a result; the file is replaced as a whole, and credentials are left out.

    Raises:
        DataError: If it can't be written, or tasks couldn't be told apart without what looks like a
            credential in their names; what was there before stays.
    """
    redact = Redactor()
    for kind, names in (("tasks", [*result.tasks]), ("columns", [c.name for c in result.columns])):
        if len({redact(_json(name)) for name in names}) < len(names):
            raise DataError(
                f"can't write {os.fspath(path)}: the names of several {kind} look like "
                "credentials, which are left out, and would be one and the same; name them "
                "otherwise"
            )
    try:
        write_whole(Path(path), redact(result.to_json()))
    except OSError as error:
        raise DataError(f"can't write {os.fspath(path)}: {error.strerror or error}") from error


def read_result(path: str | os.PathLike[str]) -> EvaluationResult:
    """Read a result.

    Args:
        path: The file, or the folder that `agentgym eval run` wrote it to.

    Raises:
        DataError: If the file can't be read, was cut, is something else, has another schema version
            or holds no episode; one line that says which.
    """
    file = Path(path)
    if file.is_dir():
        file = file / RESULT_FILE
        if not file.exists():
            raise DataError(f"{os.fspath(path)} is a folder without a {RESULT_FILE}")
    where = str(file)
    try:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise DataError(f"can't read {where}: {error.strerror or error}") from error
    result = _parsed(text, where)
    if not any(column.attempts for column in result.columns):
        raise DataError(f"{where} holds no episode; nothing was played, or the run was stopped")
    return result


def _parsed(text: str, where: str) -> EvaluationResult:
    try:
        result = EvaluationResult.model_validate_json(text)
        if {"kind", "schema_version"} <= result.model_fields_set:
            return result
    except ValidationError:
        pass  # read the careful way, which says what is wrong and takes any text
    if not text.strip():
        raise DataError(f"{where} is empty")
    try:
        values = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(_why_no_json(text, where)) from error
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise DataError(f"{where} is no evaluation result; `agentgym eval run` writes those")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        advice = "; upgrade agentgym to read it" if newer else ""
        raise DataError(
            f"{where}: schema version {version!r}; this agentgym reads version "
            f"{SCHEMA_VERSION}{advice}"
        )
    try:
        return EvaluationResult.model_validate_json(json.dumps(clean_json(values)))
    except ValidationError as error:
        raise DataError(f"{where}: {in_one_line(error)}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _why_no_json(text: str, where: str) -> str:
    first = text.lstrip().partition("\n")[0]
    if '"trace_id"' in first and '"verdict"' in first:
        kind = "a file of traces, not an evaluation result"
        return f"{where} is {kind}; `agentgym eval run` writes those"
    if KIND in text[:200]:
        return f"{where} was cut in the middle or edited: it is no JSON; play the evaluation again"
    return f"{where} is no evaluation result: it is no JSON"
