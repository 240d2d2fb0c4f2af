"""What a simulated world remembers, and what contradicts it.

A model that answers for tools forgets: a booking it made two calls ago has another price, or comes
back after it was cancelled. Here the world's records decide. Every answer is held against them
before the policy sees it, and becomes part of them when it is accepted: what was created is found,
what was deleted is gone, what was read stays as it was until something changes it.

Only what the tools declare (`effect`, `entity`, `key`) is used. Records are objects in a result
that have the key; fields are compared where a record and a result both have them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym.simulator import SimulatedTool, SimulatedWorld

Entry = dict[str, Any]
"""One answered call, as in `SimulatedWorld.log`."""

_NOT_FOUND = re.compile(
    r"\b(not (be )?found|no such|does ?n[o']t exist|there is no|no .{1,60} found|unknown)\b",
    re.IGNORECASE,
)


class Contradiction(Exception):
    """An answer doesn't fit what the world remembers; the text says how."""


def recall(
    world: SimulatedWorld, tool: SimulatedTool, arguments: Mapping[str, Any]
) -> Entry | None:
    """The answer to a call that follows from memory, so that no model need be asked.

    A repeated read has the same answer until something is written; a call about what is gone, or
    was said not to exist, finds nothing; nothing is created twice.
    """
    call: Entry = {"name": tool.name, "arguments": copy.deepcopy(dict(arguments))}
    if tool.effect == "read":
        for used, entry in _past(world):
            if used.effect != "read" and "result" in entry:
                break
            if used.name == tool.name and same(entry["arguments"], call["arguments"]):
                return dict(copy.deepcopy(entry))
    for key in _asked(tool, arguments):
        exists = key in world.state.get(tool.entity or "", {})
        if tool.effect == "create" and exists:
            return {**call, "error": f"Error: {tool.entity} {key!r} already exists."}
        if tool.effect != "create" and not exists and _is_gone(world, tool.entity, key):
            return {**call, "error": f"Error: there is no {tool.entity} {key!r}."}
    return None


def refused(
    world: SimulatedWorld, tool: SimulatedTool, arguments: Mapping[str, Any], error: str
) -> None:
    """Hold an error answer against the records; it changes none of them.

    Raises:
        Contradiction: If it denies what exists.
    """
    denied = _denied(tool, arguments, error)
    if tool.effect == "read" and _is_about_one(tool, arguments):
        denied = _asked(tool, arguments)  # it can be shown; anything else may be refused
    existing = [key for key in denied if key in world.state.get(tool.entity or "", {})]
    if tool.effect == "read":
        existing = existing or _must_be_listed(world, tool, arguments)
    if existing:
        raise Contradiction(
            f"{tool.entity} {existing[0]!r} exists, but the answer is {error!r:.200}"
        )


class Draft:
    """The records as they would be after an answer; nothing in the world changes until `commit`."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._state = copy.deepcopy(world.state)
        self._deleted = copy.deepcopy(world.deleted)

    def commit(self) -> None:
        """Make it so."""
        self._world.state, self._world.deleted = self._state, self._deleted

    def take(
        self,
        tool: SimulatedTool,
        arguments: Mapping[str, Any],
        result: Any,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Hold a result against the records, and take in what it says and does.

        Args:
            tool: The tool called.
            arguments: Of the call.
            result: Valid by the tool's result schema.
            changes: `{"entity", "key", "fields"}` of what else the call changed; `fields` None
                where a deletion took something else with it.

        Raises:
            Contradiction: If they don't fit.
        """
        shown = _shown(tool, result)
        if tool.entity is not None:
            take = {
                "read": self._read,
                "create": self._create,
                "update": self._update,
                "delete": self._delete,
            }[tool.effect]
            take(tool, arguments, result, shown)
        for change in changes:
            self._change(tool, change, shown)

    def _read(
        self, tool: SimulatedTool, arguments: Mapping[str, Any], result: Any, shown: dict[str, Any]
    ) -> None:
        entity, asked = str(tool.entity), _asked(tool, arguments)
        for key, record in shown.items():
            self._see(entity, key, record)
        if asked and not shown and isinstance(result, Mapping) and len(asked) == 1:
            self._see(entity, asked[0], result)
        missing = [key for key in asked if key not in shown] if shown else []
        if not asked:
            listed = _must_be_listed(self._world, tool, arguments)
            missing = [key for key in listed if key not in shown]
        if missing:
            got = ", ".join(map(repr, shown)) or "nothing"
            raise Contradiction(f"{entity} {missing[0]!r} must be in the result, which has {got}")

    def _create(
        self, tool: SimulatedTool, arguments: Mapping[str, Any], result: Any, shown: dict[str, Any]
    ) -> None:
        entity, asked = str(tool.entity), _asked(tool, arguments)
        known = self._state.setdefault(entity, {})
        new = asked or [key for key in shown if key not in known]
        if not new:
            raise Contradiction(
                f"the result names no new {entity}: its {tool.key!r} must be one that isn't taken"
            )
        if asked and shown and not set(asked) <= set(shown):
            raise Contradiction(f"{entity} {asked[0]!r} was created, but the result has others")
        given = {k: v for k, v in arguments.items() if not isinstance(v, Mapping | list)}
        for key in new:
            if not asked and key in self._deleted.get(entity, ()):
                raise Contradiction(f"{entity} {key!r} existed before; a new one needs a new name")
            if key in self._deleted.get(entity, ()):
                self._deleted[entity].remove(key)
            record = shown.get(key, result if isinstance(result, Mapping) else {})
            known[key] = {**given, **copy.deepcopy(dict(record))}
        for key in set(shown) - set(new):
            self._see(entity, key, shown[key])

    def _update(
        self, tool: SimulatedTool, arguments: Mapping[str, Any], result: Any, shown: dict[str, Any]
    ) -> None:
        entity, asked = str(tool.entity), _asked(tool, arguments)
        for key in {*asked, *shown}:
            self._refuse_deleted(entity, key)
            old = self._state.setdefault(entity, {}).get(key, {})
            # What the arguments did to fields of their names (set? add to?) only the model knows.
            kept = {k: v for k, v in old.items() if k not in arguments or k == tool.key}
            says = shown.get(key)
            if says is None:
                says = result if isinstance(result, Mapping) and not shown else {}
                says = {k: v for k, v in says.items() if k in old}
            self._state[entity][key] = {**kept, **copy.deepcopy(dict(says))}

    def _delete(
        self, tool: SimulatedTool, arguments: Mapping[str, Any], result: Any, shown: dict[str, Any]
    ) -> None:
        entity = str(tool.entity)
        gone = _asked(tool, arguments) or list(shown)
        if not gone:
            raise Contradiction(f"neither call nor result says which {entity} was deleted")
        for key in gone:
            self._forget(entity, key)
        for key in set(shown) - set(gone):
            self._see(entity, key, shown[key])

    def _change(
        self, tool: SimulatedTool, change: Mapping[str, Any], shown: Mapping[str, Any]
    ) -> None:
        entity, key, fields = change["entity"], str(change["key"]), change["fields"]
        if tool.effect == "read":
            raise Contradiction(f"{tool.name} only reads, so it can't change {entity} {key!r}")
        known = {each.entity for each in self._world.tools} | set(self._state)
        if entity not in known:
            raise Contradiction(f"nothing here is called {entity!r}")
        if fields is None:
            if tool.effect != "delete" or entity == tool.entity:
                raise Contradiction(f"{tool.name} doesn't delete {entity} {key!r}")
            self._forget(entity, key)
            return
        self._refuse_deleted(entity, key)
        if entity == tool.entity and (where := differs(shown.get(key, {}), fields)):
            raise Contradiction(f"result and changes differ in {entity} {key!r}, {where}")
        record = self._state.setdefault(entity, {}).setdefault(key, {})
        record.update(copy.deepcopy(dict(fields)))

    def _see(self, entity: str, key: str, record: Mapping[str, Any]) -> None:
        """A result shows a record: it must be the one that is known, or a new one."""
        self._refuse_deleted(entity, key)
        known = self._state.setdefault(entity, {})
        if key not in known and _is_gone(self._world, entity, key):
            raise Contradiction(f"{entity} {key!r} was said not to exist, and the result has it")
        if where := differs(known.get(key, {}), record):
            raise Contradiction(f"{entity} {key!r} has other values: {where}")
        known.setdefault(key, {}).update(copy.deepcopy(dict(record)))

    def _forget(self, entity: str, key: str) -> None:
        self._state.setdefault(entity, {}).pop(key, None)
        gone = self._deleted.setdefault(entity, [])
        if key not in gone:
            gone.append(key)

    def _refuse_deleted(self, entity: str, key: str) -> None:
        if key in self._deleted.get(entity, ()):
            raise Contradiction(f"{entity} {key!r} was deleted, and the answer has it")


def records_in(value: Any, key: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The outermost objects of a result that have the key, by its value."""
    if key is None:
        return
    if isinstance(value, Mapping):
        names = keys_of(value.get(key))
        if len(names) == 1 and not isinstance(value[key], list):
            yield names[0], value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from records_in(item, key)


def _shown(tool: SimulatedTool, result: Any) -> dict[str, Mapping[str, Any]]:
    """The records of a result by key; what is in it twice must be the same twice."""
    shown: dict[str, Mapping[str, Any]] = {}
    for key, record in records_in(result, tool.key):
        if where := differs(shown.get(key, {}), record):
            raise Contradiction(f"the result has {tool.entity} {key!r} twice, differently: {where}")
        shown[key] = {**shown.get(key, {}), **record}
    return shown


def keys_of(value: Any) -> list[str]:
    """The names that an argument gives: one, or several in a list."""
    if isinstance(value, list):
        return [name for item in value if not isinstance(item, list) for name in keys_of(item)]
    if isinstance(value, str | int) and not isinstance(value, bool):
        return [str(value)]
    return []


def differs(known: Any, told: Any, where: str = "") -> str | None:
    """Where two values of one thing differ, in fields that both have; None if nowhere."""
    if isinstance(known, Mapping) and isinstance(told, Mapping):
        shared = [name for name in known if name in told]
        inside = f"{where}." if where else ""
        found = (differs(known[name], told[name], f"{inside}{name}") for name in shared)
        return next((each for each in found if each), None)
    if isinstance(known, list) and isinstance(told, list):
        if len(known) != len(told):
            return f"{where} has {len(known)} items, got {len(told)}"
        found = (differs(a, b, where) for a, b in zip(known, told, strict=True))
        return next((each for each in found if each), None)
    if isinstance(known, Mapping | list) != isinstance(told, Mapping | list):
        return None  # a reference in one place, what it refers to in another
    if same(known, told) or str(known).casefold() == str(told).casefold():
        return None
    return f"{where} is {known!r:.80}, got {told!r:.80}"


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal; true is not 1, but 1 is 1.0."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _asked(tool: SimulatedTool, arguments: Mapping[str, Any]) -> list[str]:
    """Which things of its entity a call names."""
    return [] if tool.key is None else keys_of(arguments.get(tool.key))


def _past(world: SimulatedWorld) -> Iterator[tuple[SimulatedTool, Entry]]:
    """The answered calls of this world's tools, the latest first."""
    tools = {tool.name: tool for tool in world.tools}
    for entry in reversed(world.log):
        if entry["name"] in tools:
            yield tools[entry["name"]], entry


def _is_gone(world: SimulatedWorld, entity: str | None, key: str) -> bool:
    """Whether something was deleted, or an answer said that there is no such thing."""
    if key in world.deleted.get(entity or "", ()):
        return True
    for tool, entry in _past(world):
        if tool.entity == entity and key in _denied(
            tool, entry["arguments"], entry.get("error", "")
        ):
            return True
    return False


def _is_about_one(tool: SimulatedTool, arguments: Mapping[str, Any]) -> bool:
    """Whether a call names one thing of its entity and says nothing else."""
    return len(_asked(tool, arguments)) == 1 and set(arguments) <= {tool.key}


def _denied(tool: SimulatedTool, arguments: Mapping[str, Any], error: str) -> list[str]:
    """Which of the things that a call names don't exist, as its error has it.

    A call may name other things as well (a seat, a card), so it is those that the error names, or
    the one thing that the call was about.
    """
    if not _NOT_FOUND.search(error):
        return []
    asked = _asked(tool, arguments)
    if _is_about_one(tool, arguments):
        return asked
    return [key for key in asked if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", error)]


def _must_be_listed(
    world: SimulatedWorld, tool: SimulatedTool, arguments: Mapping[str, Any]
) -> list[str]:
    """What was created in this episode and matches a listing's arguments.

    Only where every argument is a field of the record: a limit or a free-text query may leave
    anything out.
    """
    schema = json.dumps(tool.result)
    if tool.key is None or '"array"' not in schema or json.dumps(tool.key) not in schema:
        return []
    found = []
    for made_by, entry in _past(world):
        if made_by.effect != "create" or made_by.entity != tool.entity or "result" not in entry:
            continue
        shown = [key for key, _ in records_in(entry["result"], made_by.key)]
        for key in _asked(made_by, entry["arguments"]) or shown:
            record = world.state.get(str(tool.entity), {}).get(key)
            if record is not None and all(
                name in record
                and not isinstance(value, Mapping | list)
                and differs(record[name], value) is None
                for name, value in arguments.items()
            ):
                found.append(key)
    return found
