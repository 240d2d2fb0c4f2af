"""What a kind of task is: how it is posed, what solves it, and how a script would do it.

A template draws the particulars of a task from a world's records and works out the answer there,
with everything in view. Its `solve` is written for the other side: it knows only what the prompt
says and what its tool calls return. So the two check each other, and the scripted expert shows what
can be reached without knowing anything that a policy can't know.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from agentgym.envs.toolworld.answers import Answer
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import Row, State

Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

Call: TypeAlias = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
Script: TypeAlias = Generator[Call, Any, str]
"""Yields calls, is sent their results (a refusal as `{"error": text}`), returns the answer."""
Look: TypeAlias = str | tuple[str, ...]
"""What a policy must have seen: a key; a key together with what was asked about it (a field that
was shown, or by which was searched), both in one call and its result; or the whole text of a
refusal, `Error: …`."""


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A task drawn from a world."""

    slots: Mapping[str, Any]
    """What fills the prompt's gaps."""
    answer: Answer
    evidence: Sequence[Look | Set[Look]]
    """What decides the answer. A policy that hasn't seen all of it has guessed, and an answer
    doesn't count. Of a set of looks one is enough, where there are several ways to find out."""
    writes: Sequence[Call] = ()
    """The calls that bring about the state asked for, in order."""


class Template:
    """One kind of task in one domain; its tasks are all in one split."""

    name: ClassVar[str]
    split: ClassVar[Split]
    none_share: ClassVar[float] = 0.0
    """Share of its tasks whose right answer is that there is none; `pose` need not see to it."""
    prompts: ClassVar[Sequence[str]]
    """Wordings, with `{slots}`; every one names all slots."""

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Draw a task from a world's records; None if this draw gives none with one right answer.

        Args:
            rng: The task's own.
            state: The records, to look at.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how a task is posed")

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Do the task from the prompt's particulars and the tools' results alone."""
        raise NotImplementedError(f"{type(self).__name__} must say how a script solves it")

    def read(self, prompt: str) -> dict[str, str] | None:
        """The particulars of one of this template's prompts; None if it is another's."""
        for wording in self.prompts:
            if found := re.fullmatch(_pattern(wording), prompt):
                return found.groupdict()
        return None


def _pattern(wording: str) -> str:
    """An expression for the prompts of a wording; a gap that comes again has the same filling."""
    parts = re.split(r"\{(\w+)\}", wording)
    pattern, known = "", set[str]()
    for position, part in enumerate(parts):
        if position % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += f"(?P={part})" if part in known else f"(?P<{part}>.+?)"
            known.add(part)
    return pattern


@dataclass(frozen=True)
class Catalogue:
    """A domain and the kinds of tasks in it."""

    domain: Domain
    templates: Sequence[Template]

    @property
    def name(self) -> str:
        """The domain's."""
        return self.domain.name


# --- words for declaring them -------------------------------------------------------------------


def pick(rng: random.Random, rows: Sequence[Row]) -> Row | None:
    """One of the rows, if there is any."""
    return rng.choice(rows) if rows else None


def rows_of(state: State, entity: str, **equal: Any) -> list[Row]:
    """The records of an entity whose fields have these values."""
    return [
        row
        for row in state[entity].values()
        if all(row[name] == value for name, value in equal.items())
    ]


def field_of(state: State, entity: str, field: str) -> list[str]:
    """One field of every record: what a name is told apart from."""
    return [str(row[field]) for row in state[entity].values()]


def only_extreme(rows: Sequence[Row], field: str, *, lowest: bool = True) -> Row | None:
    """The row with the lowest or highest value; None if there is no row or two share it."""
    ordered = sorted(rows, key=lambda row: row[field], reverse=not lowest)
    if not ordered or (len(ordered) > 1 and ordered[0][field] == ordered[1][field]):
        return None
    return ordered[0]


def keys(rng: random.Random, prefix: str, count: int) -> list[str]:
    """Keys that can't be guessed from one another."""
    return [f"{prefix}{number}" for number in rng.sample(range(1000, 9000), count)]
