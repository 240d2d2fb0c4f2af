"""From a tool's JSON schema to a Python method that describes the same tool.

TRL's own loops take tools as methods and let transformers read their schema back from signature and
docstring (`transformers.utils.get_json_schema`), so a schema is written as type hints and a Google
docstring here. What neither can say (bounds, formats, the fields of an object) goes into the
parameter's description, so that the policy is told all the same.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

from agentgym.types import ToolSpec

Call = Callable[[Any, str, dict[str, Any]], Awaitable[str]]
"""What a method does: called with the instance, the tool's name and the arguments as given."""

_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "null": None,
    "array": list, "object": dict,
}  # fmt: skip
_SAID_BY_HINTS = frozenset({"type", "title", "description", "enum", "items", "anyOf", "nullable"})
_SECTION = re.compile(r"(Args|Returns|Raises|\(choices):", re.IGNORECASE)
"""What transformers takes for markup wherever it stands."""


@dataclass(frozen=True)
class ToolMethod:
    """A tool as a method."""

    tool: str
    """The tool's own name, as the environment knows it."""
    name: str
    """The method's name: the tool's, unless Python or the trainer has another use for that."""
    function: Callable[..., Awaitable[str]]


def tool_method(spec: ToolSpec, call: Call, *, reserved: Sequence[str] = ()) -> ToolMethod:
    """The method of one tool.

    Args:
        spec: OpenAI's description of it.
        call: What the method does. It gets whatever arguments the policy gave, unchecked: the
            environment tells the policy what is wrong with them, and counts it.
        reserved: Names that the method may not have.

    Returns:
        An `async def` with a typed signature and a Google docstring.
    """
    function = spec["function"]
    tool = str(function["name"])
    name = f"{tool}_tool" if tool in reserved or tool.startswith("_") else tool
    name = name.lstrip("_")
    schema: Mapping[str, Any] = function.get("parameters") or {}
    defined = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    properties: Mapping[str, Any] = _inlined(schema.get("properties") or {}, defined)
    names: dict[str, str] = {}
    for key in properties:
        ours = _identifier(key)
        while ours in names or (ours != key and ours in properties):
            ours += "_"
        names[ours] = key

    async def method(self: Any, /, **arguments: Any) -> str:
        return await call(self, tool, {names.get(key, key): v for key, v in arguments.items()})

    required = set(schema.get("required") or ())
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    hints: dict[str, Any] = {}
    for ours, key in names.items():
        hints[ours] = _hint(properties[key])
        parameters.append(
            inspect.Parameter(
                ours,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[ours],
                default=inspect.Parameter.empty if key in required else None,
            )
        )
    method.__name__ = name
    method.__qualname__ = name
    method.__doc__ = _docstring(
        str(function.get("description") or tool),
        {ours: _description(key, properties[key]) for ours, key in names.items()},
    )
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # functions may have one
        parameters, return_annotation=str
    )
    return ToolMethod(tool, name, method)


def _identifier(key: str) -> str:
    """A parameter's name as Python takes it."""
    name = re.sub(r"\W", "_", key)
    taken = keyword.iskeyword(name) or name in ("self", "return") or not name
    name = f"{name}_" if taken else name
    return f"p_{name}" if name[0].isdigit() else name


def _inlined(value: Any, defined: Mapping[str, Any], within: tuple[str, ...] = ()) -> Any:
    """A schema with what it refers to in its place; what refers to itself is any value there."""
    if isinstance(value, list):
        return [_inlined(each, defined, within) for each in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(reference := value.get("$ref"), str):
        target = reference.rpartition("/")[2]
        beside = {key: each for key, each in value.items() if key != "$ref"}
        if target in within or target not in defined:
            return beside
        found = _inlined(defined[target], defined, (*within, target))
        return {**found, **beside} if isinstance(found, Mapping) else beside
    return {key: _inlined(each, defined, within) for key, each in value.items()}


def _hint(schema: Any) -> Any:
    """The type hint that transformers turns into this schema, or the nearest there is."""
    if not isinstance(schema, Mapping):
        return Any
    if values := schema.get("enum"):
        if all(isinstance(value, str | int | float | bool | None) for value in values):
            return Literal[tuple(values)]
        return Any
    if isinstance(options := schema.get("anyOf"), Sequence):
        return Union[tuple(_hint(option) for option in options)]  # noqa: UP007  # made at run time
    kind = schema.get("type")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return Union[tuple(_hint({**schema, "type": one}) for one in kind)]  # noqa: UP007
    if kind == "array":
        return list[_hint(schema["items"])] if isinstance(schema.get("items"), Mapping) else list  # type: ignore[misc]
    if kind == "object":
        values = schema.get("additionalProperties")
        return dict[str, _hint(values)] if isinstance(values, Mapping) else dict[str, Any]  # type: ignore[misc]
    hint = _TYPES.get(kind, Any) if isinstance(kind, str) else Any
    return Optional[hint] if schema.get("nullable") else hint  # noqa: UP045  # made at run time


def _description(name: str, schema: Any) -> str:
    """A parameter's description, with what its hint can't say, on one line."""
    if not isinstance(schema, Mapping):
        return f"The {name.replace('_', ' ')}."
    said = _SAID_BY_HINTS | ({"additionalProperties"} if schema.get("type") == "object" else set())
    text = " ".join(str(schema.get("description") or "").split())
    more = {key: value for key, value in schema.items() if key not in said}
    rest = ", ".join(
        f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in more.items()
    )
    if not rest:
        return text or f"The {name.replace('_', ' ')}."
    return f"{text} ({rest})".strip()


def _docstring(description: str, parameters: Mapping[str, str]) -> str:
    text = _no_markup(description.strip())
    if not parameters:
        return text
    told = (f"    {name}: {_no_markup(said)}" for name, said in parameters.items())
    return "\n".join((f"{text}\n\nArgs:", *told))


def _no_markup(text: str) -> str:
    return _SECTION.sub(r"\1 -", text)
