"""What a made-up world holds: entities with a JSON schema per field, and their records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentgym.copies import copied
from agentgym.errors import ConfigError, ToolError
from agentgym.simulator import SimulatedWorld

Row: TypeAlias = dict[str, Any]
"""One record; its key is one of its fields."""
State: TypeAlias = dict[str, dict[str, Row]]
"""Entity to key to record, as in `SimulatedWorld.state`."""
Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "format": "date", "description": "YYYY-MM-DD"}
TIME: Schema = {"type": "string", "description": "HH:MM, 24 hours"}
NAMES: Schema = {"type": "array", "items": {"type": "string"}}


def one_of(*values: str) -> Schema:
    """The schema of a text with few possible values."""
    return {"type": "string", "enum": list(values)}


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A kind of record."""

    name: str
    """In the singular, unique among the domains used together."""
    key: str
    """The field that names a record."""
    prefix: str
    """New keys are the prefix and a number."""
    fields: Mapping[str, Schema]
    """JSON schema of every other field."""
    refers: Mapping[str, str] = field(default_factory=dict)
    """Fields that hold the key of a record of another entity."""
    moves: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Field to value to the values it may become; fields not named may become anything."""
    plural: str = ""
    """Default: the name and an `s`."""

    @property
    def many(self) -> str:
        """What a list of them is called."""
        return self.plural or f"{self.name}s"

    def schema(self, shows: Sequence[str] | None = None) -> Schema:
        """JSON schema of a record, or of the part of it that a tool shows."""
        shown = {name: self.field(name) for name in self.shown(shows)}
        return {
            "type": "object",
            "properties": shown,
            "required": list(shown),
            "additionalProperties": False,
        }

    def shown(self, shows: Sequence[str] | None) -> tuple[str, ...]:
        """The fields a tool shows, the key always among them."""
        return (self.key, *(self.fields if shows is None else shows))

    def field(self, name: str) -> Schema:
        """The schema of one field.

        Raises:
            ConfigError: If there is no such field.
        """
        if name == self.key:
            return {"type": "string", "description": f"Key of one {self.name}"}
        if name not in self.fields:
            raise ConfigError(
                f"entity {self.name!r} has no field {name!r}; it has {', '.join(self.fields)}"
            )
        schema: Schema = copied(self.fields[name])
        return schema


class Records:
    """The records of a world, for the actions and functions of a domain.

    Args:
        world: Changed in place.
        entities: By name.
    """

    def __init__(self, world: SimulatedWorld, entities: Mapping[str, Entity]) -> None:
        self._world = world
        self._entities = entities

    def all(self, entity: str) -> Iterator[Row]:
        """Every record of an entity, oldest first; the records themselves."""
        return iter(self._world.state.get(entity, {}).values())

    def get(self, entity: str, key: str) -> Row:
        """One record itself.

        Raises:
            ToolError: If it doesn't exist, or no longer.
        """
        row: Row | None = self._world.state.get(entity, {}).get(key)
        if row is None:
            gone = key in self._world.deleted.get(entity, ())
            fate = "was deleted" if gone else "does not exist"
            raise ToolError(f"Error: {entity} {key!r:.80} {fate}.")
        return row

    def add(self, entity: str, row: Row) -> Row:
        """Add a record under the next free key and return it, key included."""
        kind = self._entities[entity]
        known = [*self._world.state.get(entity, {}), *self._world.deleted.get(entity, ())]
        numbers = [int(digits[0]) for key in known if (digits := re.findall(r"\d+$", key))]
        key = f"{kind.prefix}{max(numbers, default=1000) + 1}"
        whole = {kind.key: key, **row}
        self._world.state.setdefault(entity, {})[key] = whole
        return whole

    def remove(self, entity: str, key: str) -> None:
        """Take a record away; its key is never used again.

        Raises:
            ToolError: If it doesn't exist.
        """
        self.get(entity, key)
        del self._world.state[entity][key]
        self._world.deleted.setdefault(entity, []).append(key)
