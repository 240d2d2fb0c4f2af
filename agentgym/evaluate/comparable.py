"""Whether two systems were evaluated alike, and if not, in what they weren't.

A difference in success is the systems' own only if everything else was the same. What was not is
said in three grades: some of it makes the two numbers speak of different things, some of it may be
what made the difference, and some is only good to know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from agentgym.evaluate.result import Column, EvaluationResult
from agentgym.statistics import MAX_UNSCORED
from agentgym.types import Record

Grade: TypeAlias = Literal["blocks", "confounds", "notes"]
_SHOWN_TASKS = 3
_SHOWN_CHARS = 60


class System(NamedTuple):
    """One column of one evaluation, under the name it has in a comparison."""

    label: str
    result: EvaluationResult
    column: Column


class Reason(Record):
    """Something in which two evaluations differ."""

    grade: Grade
    """`blocks`: the figures are of different things. `confounds`: it may be what makes the
    difference. `notes`: good to know."""
    what: str
    """What differs: `env`, `tasks`, `external`, `sampling`, `prompt`, `code`, …"""
    text: str
    """One line, with both values."""


class CommonTasks(NamedTuple):
    """The tasks of two evaluations, told apart by their content and not only by their names."""

    common: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[str, ...]
    """Tasks of one name with another content."""


def common_tasks(a: System, b: System) -> CommonTasks:
    """Which tasks both systems attempted, and which only one."""
    mine = {attempt.task_id: a.result.tasks[attempt.task_id] for attempt in a.column.attempts}
    other = {attempt.task_id: b.result.tasks[attempt.task_id] for attempt in b.column.attempts}
    shared = [task for task in mine if task in other]
    same = {task for task in shared if mine[task].content == other[task].content}
    return CommonTasks(
        common=tuple(task for task in shared if task in same),
        only_a=tuple(task for task in mine if task not in other),
        only_b=tuple(task for task in other if task not in mine),
        changed=tuple(task for task in shared if task not in same),
    )


def reasons_between(a: System, b: System) -> list[Reason]:
    """Everything in which the two evaluations differ, but the systems themselves.

    Model, endpoint and weights are what is being compared and are no reason.
    """
    return [
        *_env(a, b),
        *_limits(a, b),
        *_external(a, b),
        *_tasks(a, b),
        *_sampling(a, b),
        *_hashes(a, b),
        *_code(a, b),
        *_unscored(a, b),
        *_extent(a, b),
    ]


def _env(a: System, b: System) -> Iterable[Reason]:
    if a.result.env_id != b.result.env_id:
        yield Reason(
            grade="blocks",
            what="env",
            text=f"another environment: {a.result.env_id} and {b.result.env_id}",
        )
        return
    mine, other = _parameters(a.result.env_spec), _parameters(b.result.env_spec)
    differing = _differing(mine, other)
    if differing:
        yield Reason(
            grade="confounds",
            what="env",
            text=f"the environment's parameters differ: {differing}",
        )


def _limits(a: System, b: System) -> Iterable[Reason]:
    differing = _differing(a.result.limits, b.result.limits)
    if differing:
        yield Reason(grade="confounds", what="limits", text=f"limits differ: {differing}")


def _external(a: System, b: System) -> Iterable[Reason]:
    mine, other = a.result.external_score, b.result.external_score
    if mine != other:
        yield Reason(
            grade="blocks", what="external", text=f"another external score: {mine} and {other}"
        )
    elif _both_differ(a.column.hashes.get("external"), b.column.hashes.get("external")):
        yield Reason(
            grade="blocks",
            what="external",
            text=f"the external score {mine} was computed by other code; play or score one again",
        )


def _tasks(a: System, b: System) -> Iterable[Reason]:
    found = common_tasks(a, b)
    if not found.common:
        why = (
            f"all {len(found.changed)} tasks of the same name have another content"
            if found.changed and not (found.only_a or found.only_b)
            else f"{a.label} has {_listed(found.only_a or found.changed)} and {b.label} has "
            f"{_listed(found.only_b or found.changed)}"
        )
        yield Reason(grade="blocks", what="tasks", text=f"no task in common: {why}")
        return
    if found.changed:
        yield Reason(
            grade="confounds",
            what="tasks",
            text="left out, since they have the same name and another content: "
            f"{_listed(found.changed)}",
        )
    for system, only in ((a, found.only_a), (b, found.only_b)):
        if only:
            yield Reason(
                grade="notes",
                what="tasks",
                text=f"left out, since only {system.label} has them: {_listed(only)}",
            )


def _sampling(a: System, b: System) -> Iterable[Reason]:
    if "scripted" in (a.column.kind, b.column.kind):
        return
    mine, other = (
        {name: value for name, value in each.column.sampling.items() if name != "seed"}
        for each in (a, b)
    )
    differing = _differing(mine, other)
    if differing:
        yield Reason(grade="confounds", what="sampling", text=f"sampling differs: {differing}")


def _hashes(a: System, b: System) -> Iterable[Reason]:
    mine, other = a.column.hashes, b.column.hashes
    for name in dict.fromkeys([*mine, *other]):
        if name == "external":
            continue
        if _both_differ(mine.get(name), other.get(name)):
            yield Reason(
                grade="confounds",
                what=name,
                text=f"another {name}: {mine[name]} and {other[name]} (hashes)",
            )
        elif (name in mine) != (name in other) and "scripted" not in (a.column.kind, b.column.kind):
            known, unknown = (a, b) if name in mine else (b, a)
            yield Reason(
                grade="confounds",
                what=name,
                text=f"{known.label} says which {name} it had, and {unknown.label} does not",
            )


def _code(a: System, b: System) -> Iterable[Reason]:
    mine, other = a.column.code_version, b.column.code_version
    if mine != other:
        yield Reason(
            grade="confounds", what="code", text=f"other versions of agentgym: {mine} and {other}"
        )


def _unscored(a: System, b: System) -> Iterable[Reason]:
    for system in (a, b):
        total = len(system.column.attempts)
        broken = sum(not attempt.scored for attempt in system.column.attempts)
        if broken > MAX_UNSCORED * total:
            yield Reason(
                grade="confounds",
                what="unscored",
                text=f"{broken} of {total} episodes of {system.label} have no score, more than "
                f"{MAX_UNSCORED:.0%}; what breaks is seldom a random part",
            )


def _extent(a: System, b: System) -> Iterable[Reason]:
    if a.result.samples != b.result.samples:
        yield Reason(
            grade="notes",
            what="samples",
            text=f"{a.result.samples} samples per task and {b.result.samples}: means can be "
            "compared, pass@k and pass^k can't",
        )
    if None not in (a.result.seed, b.result.seed) and a.result.seed != b.result.seed:
        yield Reason(
            grade="notes",
            what="seed",
            text=f"other seeds, {a.result.seed} and {b.result.seed}: the same tasks, with other "
            "random numbers",
        )
    for system in (a, b):
        played, planned = len(system.column.attempts), system.result.n_planned
        if played < planned:
            yield Reason(
                grade="notes",
                what="missing",
                text=f"{planned - played} of {planned} episodes of {system.label} were not played",
            )


def _parameters(env_spec: str) -> dict[str, Any]:
    """All that a spec says beside the id: parameters, and limits and wrappers around the env."""
    try:
        spec = json.loads(env_spec)
    except (ValueError, RecursionError):
        return {"spec": env_spec}
    if not isinstance(spec, dict):
        return {"spec": spec}
    kwargs = spec.pop("kwargs", None)
    spec.pop("id", None)
    return {**spec, **(kwargs if isinstance(kwargs, dict) else {"kwargs": kwargs})}


def _both_differ(mine: str | None, other: str | None) -> bool:
    return mine is not None and other is not None and mine != other


def _differing(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = [n for n in dict.fromkeys([*mine, *other]) if mine.get(n) != other.get(n)]
    return ", ".join(f"{n} {_short(mine.get(n))} and {_short(other.get(n))}" for n in names)


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, default=repr)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _listed(tasks: Iterable[str]) -> str:
    every = list(tasks)
    more = f", … ({len(every)})" if len(every) > _SHOWN_TASKS else ""
    return ", ".join(every[:_SHOWN_TASKS]) + more
