"""Rubrics: what a judge scores, what each part is worth, and where that is written down.

A rubric is data, so that the same one can be read from a file, printed beside a result and sent to
any model. Whatever is wrong with it is told when it is made, before any call is paid for.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from agentgym.errors import ConfigError, unknown_name
from agentgym.types import Finite, Record, in_one_line

RESERVED_NAMES = frozenset({"reason", "criteria", "scores", "id"})
"""Keys of a judge's reply that no criterion may be called."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class _Configured(type(BaseModel)):  # type: ignore[misc]  # pydantic's metaclass has no public name
    """Makes a record's own construction tell a fault as `ConfigError`.

    Not in `__init__`, which pydantic would call for every record inside another one, too, losing
    the fields' places.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            what = f"{cls.__name__.lower()} {fields.get('name', '')!r}"
            raise ConfigError(f"{what}: {in_one_line(error)}") from error


class Criterion(Record, metaclass=_Configured):
    """One thing a judge scores."""

    name: str
    """Key in the judge's reply and in `Verdict.components`: letters, digits and underscores."""
    description: str = Field(min_length=1)
    """What is asked, in words for the judge."""
    weight: Finite = Field(default=1.0, gt=0, strict=True)
    """What full marks add to the total; a penalty is a gate's business."""
    kind: Literal["binary", "graded"] = "binary"
    """`binary`: met or not, 1 or 0. `graded`: any number from `low` to `high`."""
    low: Finite = Field(default=0.0, strict=True)
    """The worst grade, which adds nothing."""
    high: Finite = Field(default=1.0, strict=True)
    """The best grade, which adds the whole weight."""

    @model_validator(mode="after")
    def _is_sound(self) -> Criterion:
        if not _NAME.fullmatch(self.name) or self.name.lower() in RESERVED_NAMES:
            raise ValueError(
                "name must be letters, digits and underscores, beginning with a letter, and none "
                f"of {', '.join(sorted(RESERVED_NAMES))}; got {self.name!r}"
            )
        if not self.description.strip():
            raise ValueError("description is blank; say in words what the judge is to look for")
        if not self.low < self.high:
            raise ValueError(f"low must be less than high, got {self.low:g} and {self.high:g}")
        if self.kind == "binary" and (self.low, self.high) != (0.0, 1.0):
            raise ValueError(
                f"a binary criterion is 0 or 1; for {self.low:g} to {self.high:g} use "
                'kind = "graded"'
            )
        return self

    def share(self, value: float) -> float:
        """How much of full marks a grade is, 0 to 1."""
        return (value - self.low) / (self.high - self.low)


class Rubric(Record, metaclass=_Configured):
    """Criteria with weights, and what the judge is told beside them.

    The total of an episode is the sum over the criteria of weight times share of full marks, so it
    lies between 0 and `highest`; gates take their penalties off it. `Scoring` clips the result to
    the env's reward range, which by default reaches up to `highest`.

    `instructions` and descriptions may name `{reference}` (the task's hidden solution) and
    `{outcome}` (the env's final state): the judge is then shown it. Other braces are just text.
    """

    name: str = "rubric"
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    """In the order in which the judge is asked for them."""
    instructions: str = ""
    """What holds for all criteria, in words for the judge."""
    correct: str | None = None
    """The binary criterion that says whether the task was solved (`Verdict.correct`)."""

    @model_validator(mode="after")
    def _is_sound(self) -> Rubric:
        names = Counter(criterion.name.lower() for criterion in self.criteria)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"criteria: {', '.join(twice)} is there twice; name each once")
        binary = [c.name for c in self.criteria if c.kind == "binary"]
        if self.correct is not None and self.correct not in binary:
            raise ValueError(
                f"correct must name a binary criterion ({', '.join(binary) or 'there is none'}), "
                f"got {self.correct!r}"
            )
        return self

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Rubric:
        """Read a rubric file: `name`, `instructions`, `correct` and a `[[criteria]]` table each.

        Raises:
            ConfigError: If it can't be read, isn't TOML or is no rubric; with file, line and field.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            fields = tomllib.loads(text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"can't read the rubric {os.fspath(path)}: {error}") from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{os.fspath(path)} is not valid TOML: {error}") from error
        try:
            return cls.model_validate({"name": Path(path).stem, **fields})
        except ValidationError as error:
            raise ConfigError(f"{os.fspath(path)}: {_faults(error, text)}") from error

    @classmethod
    def preset(cls, name: str) -> Rubric:
        """A rubric that comes with agentgym: `default`, or `relative` for comparing a group.

        Raises:
            ConfigError: If there is none of that name.
        """
        folder = files("agentgym.judges") / "presets"
        known = sorted(f.name.removesuffix(".toml") for f in folder.iterdir())
        if name not in known:
            raise ConfigError(f"no rubric preset {name!r}; there are {', '.join(known)}")
        return cls.from_toml(str(folder / f"{name}.toml"))

    @property
    def highest(self) -> float:
        """The best total."""
        return sum(criterion.weight for criterion in self.criteria)

    def total(self, values: Mapping[str, float]) -> float:
        """The weighted sum of the criteria's shares of full marks.

        Args:
            values: Every criterion's grade, by name.
        """
        return sum(c.weight * c.share(values[c.name]) for c in self.criteria)

    def asks_for(self, placeholder: str) -> bool:
        """Whether the judge is to be shown `{placeholder}`."""
        texts = (self.instructions, *(c.description for c in self.criteria))
        return any(f"{{{placeholder}}}" in text for text in texts)


def _faults(error: ValidationError, text: str) -> str:
    """What is wrong with a rubric file, each fault with its line and field."""
    found = []
    faults = error.errors(include_url=False, include_context=False)
    if len(faults) > 1:  # a wrong criterion is left out, and then its list is too short
        faults = [fault for fault in faults if fault["type"] != "too_short"]
    for fault in faults[:5]:
        place = fault["loc"]
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            known = Criterion if len(place) > 1 else Rubric
            message = unknown_name("field", str(place[-1]), known.model_fields)
        elif not isinstance(fault["input"], Mapping | list):
            message += f" (got {fault['input']!r:.60})"
        field = ".".join(map(str, place))
        line = _line_of(text, place)
        where = ", ".join(filter(None, [f"line {line}" if line else "", field]))
        found.append(f"{where}: {message}" if where else message)
    return "; ".join(found)


def _line_of(text: str, place: Sequence[str | int]) -> int | None:
    """The 1-based line of a field in a rubric file, or of the nearest thing around it."""
    lines = text.splitlines()
    best, start = None, 0
    if len(place) > 1 and place[0] == "criteria" and isinstance(place[1], int):
        headers = [n for n, line in enumerate(lines) if re.match(r"\s*\[\[\s*criteria\s*]]", line)]
        if place[1] < len(headers):
            start = headers[place[1]]
            best = start + 1
            place = place[2:]
    if place:
        key = re.compile(rf"""\s*["']?{re.escape(str(place[0]))}["']?\s*=""")
        stop = len(lines) if best is None else _next_table(lines, start + 1)
        best = next((n + 1 for n in range(start, stop) if key.match(lines[n])), best)
    return best


def _next_table(lines: Sequence[str], start: int) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))


DEFAULT_RUBRIC = Rubric.preset("default")
"""total = task_solved + 0.3·grounded; `correct` is task_solved. Its `highest` is 1.3."""

RELATIVE_RUBRIC = Rubric.preset("relative")
"""One graded criterion, for comparing the rollouts of one task with each other."""
