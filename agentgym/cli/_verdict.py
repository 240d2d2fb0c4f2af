"""Reads what a verdict is about, and shows it as text."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentgym.cli._columns import columns
from agentgym.errors import ConfigError, DataError
from agentgym.types import in_one_line, printable

if TYPE_CHECKING:
    from agentgym.evaluate.base_reading import BaseSet
    from agentgym.evaluate.determinism import Determinism
    from agentgym.evaluate.finding import Finding
    from agentgym.evaluate.verdict import TrainingVerdict
    from agentgym.judges.health import HealthReport

_WIDTH = 100
_ANSWERS = {
    "train": "train",
    "fix_first": "not yet: fix what is in the way first",
    "simplify": "not on these tasks: simplify, or mix in easier ones",
    "too_easy": "not on these tasks: they are solved already",
    "undecided": "undecided: these episodes can't tell",
}
_MARKS = {
    "ok": "ok",
    "alarm": "ALARM",
    "unclear": "unclear",
    "note": "note",
    "not_measured": "not measured",
}


def judged_source(args: argparse.Namespace) -> TrainingVerdict:
    """The verdict on what the arguments name.

    Raises:
        AgentGymError: If something can't be read, or is out of range.
    """
    from agentgym.evaluate.base_reading import other_parameters, read_base
    from agentgym.evaluate.external import named_score
    from agentgym.evaluate.verdict import training_verdict

    _check_numbers(args)
    score = named_score(args.score) if args.score else None
    base = read_base(args.source, column=args.column, score=score)
    reference = differs = None
    if args.reference is not None or args.reference_column is not None:
        where = args.reference or args.source
        stronger = read_base(where, column=args.reference_column, score=score)
        differs = other_parameters(base, stronger)
        reference = stronger.episodes
    health, faults = _health(args.judge) if args.judge is not None else (None, ())
    repeats = base.repeats
    if args.replay:
        again = _replayed(base, args.replay)
        repeats = again if repeats is None else repeats + again
    return training_verdict(
        base.episodes,
        group_size=args.group_size,
        min_informative=args.min_informative,
        reference=reference,
        reference_differs=differs,
        repeats=repeats,
        health=health,
        faults=faults,
        env_spec=base.env_spec,
        unscored_because=base.unscored_because,
        accept=args.accept,
    )


def _check_numbers(args: argparse.Namespace) -> None:
    if args.group_size < 2:
        raise ConfigError(f"--group-size is at least 2, got {args.group_size}")
    if not 0 <= args.min_informative <= 1:
        raise ConfigError(f"--min-informative is a share from 0 to 1, got {args.min_informative}")
    if args.replay < 0:
        raise ConfigError(f"--replay is a number of episodes, got {args.replay}")


def _health(path: Path) -> tuple[HealthReport, tuple[str, ...]]:
    """A judge's report on a gold set, and what was not good enough in it."""
    from agentgym.judges.health import HealthReport

    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: values[name] for name in HealthReport.model_fields if name in values}
        return HealthReport.model_validate(fields), tuple(map(str, values.get("faults") or ()))
    except ValidationError as error:
        raise DataError(
            f"{path} is no report of `agentgym judge check --out`: {in_one_line(error)}"
        ) from error
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no report of `agentgym judge check --out`: {error}") from error


def _replayed(base: BaseSet, number: int) -> Determinism:
    """Play episodes of the traces again, as they were played."""
    from agentgym.evaluate.base_reading import env_of, traces_of
    from agentgym.evaluate.determinism import Determinism, replay

    found = Determinism(compared=0, differing=0)
    playable = (t for t in traces_of(base.files) if t.task_id is not None and t.scored and t.turns)
    for trace in islice(playable, number):
        found += replay(lambda: env_of(base.env_spec), trace)
    if not found.compared:
        raise DataError(f"{base.source} has no traces of scored episodes to play again")
    return found


# --- as text --------------------------------------------------------------------------------------


def verdict_text(found: TrainingVerdict) -> str:
    """The answer, its reasons, what to change, and everything that was looked at."""
    return "\n\n".join(part for part in _parts(found) if part)


def _parts(found: TrainingVerdict) -> Iterator[str]:
    from agentgym.evaluate.finding import counted

    yield f"should you train? {_ANSWERS[found.conclusion]}"
    yield _list("because", found.because)
    if found.conclusion == "undecided":
        if found.more_tasks is not None:
            more = counted(found.more_tasks, "more task")
            yield _list("play", [f"{more}, each as often as these, and ask again"])
        elif found.forecast is not None and not found.forecast.repeated:
            yield _list(
                "play", [f"each task several times, best {found.group_size}, and ask again"]
            )
    yield _list("change, first things first", found.changes)
    tasks = counted(found.n_tasks, "task")
    yield f"{found.n_scored} scored of {counted(found.n_episodes, 'episode')} on {tasks}:"
    yield "\n".join(_finding(each) for each in found.findings)
    yield _kinds(found)
    yield _list("mind", found.caveats)


def _list(title: str, lines: tuple[str, ...] | list[str]) -> str:
    if not lines:
        return ""
    wrapped = [
        textwrap.fill(printable(line), _WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for line in lines
    ]
    return "\n".join([f"{title}:", *wrapped])


def _finding(found: Finding) -> str:
    indent = " " * 16
    head = f"  {_MARKS[found.status]:<14}"
    said = textwrap.fill(
        f"{found.name}: {printable(found.said)}",
        _WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
    )
    if found.status == "ok":
        return said
    rule = textwrap.fill(
        f"rule: {found.rule}", _WIDTH, initial_indent=indent, subsequent_indent=indent
    )
    return f"{said}\n{rule}"


def _kinds(found: TrainingVerdict) -> str:
    if not found.kinds:
        return ""
    rows = [
        (
            f"{row.sorted_by} {printable(row.value)}",
            str(row.n_tasks),
            f"{row.success.mean:.0%}",
            f"{row.success.low:.0%} to {row.success.high:.0%}",
            f"{row.informative:.0%}",
            f"{row.informative_low:.0%} to {row.informative_high:.0%}",
        )
        for row in found.kinds
    ]
    heads = ("tasks", "n", "success", "95 % interval", "informative groups", "95 % interval")
    return columns(heads, rows)
