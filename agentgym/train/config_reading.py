"""From files, `--set` and arguments to a `TrainConfig`, with one line for whatever is wrong.

An error names where the value came from: a run has a file, settings on the command line, and
options, and the one to mend is the one that was last.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentgym.errors import ConfigError, unknown_name
from agentgym.train.config import TrainConfig
from agentgym.types import Record

Path_ = tuple[str, ...]
"""Names from the outermost table inwards."""

MOVED: Mapping[str, str] = {
    "algorithm": "objective.algorithm",
    "refill": "objective.refill",
    "truncated": "objective.truncated",
    "policy_servers": "policy.servers",
    "policy_model": "policy.served_name",
    "sync": "policy.sync",
    "sync_folder": "policy.sync_folder",
    "service": "policy.service",
    "check_every": "policy.check_every",
    "temperature": "sampling.temperature",
    "max_turn_tokens": "sampling.max_turn_tokens",
    "max_episode_tokens": "sampling.max_episode_tokens",
    "max_context": "sampling.max_context",
    "save_every": "keep.checkpoints_every",
    "keep_traces_every": "keep.traces_every",
    "eval_every": "eval.every",
    "eval_tasks": "eval.tasks",
    "eval_samples": "eval.samples",
    "eval_env_kwargs": "eval.env_kwargs",
}
"""Fields that were called otherwise before there were tables."""


_OPTIONS = ("env", "model", "out")
"""Fields without a default, which are options of the command too."""


def table_of(name: str) -> type[Record] | None:
    """The record that a field of `TrainConfig` holds, if it is a table of known names."""
    field = TrainConfig.model_fields.get(name)
    if field is None:
        return None
    kinds = (field.annotation, *get_args(field.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Record)), None)


def field_names() -> Iterator[str]:
    """Every setting, those in tables as `table.name`."""
    for name in TrainConfig.model_fields:
        table = table_of(name)
        yield from [name] if table is None else [f"{name}.{inner}" for inner in table.model_fields]


def read_config(
    values: Mapping[str, Any],
    *,
    source: str = "the training config",
    settings: Mapping[str, str] | None = None,
) -> TrainConfig:
    """A config from plain values, with errors in one line each.

    Args:
        values: By name; `{"eval": {"every": 20}}` may be written `{"eval.every": 20}`.
        source: Where they come from, for errors.
        settings: Names that come from elsewhere, and where from: `{"eval.every": "--set …"}`.

    Raises:
        ConfigError: On an unknown field or a value that isn't allowed.
    """
    origins = _Origins(source, settings or {})
    nested: dict[str, Any] = {}
    for name, value in values.items():
        _put(nested, tuple(name.split(".")), value, origins.of(tuple(name.split("."))))
    _check_names(nested, origins)
    try:
        return TrainConfig.model_validate(nested)
    except ValidationError as error:
        by_origin: dict[str, list[str]] = {}
        for fault in error.errors(include_url=False):
            where = tuple(str(part) for part in fault["loc"] if part != "[key]")
            by_origin.setdefault(origins.of(where), []).append(_fault(where, fault))
        said = "; ".join(f"{origin}: {'; '.join(found)}" for origin, found in by_origin.items())
        raise ConfigError(said) from error


def load_config(
    path: Path | None,
    *,
    defaults: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    **fields: Any,
) -> TrainConfig:
    """A config from defaults, a file, `key=value` settings and fields, the later ones winning.

    Args:
        path: A TOML file, the `train.json` of an earlier run, or None.
        defaults: Values by field name, for what nothing else sets.
        settings: Such as `steps=20` or `grpo.beta=0.04`; values are TOML, or else text.
        **fields: Values by name, in tables `table.name`; None is left out.

    Raises:
        ConfigError: If the file can't be read or a value isn't allowed.
    """
    source = str(path) if path else "the training config"
    values: dict[str, Any] = {} if path is None else _read_file(path)
    for name, value in (defaults or {}).items():
        values.setdefault(name, value)
    said: dict[str, str] = {}
    for setting in settings:
        name, value = _read_setting(setting)
        said[name] = f"--set {setting}"
        _put(values, tuple(name.split(".")), value, said[name])
    for name, value in fields.items():
        if value is not None:
            said.pop(name, None)
            if path is not None:
                said[name] = "the command line"
            _put(values, tuple(name.split(".")), value, said.get(name, source))
    return read_config(values, source=source, settings=said)


class _Origins:
    """Where values come from: the one source, but for names that were set elsewhere."""

    def __init__(self, source: str, settings: Mapping[str, str]) -> None:
        self._source = source
        self._settings = {tuple(name.split(".")): said for name, said in settings.items()}

    def of(self, where: Path_) -> str:
        """Where the value at a place came from; of a table, the last that was set in it."""
        found = self._source
        for name, said in self._settings.items():
            shorter = min(len(name), len(where))
            if shorter and name[:shorter] == where[:shorter]:
                found = said
        return found


def _read_file(path: Path) -> dict[str, Any]:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:  # not TOML, not JSON, not UTF-8
        raise ConfigError(f"{path} is not valid {kind}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold one JSON object, the settings by name")
    return values


def _read_setting(setting: str) -> tuple[str, Any]:
    key, separator, text = setting.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set takes key=value, got {setting!r} (--set help lists the keys)")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return ".".join(part.strip() for part in key.split(".")), value


def _put(values: dict[str, Any], where: Path_, value: Any, origin: str) -> None:
    """Put a value in its table; the tables on the way are made."""
    *tables, name = where
    for table in tables:
        inner = values.get(table)
        if inner is None:  # missing, or `null` in the record of a run
            inner = values[table] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{origin}: {table!r} is not a table, it is {inner!r:.60}")
        # A copy: what the caller gave stays as it is.
        inner = values[table] = dict(inner)
        values = inner
    values[name] = value


def _check_names(values: Mapping[str, Any], origins: _Origins) -> None:
    """Refuse names that don't exist, with the one that is likely meant."""
    for name, value in values.items():
        if name in MOVED:
            raise ConfigError(f"{origins.of((name,))}: {name!r} is now {MOVED[name]!r}")
        if name not in TrainConfig.model_fields:
            known = [*TrainConfig.model_fields, *field_names()]
            raise ConfigError(f"{origins.of((name,))}: {_unknown(name, known)}")
        table = table_of(name)
        if table is None:
            _check_no_switch(name, TrainConfig.model_fields[name], value, origins)
        if table is None or value is None or isinstance(value, Record):
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{origins.of((name,))}: {name} is a table, [{name}], of "
                f"{', '.join(table.model_fields)}; got {value!r:.60}"
            )
        for inner in value:
            if inner not in table.model_fields:
                said = _unknown_in_table(name, inner, list(table.model_fields))
                raise ConfigError(f"{origins.of((name, inner))}: {said}")
            _check_no_switch(f"{name}.{inner}", table.model_fields[inner], value[inner], origins)


def _check_no_switch(name: str, field: FieldInfo, value: Any, origins: _Origins) -> None:
    """Refuse true and false where a number belongs; Python takes them for 1 and 0."""
    kinds = (field.annotation, *get_args(field.annotation))
    if isinstance(value, bool) and bool not in kinds and (int in kinds or float in kinds):
        raise ConfigError(f"{origins.of(tuple(name.split('.')))}: {name} is a number, got {value}")


def _unknown(name: str, known: Iterable[str]) -> str:
    return unknown_name("field", name, sorted(set(known)))


def _unknown_in_table(table: str, name: str, known: Sequence[str]) -> str:
    """The likeliest name is judged without its table's, which all of them share."""
    elsewhere = [each for each in field_names() if each.endswith(f".{name}")]
    meant = [f"{table}.{each}" for each in difflib.get_close_matches(name, known, n=1)] or elsewhere
    hint = f"did you mean {meant[0]!r}?" if meant else f"[{table}] has {', '.join(known)}"
    return f"unknown field '{table}.{name}'; {hint}"


def _fault(where: Path_, fault: Mapping[str, Any]) -> str:
    """What pydantic found wrong, as the settings are named."""
    name = ".".join(where)
    if fault["type"] == "missing":
        return f"{name}: is missing" + (f" (--{name})" if name in _OPTIONS else "")
    if fault["type"] == "value_error":  # of our own, with all there is to say
        said = fault["msg"].removeprefix("Value error, ")
        return f"{name}: {said}" if name else said
    return f"{name}: {fault['msg']}, got {fault['input']!r}"
