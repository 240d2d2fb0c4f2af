"""Workloads as TOML files: to write one down, to change it by hand, to plan it again."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgym.client import Prices
from agentgym.cost.turns import (
    ConstantTurns,
    GeometricTurns,
    HistogramTurns,
    LogNormalTurns,
    Turns,
)
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, RoleLoad, Serving, Workload
from agentgym.errors import ConfigError, unknown_name
from agentgym.types import Record, in_one_line

REFERENCE = Path(__file__).with_name("reference.toml")


def read_workload(path: str | os.PathLike[str]) -> Workload:
    """Read a workload.

    Raises:
        ConfigError: If the file can't be read, isn't TOML, or a field is unknown or not allowed.
    """
    return workload_of(read_tables(path), where=str(path))


def read_tables(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A workload file's tables, unchecked.

    Raises:
        ConfigError: If the file can't be read or isn't TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def workload_of(tables: Mapping[str, Any], *, where: str = "workload") -> Workload:
    """A workload from a file's tables.

    Args:
        tables: As `read_tables` finds them.
        where: What to call them in errors.

    Raises:
        ConfigError: If a field is unknown, missing or not allowed.
    """
    try:
        return Workload.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_fault(error)}") from error


def workload_text(workload: Workload) -> str:
    """A workload as a TOML file; what is as by default is left out."""
    facts = workload.model_dump(mode="json", exclude_defaults=True)
    facts["turns"] = _turns(workload.turns)
    facts["tokens"] = workload.tokens.model_dump(mode="json")
    policy, roles = facts.pop("policy", {}), facts.pop("roles", {})
    lines = [f"{key} = {_value(value)}" for key, value in facts.items()]
    if policy:
        lines += ["", "[policy]", *_fields(policy)]
    for role in workload.roles:
        lines += ["", f"[roles.{_key(role)}]", *_fields(roles.get(role, {}))]
    return "\n".join(lines) + "\n"


def _turns(turns: Turns) -> Any:
    if isinstance(turns, ConstantTurns):
        return turns.turns
    return turns.model_dump(mode="json")


def _fields(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None)


def _key(key: Any) -> str:
    text = _whole(key) if isinstance(key, float) else str(key)
    bare = text.replace("-", "").replace("_", "")
    return text if bare.isascii() and bare.isalnum() else _value(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _whole(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(_fields(value)) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def _whole(value: float) -> str:
    """A float as TOML has it; without a fraction, as the whole number that it is."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


_KINDS: dict[str, type[Record]] = {
    kind.model_fields["kind"].default: kind
    for kind in (ConstantTurns, HistogramTurns, GeometricTurns, LogNormalTurns)
}

_TABLES: dict[str, type[Record]] = {
    "tokens": EpisodeTokens,
    "policy": PolicyLoad,
    "roles": RoleLoad,
}
_INNER: dict[str, type[Record]] = {"serving": Serving, "prices": Prices}


def _fault(error: ValidationError) -> str:
    """What is wrong; of an unknown field, which one was likely meant."""
    faults = error.errors(include_url=False)
    path = next((fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"), None)
    if path is None:
        return in_one_line(error)
    *above, name = map(str, path)
    record: type[Record] = Workload
    if above[:1] == ["turns"]:
        record = _KINDS[above[1]]
    elif above:
        depth = 2 if above[0] == "roles" else 1  # a role may be called as it likes
        record = _INNER[above[depth]] if len(above) > depth else _TABLES[above[0]]
    inside = f"{'.'.join(above)}: " if above else ""
    return inside + unknown_name("field", name, record.model_fields)
