"""Every setting with its type, default and meaning, from the fields themselves."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import table_of
from agentgym.types import Record

_WIDTH = 100


def settings_help() -> str:
    """What `--set` takes, table by table."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    tables = [name for name in TrainConfig.model_fields if table_of(name) is not None]
    for name, field in TrainConfig.model_fields.items():
        if name not in tables:
            yield from _entry(name, field)
    for name in tables:
        table = table_of(name)
        assert table is not None
        yield ""
        told = " ".join((TrainConfig.model_fields[name].description or "").split())
        yield textwrap.fill(f"[{name}]  {told}", _WIDTH, subsequent_indent=" " * 6)
        for inner, field in table.model_fields.items():
            yield from _entry(f"{name}.{inner}", field)


def _entry(name: str, field: FieldInfo) -> Iterator[str]:
    default = "must be given" if field.is_required() else f"= {_shown(field)}"
    yield f"  {name} {default}  ({_type_name(field.annotation)})"
    yield textwrap.fill(
        " ".join((field.description or "").split()),
        _WIDTH,
        initial_indent=" " * 6,
        subsequent_indent=" " * 6,
    )


def _shown(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        value = list(value)
    return repr(value) if not isinstance(value, str) else f'"{value}"'


def _type_name(kind: Any) -> str:
    """A type as a user of TOML would say it."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_name(inside[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(each) for each in inside if each is not type(None))
    if origin is Literal:
        return ", ".join(f'"{value}"' for value in inside)
    if origin in (tuple, list):
        return f"list of {_type_name(inside[0])}"
    if origin is dict:
        return "table"
    names = {int: "whole number", float: "number", str: "text", Path: "path", bool: "true or false"}
    if isinstance(kind, type) and issubclass(kind, Record):
        return "table"
    return names.get(kind, getattr(kind, "__name__", str(kind)))
