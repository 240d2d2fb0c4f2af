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
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from agentgym.errors import ConfigError, ToolError
from agentgym.simulator import SimulatedTool, SimulatedWorld

Row: TypeAlias = dict[str, Any]
"""One record; its key is one of its fields."""
State: TypeAlias = dict[str, dict[str, Row]]
"""Entity to key to record, as in `SimulatedWorld.state`."""
Schema: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[["Records", Mapping[str, Any], Row], None]
"""`(records, arguments, row)`: raises `ToolError` where the call isn't allowed."""
Then: TypeAlias = Callable[["Records", Mapping[str, Any], Row], None]
"""`(records, arguments, row)`: what else changes; it may also raise `ToolError`."""
Comparison: TypeAlias = Literal["is", "at_least", "at_most", "contains", "includes"]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "format": "date", "description": "YYYY-MM-DD"}
TIME: Schema = {"type": "string", "description": "HH:MM, 24 hours"}
NAMES: Schema = {"type": "array", "items": {"type": "string"}}


def copied(value: Any) -> Any:
    """A copy of a JSON value; `copy.deepcopy` takes five times as long over a world's records."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


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


@dataclass(frozen=True, kw_only=True)
class Action:
    """What one tool does; the subclasses say how."""

    name: str
    description: str
    entity: str
    effect: ClassVar[Literal["read", "create", "update", "delete"]] = "read"

    def tool(self, entities: Mapping[str, Entity]) -> SimulatedTool:
        """The tool as a policy or a hosted simulator gets to know it."""
        kind = entities[self.entity]
        required, properties = self.parameters(kind)
        return SimulatedTool(
            name=self.name,
            description=self.description,
            parameters={
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
            result=self.result(kind),
            effect=self.effect,
            entity=self.entity,
            key=kind.key,
        )

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """The names of the required parameters, and the schema of each parameter."""
        raise NotImplementedError

    def result(self, kind: Entity) -> Schema:
        """JSON schema of a successful result."""
        raise NotImplementedError

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """Do it.

        Raises:
            ToolError: If it can't or may not be done.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Find(Action):
    """List the records that match."""

    where: Mapping[str, str | tuple[str, Comparison]] = field(default_factory=dict)
    """Parameter to the field it is compared with, and how; `is` by default, which for texts
    ignores case. `contains` looks inside a text, `includes` for an item of a list."""
    required: Sequence[str] = ()
    """Parameters that a call must have."""
    shows: Sequence[str] | None = None
    """Fields of the records shown beside their key; None shows all."""
    limit: int = 25
    """Records shown at most; `total` counts all."""

    def _conditions(self) -> Iterator[tuple[str, str, Comparison]]:
        for parameter, condition in self.where.items():
            if isinstance(condition, str):
                yield parameter, condition, "is"
            else:
                yield parameter, *condition

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """One parameter per condition."""
        found: dict[str, Schema] = {}
        for parameter, name, comparison in self._conditions():
            schema = kind.field(name)
            if comparison == "contains":
                schema = {"type": "string", "description": f"Text to look for in {name}"}
            elif comparison == "includes":
                schema = {**schema["items"], "description": f"Must be among {name}"}
            elif comparison != "is":
                words = comparison.replace("_", " ")
                schema["description"] = f"{name} must be {words} this"
            found[parameter] = schema
        return list(self.required), found

    def result(self, kind: Entity) -> Schema:
        """The records under the plural of their name, and how many there are."""
        rows = {"type": "array", "items": kind.schema(self.shows)}
        return {
            "type": "object",
            "properties": {kind.many: rows, "total": dict(COUNT)},
            "required": [kind.many, "total"],
            "additionalProperties": False,
        }

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The matching records, oldest first."""
        conditions = [
            (arguments[parameter], name, comparison)
            for parameter, name, comparison in self._conditions()
            if arguments.get(parameter) is not None
        ]
        found = [
            {name: row[name] for name in kind.shown(self.shows)}
            for row in records.all(self.entity)
            if all(_holds(row[name], how, wanted) for wanted, name, how in conditions)
        ]
        return {kind.many: found[: self.limit], "total": len(found)}


def _holds(value: Any, comparison: Comparison, wanted: Any) -> bool:
    if comparison == "at_least":
        return bool(value >= wanted)
    if comparison == "at_most":
        return bool(value <= wanted)
    if comparison == "includes":
        return any(_same(item, wanted) for item in value)
    if comparison == "contains":
        return str(wanted).strip().casefold() in str(value).casefold()
    return _same(value, wanted)


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, str):
        return value.casefold() == wanted.strip().casefold()
    return bool(value == wanted)


@dataclass(frozen=True, kw_only=True)
class Get(Action):
    """Show one record by its key."""

    shows: Sequence[str] | None = None
    """Fields shown beside the key; None shows all."""

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """The key."""
        return [kind.key], {kind.key: kind.field(kind.key)}

    def result(self, kind: Entity) -> Schema:
        """The record."""
        return kind.schema(self.shows)

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The record."""
        row = records.get(self.entity, arguments[kind.key])
        return {name: row[name] for name in kind.shown(self.shows)}


@dataclass(frozen=True, kw_only=True)
class Write(Action):
    """What `Create`, `Update` and `Delete` share: conditions and consequences."""

    when: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Field to the values it must have before, for `Update` and `Delete`."""
    check: Check | None = None
    """Refuses what the rules can't express."""
    then: Then | None = None
    """Changes other records."""

    def _require(self, kind: Entity, row: Row) -> None:
        for name, allowed in self.when.items():
            if row[name] not in allowed:
                raise ToolError(
                    f"Error: {kind.name} {row[kind.key]} has {name} {row[name]!r}; {self.name} "
                    f"needs {' or '.join(map(repr, allowed))}."
                )

    def _require_references(
        self, kind: Entity, records: Records, arguments: Mapping[str, Any]
    ) -> None:
        for name, entity in kind.refers.items():
            if isinstance(arguments.get(name), str):
                records.get(entity, arguments[name])


@dataclass(frozen=True, kw_only=True)
class Create(Write):
    """Add a record under a key that follows from those there are."""

    effect: ClassVar[Literal["read", "create", "update", "delete"]] = "create"
    takes: Sequence[str]
    """Fields given by the caller, all required."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """Fields that always start like this."""
    derive: Callable[[Records, Mapping[str, Any]], Row] | None = None
    """Gives the remaining fields."""

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """The fields taken."""
        return list(self.takes), {name: kind.field(name) for name in self.takes}

    def result(self, kind: Entity) -> Schema:
        """The new record."""
        return kind.schema()

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The new record."""
        self._require_references(kind, records, arguments)
        given = {name: arguments[name] for name in self.takes}
        if self.check is not None:
            self.check(records, arguments, given)
        derived = {} if self.derive is None else self.derive(records, arguments)
        known = {**self.sets, **derived, **given}
        row = records.add(self.entity, {name: copied(known[name]) for name in kind.fields})
        if self.then is not None:
            self.then(records, arguments, row)
        return row


@dataclass(frozen=True, kw_only=True)
class Update(Write):
    """Change a record."""

    effect: ClassVar[Literal["read", "create", "update", "delete"]] = "update"
    takes: Sequence[str] = ()
    """Fields the caller may give; all are required."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """Fields that become this."""

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """The key and the fields taken."""
        names = [kind.key, *self.takes]
        return names, {name: kind.field(name) for name in names}

    def result(self, kind: Entity) -> Schema:
        """The record afterwards."""
        return kind.schema()

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The record afterwards."""
        row = records.get(self.entity, arguments[kind.key])
        self._require(kind, row)
        self._require_references(kind, records, arguments)
        changes = {**self.sets, **{name: arguments[name] for name in self.takes}}
        for name, value in changes.items():
            allowed = kind.moves.get(name, {}).get(row[name])
            if allowed is not None and value not in allowed:
                possible = " or ".join(map(repr, allowed)) or "nothing"
                raise ToolError(
                    f"Error: {kind.name} {row[kind.key]} can't go from {row[name]!r} to "
                    f"{value!r:.80}; from there it can become {possible}."
                )
        if self.check is not None:
            self.check(records, arguments, row)
        row.update(copied(changes))
        if self.then is not None:
            self.then(records, arguments, row)
        return row


@dataclass(frozen=True, kw_only=True)
class Delete(Write):
    """Take a record away."""

    effect: ClassVar[Literal["read", "create", "update", "delete"]] = "delete"

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """The key."""
        return [kind.key], {kind.key: kind.field(kind.key)}

    def result(self, kind: Entity) -> Schema:
        """The key of what is gone."""
        return {
            "type": "object",
            "properties": {"deleted": {"type": "string"}},
            "required": ["deleted"],
            "additionalProperties": False,
        }

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The key of what is gone."""
        row = records.get(self.entity, arguments[kind.key])
        self._require(kind, row)
        if self.check is not None:
            self.check(records, arguments, row)
        records.remove(self.entity, row[kind.key])
        if self.then is not None:
            self.then(records, arguments, row)
        return {"deleted": row[kind.key]}


@dataclass(frozen=True, kw_only=True)
class Compute(Action):
    """Answer with what a function computes from arguments and records."""

    takes: Mapping[str, Schema]
    """Parameter to JSON schema; all are required."""
    gives: Mapping[str, Schema]
    """Result field to JSON schema."""
    function: Callable[..., Mapping[str, Any]]
    """`function(records, **arguments)` returns the result's fields; it changes nothing."""

    def parameters(self, kind: Entity) -> tuple[list[str], dict[str, Schema]]:
        """What it takes."""
        return list(self.takes), {name: dict(schema) for name, schema in self.takes.items()}

    def result(self, kind: Entity) -> Schema:
        """What it gives."""
        return {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.gives.items()},
            "required": list(self.gives),
            "additionalProperties": False,
        }

    def run(self, kind: Entity, records: Records, arguments: Mapping[str, Any]) -> Any:
        """The function's result."""
        return dict(self.function(records, **arguments))


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
