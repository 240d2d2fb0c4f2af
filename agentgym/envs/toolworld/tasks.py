"""Tasks: drawn from a seed, each with a world of its own, the tools for it, and the right answer.

A family is one template of one domain. All tasks of a family are in the same split, so what a test
measures was never trained on, and two whole domains are in no training task at all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentgym.copies import copied
from agentgym.envs.toolworld.answers import Answer
from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.templates import Call, Catalogue, Look, Posed, Split, Template
from agentgym.errors import ConfigError, ToolError
from agentgym.simulator import SimulatedTool, SimulatedWorld
from agentgym.simulators.records import State
from agentgym.simulators.state_machine import StateMachineTools
from agentgym.sync import run_inline

MOST_DRAWS = 300
"""Worlds drawn for one task before its template is given up."""

Changes = dict[str, dict[str, Any]]
"""Entity to `created` (records without their keys, in order), `changed` and `deleted`."""


@dataclass(frozen=True)
class Reference:
    """What solves a task; hidden."""

    answer: Answer
    evidence: tuple[tuple[tuple[str, ...], ...], ...]
    """What decides the answer: for each part of it the looks of which one is enough, as the keys
    and fields that stand in one call of whoever looked."""
    changes: Changes
    """What is different in the world once the task is done; nothing for a question."""


@dataclass(frozen=True)
class Family:
    """All tasks of one template in one domain."""

    catalogue: Catalogue
    template: Template

    @property
    def name(self) -> str:
        """`library/late_fee`."""
        return f"{self.catalogue.name}/{self.template.name}"

    @property
    def split(self) -> Split:
        """Where all its tasks are."""
        return self.template.split


@dataclass(frozen=True)
class Drawn:
    """One task, ready to be played."""

    prompt: str
    background: str
    tools: tuple[SimulatedTool, ...]
    """Those of the domain and the distractors, shuffled."""
    state: State
    """The world's records; a player works on a copy."""
    reference: Reference


class TaskSet:
    """The tasks of a number of domains.

    Args:
        catalogues: Where the tasks come from.
        others: Further domains that distractor tools come from.
        split: Families kept; None for all.
        per_family: Tasks per family.
        seed: Decides every task's world and particulars.
        distractors: Tools of other domains offered beside the domain's own.

    Raises:
        ConfigError: If no family is left.
    """

    def __init__(
        self,
        catalogues: Sequence[Catalogue],
        *,
        others: Sequence[Catalogue] = (),
        split: Split | None = None,
        per_family: int,
        seed: int,
        distractors: int,
    ) -> None:
        self.catalogues = tuple(catalogues)
        self.per_family = per_family
        self._pool = (*catalogues, *(other for other in others if other not in catalogues))
        self._seed = seed
        self._distractors = distractors
        self.simulator = StateMachineTools(*(catalogue.domain for catalogue in self._pool))
        self.families = {
            family.name: family
            for catalogue in catalogues
            for template in catalogue.templates
            if split in (None, (family := Family(catalogue, template)).split)
        }
        if not self.families:
            raise ConfigError(
                f"no task of {', '.join(c.name for c in catalogues) or 'no domain'} is in split "
                f"{split!r}; take another split, or None for all"
            )

    def __len__(self) -> int:
        return len(self.families) * self.per_family

    def family(self, name: str) -> Family:
        """One family by name.

        Raises:
            KeyError: If it isn't in this set.
        """
        return self.families[name]

    def draw(self, family: Family, number: int) -> Drawn:
        """The task of that number; equal seeds give equal tasks.

        Raises:
            ConfigError: If the template finds no task in any world.
        """
        wants_none = self._wants_none(family, number)
        for attempt in range(MOST_DRAWS):
            rng = random.Random(f"{self._seed}/{family.name}/{number}/{attempt}")
            state = family.catalogue.domain.records(rng)
            posed = family.template.pose(rng, state)
            if posed is not None and wants_none == (not posed.answer.values):
                return self._dressed(family, posed, state, rng, wording=number)
        raise ConfigError(
            f"template {family.name} posed no task in {MOST_DRAWS} worlds; its pose() refuses too "
            "much, the domain's populate() gives too little, or none_share is wrong"
        )

    def _wants_none(self, family: Family, number: int) -> bool:
        """Whether there is to be no answer; so many of every ten tasks as the template says."""
        ten, place = divmod(number, 10)
        rng = random.Random(f"{self._seed}/{family.name}/none/{ten}")
        count = int(10 * family.template.none_share + rng.random())
        return place in rng.sample(range(10), count)

    def _dressed(
        self, family: Family, posed: Posed, state: State, rng: random.Random, *, wording: int
    ) -> Drawn:
        """Add what is the same for every template: wording, distractors, expected changes."""
        own = family.catalogue
        tools = list(tools_of(own))
        others = [catalogue for catalogue in self._pool if catalogue is not own]
        foreign = [(tool, other) for other in others for tool in tools_of(other)]
        chosen = rng.sample(foreign, min(self._distractors, len(foreign)))
        for other in {other.name: other for _, other in chosen}.values():
            state.update(other.domain.records(rng))
        tools += [tool for tool, _ in chosen]
        rng.shuffle(tools)
        prompts = family.template.prompts
        return Drawn(
            prompt=prompts[wording % len(prompts)].format(**posed.slots),
            background=own.domain.background,
            tools=tuple(tools),
            state=state,
            reference=Reference(
                answer=posed.answer,
                evidence=tuple(_ways(part) for part in posed.evidence),
                changes=self._changes_by(posed.writes, tuple(tools), state),
            ),
        )

    def _changes_by(
        self, writes: Sequence[Call], tools: tuple[SimulatedTool, ...], state: State
    ) -> Changes:
        if not writes:
            return {}
        world = SimulatedWorld(tools=tools, seed=0, state=copied(state))
        for name, arguments in writes:
            try:
                run_inline(self.simulator.call(world, name, arguments))
            except ToolError as error:
                raise ConfigError(
                    f"a template's own write {name}({arguments}) is refused: {error}"
                ) from error
        return changes(state, world.state)


def _ways(part: Look | Set[Look]) -> tuple[tuple[str, ...], ...]:
    """The looks of which one is enough, each as its pieces."""
    looks = part if isinstance(part, Set) else {part}
    return tuple(sorted((look,) if isinstance(look, str) else look for look in looks))


@lru_cache(maxsize=64)
def _cached_tools(name: str) -> tuple[SimulatedTool, ...]:
    return CATALOGUES[name].domain.tools()


def tools_of(catalogue: Catalogue) -> tuple[SimulatedTool, ...]:
    """The tools of a catalogue; those of the built-in ones are made once."""
    if CATALOGUES.get(catalogue.name) is catalogue:
        return _cached_tools(catalogue.name)
    return catalogue.domain.tools()


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """What is different between two states of a world.

    New records are told by what they say and not by their keys, so that it doesn't matter in which
    order two were made. Amounts are compared to the cent.
    """
    found: Changes = {}
    for entity in sorted({*before, *after}):
        old, new = before.get(entity, {}), after.get(entity, {})
        created = [_keyless(key, new[key]) for key in new if key not in old]
        changed = {
            key: _rounded(new[key])
            for key in sorted(new)
            if key in old and new[key] != old[key] and _rounded(new[key]) != _rounded(old[key])
        }
        deleted = sorted(key for key in old if key not in new)
        parts = {"created": sorted(created, key=repr), "changed": changed, "deleted": deleted}
        if any(parts.values()):
            found[entity] = {name: part for name, part in parts.items() if part}
    return found


def _keyless(key: str, row: Any) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {name: _rounded(row[name]) for name in sorted(row) if row[name] != key}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
