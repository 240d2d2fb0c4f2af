"""From a typed function to what a model is told about it, and to a reader of its arguments.

Both come from the one signature and docstring, so that they can't drift apart.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from agentgym.errors import ConfigError
from agentgym.types import ToolSpec


def _only_true_or_false(value: Any) -> Any:
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if isinstance(value, bool):
        return value
    raise ValueError("must be true or false")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")
    return value


_READERS: tuple[tuple[type, BeforeValidator], ...] = (
    (bool, BeforeValidator(_only_true_or_false)),
    (int, BeforeValidator(_no_bool)),
    (float, BeforeValidator(_no_bool)),
)
"""Exact readings of what models send as strings; pydantic alone would take "off" or 0 for False."""

_CONTAINERS = (list, tuple, set, frozenset, dict, Sequence, Mapping)


class Arguments(BaseModel):
    """Base of the argument readers; a parameter is a field's alias, so any name will do."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def schema_of(
    function: Callable[..., Any], name: str, *, bound: bool
) -> tuple[type[Arguments], ToolSpec]:
    """Argument reader and OpenAI spec of a function.

    Args:
        function: Typed; a method's plain function.
        name: As the model calls it.
        bound: Whether the first parameter is `self`.

    Raises:
        ConfigError: If a parameter can't be described to a model.
    """
    if getattr(function, "__closure__", None):
        return _make(function, name, bound)  # caching it would keep what it closes over alive
    return _cached(function, name, bound)


def _make(function: Callable[..., Any], name: str, bound: bool) -> tuple[type[Arguments], ToolSpec]:
    doc = inspect.getdoc(function) or ""
    try:
        arguments = create_model(
            f"{name}_arguments",
            __base__=Arguments,
            **_fields(function, name, bound, described_parameters(doc)),
        )
        schema = without_titles(arguments.model_json_schema())
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: no JSON schema for its parameters: {error}") from error
    schema.setdefault("properties", {})
    spec = {
        "type": "function",
        "function": {
            "name": name,
            "description": doc.split("\n\n")[0].replace("\n", " ").strip(),
            "parameters": schema,
        },
    }
    return arguments, spec


_cached = functools.lru_cache(maxsize=1024)(_make)
"""An env makes its tools once per instance."""


def _fields(
    function: Callable[..., Any], name: str, bound: bool, described: Mapping[str, str]
) -> dict[str, Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"tool {name!r}: its type hints can't be read ({error}); a tool is a function whose "
            "types are importable from its module"
        ) from error
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1 if bound else 0 :]:
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: must be passable by name (no *args, **kwargs or /)")
        if parameter.name not in hints:
            raise ConfigError(f"{where}: has no type hint; the model's schema is made from it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{len(fields)}"] = (
            _read_exactly(hints[parameter.name]),
            Field(default, alias=parameter.name, description=described.get(parameter.name)),
        )
    return fields


def _read_exactly(hint: Any) -> Any:
    """A type hint with exact readers wherever it names bool, int or float."""
    origin, inner = get_origin(hint), get_args(hint)
    base, constraints = (inner[0], inner[1:]) if origin is Annotated else (hint, ())
    for plain, reader in _READERS:
        if base is plain:  # the reader goes last, or the schema would lose the constraints
            return Annotated[(plain, *constraints, reader)]
    if origin is Annotated:
        return Annotated[(_read_exactly(base), *constraints)]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_read_exactly(option) for option in inner)]  # noqa: UP007
    if origin in _CONTAINERS:
        return origin[tuple(_read_exactly(item) for item in inner)]
    return hint


def without_titles(schema: Any) -> Any:
    """Drop pydantic's `title` keys, which tell a model nothing; parameters named title stay."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: (
            {name: without_titles(sub) for name, sub in value.items()}
            if key in ("properties", "$defs")
            else without_titles(value)
        )
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


_ARGS_SECTION = re.compile(r"^Args:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ARG_LINE = re.compile(r"^    (\w+)(?: \([^)]*\))?: *(.*)$")


def described_parameters(doc: str) -> dict[str, str]:
    """The `Args:` section of a Google-style docstring, by parameter."""
    section = _ARGS_SECTION.search(doc)
    described: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in section.group(1).splitlines() if section else ():
        if match := _ARG_LINE.match(line):
            lines = described.setdefault(match.group(1), [match.group(2)])
        elif line.strip():
            lines.append(line.strip())
    return {key: " ".join(text).strip() for key, text in described.items()}


def type_name(schema: Mapping[str, Any]) -> str:
    """A schema's type in a word or two, for error messages."""
    if "enum" in schema:
        return " | ".join(str(v) for v in schema["enum"])
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf", ())
    if options:
        return " | ".join(type_name(option) for option in options)
    kind = schema.get("type", "value")
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
