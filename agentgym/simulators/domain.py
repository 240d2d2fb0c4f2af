"""Domains: what a made-up world holds and what its tools do there, declared rather than programmed.

A domain lists its entities (what kinds of records there are, with a JSON schema per field) and its
actions (find, get, create, update, delete, compute). Parameters and result schemas of the tools are
derived from the entities, so that they can't contradict each other, and `StateMachineTools` answers
every tool of a domain from nothing but the declaration and the records.

What a rule can't say (seats that run out, a fee from two tables) is a plain function: `check`
refuses, `then` changes what else changes, `derive` computes fields, `Compute` a whole result. Where
they are module-level functions, whatever holds the domain can be pickled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.simulator import SimulatedTool, SimulatedWorld
from agentgym.simulators.actions import Action
from agentgym.simulators.records import Entity, Row, State


@dataclass(frozen=True)
class Domain:
    """Entities, the actions on them, and how a world of theirs comes to be.

    Raises:
        ConfigError: If names repeat or an action names what there isn't.
    """

    name: str
    background: str
    """What holds in this world, in prose, for a model that plays it."""
    entities: Sequence[Entity]
    actions: Sequence[Action]
    populate: Callable[[random.Random], Mapping[str, Sequence[Row]]]
    """Draws the records of a new world, by entity."""

    def __post_init__(self) -> None:
        known = {entity.name for entity in self.entities}
        names = [action.name for action in self.actions]
        if len(known) < len(self.entities) or len(set(names)) < len(names):
            raise ConfigError(f"domain {self.name!r}: names of entities and actions must differ")
        for action in self.actions:
            if action.entity not in known:
                raise ConfigError(
                    f"domain {self.name!r}, action {action.name!r}: no entity {action.entity!r}; "
                    f"there are {', '.join(sorted(known))}"
                )
        for action in self.actions:  # builds every schema once, so that a wrong field shows here
            action.tool(self._by_name)

    @property
    def _by_name(self) -> dict[str, Entity]:
        return {entity.name: entity for entity in self.entities}

    def tools(self) -> tuple[SimulatedTool, ...]:
        """The tools, in order."""
        return tuple(action.tool(self._by_name) for action in self.actions)

    def records(self, rng: random.Random) -> State:
        """The records of a new world.

        Raises:
            ConfigError: If a record has no key, the key of another, or fields other than declared.
        """
        drawn = self.populate(rng)
        if unknown := set(drawn) - set(self._by_name):
            raise ConfigError(f"domain {self.name!r} populates unknown entities {sorted(unknown)}")
        state: State = {}
        for entity in self.entities:
            rows = state[entity.name] = {}
            for row in drawn.get(entity.name, ()):
                if set(row) != {entity.key, *entity.fields} or row[entity.key] in rows:
                    raise ConfigError(
                        f"domain {self.name!r}: a {entity.name} needs a key of its own and the "
                        f"fields {', '.join(entity.shown(None))}, got {row!r:.200}"
                    )
                rows[row[entity.key]] = row
        return state

    def world(self, seed: int, *, session: str = "") -> SimulatedWorld:
        """A new world of this domain alone; equal seeds give equal worlds."""
        return SimulatedWorld(
            tools=self.tools(),
            seed=seed,
            background=self.background,
            session=session,
            state=self.records(random.Random(seed)),
        )
