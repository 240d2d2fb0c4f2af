"""What the tools of a made-up world do with its records.

Find, get, create, update, delete, compute. Parameters and result schemas follow from the entities,
so that they can't contradict each other. What a rule can't say is a plain function: `check`
refuses, `then` changes what else changes, `derive` computes fields, `Compute` a whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from agentgym.copies import copied
from agentgym.errors import ToolError
from agentgym.simulator import SimulatedTool
from agentgym.simulators.records import COUNT, Entity, Records, Row, Schema

Check: TypeAlias = Callable[["Records", Mapping[str, Any], Row], None]
"""`(records, arguments, row)`: raises `ToolError` where the call isn't allowed."""
Then: TypeAlias = Callable[["Records", Mapping[str, Any], Row], None]
"""`(records, arguments, row)`: what else changes; it may also raise `ToolError`."""
Comparison: TypeAlias = Literal["is", "at_least", "at_most", "contains", "includes"]


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
