"""Tools whose arguments are described by a JSON schema rather than by a signature.

A catalogue of tools, a simulated tool, somebody else's API: their schemas exist before any
function does. `SchemaTool` reads calls of such a tool by the same rules as `Tool`, so a policy is
treated the same way wherever a tool comes from, and hands the arguments to one handler as a dict.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.errors import ConfigError, EnvFault, MalformedCall
from agentgym.json_schema import JsonSchema
from agentgym.tool_schema import type_name
from agentgym.tools import Tool

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPED = ("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf")
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas")


def parameters_schema(parameters: Mapping[str, Any], *, where: str) -> JsonSchema:
    """Check the schema of a tool's arguments.

    Arguments that the schema doesn't name are refused unless it allows them explicitly, as with
    tools made from functions.

    Args:
        parameters: An object schema; `type` and `properties` may be left out.
        where: Whose it is, for error messages.

    Raises:
        ConfigError: If it isn't the schema of an object, or a parameter has no type.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: parameters must be a JSON schema, got {parameters!r:.100}")
    schema = {"type": "object", "properties": {}, **parameters}
    if schema["type"] != "object":
        raise ConfigError(
            f"{where}: parameters must be an object schema, got type {schema['type']!r:.100}"
        )
    if not any(key in schema for key in _COMBINED):
        schema.setdefault("additionalProperties", False)
    checked = JsonSchema(schema, where=f"{where}, parameters")
    for key, sub in checked.schema["properties"].items():
        if not isinstance(sub, dict) or not any(word in sub for word in _TYPED):
            raise ConfigError(
                f"{where}, parameter {key!r}: has no type, so calls can't be checked; give "
                f'{{"type": …}}, an enum or anyOf'
            )
    unnamed = [key for key in schema.get("required", ()) if key not in schema["properties"]]
    if (
        unnamed
        and schema.get("additionalProperties") is False
        and "patternProperties" not in schema
    ):
        raise ConfigError(
            f"{where}: {', '.join(unnamed)} is required but not among the properties, so that no "
            "call would be valid; declare it, or take it out of required"
        )
    return checked


class SchemaTool(Tool):
    """A tool with a given schema.

    Args:
        name: As the model calls it: letters, digits, `_` and `-`, at most 64.
        description: What the model is told it does.
        parameters: JSON schema of the arguments, an object; see `parameters_schema`.
        handler: Takes the arguments as a dict and returns the result, as any tool does; `def` or
            `async def`. The tool can be pickled if the handler can.
        inline: Promise that the handler is quick and never waits, so that no event loop is needed;
            for an `async def` it means that nothing in it is ever awaited for long.
        timeout_s: Seconds after which the call is answered with a time-out error.

    Raises:
        ConfigError: If the name or the schema is not one.
    """

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        *,
        handler: Callable[[dict[str, Any]], Any],
        inline: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"a tool's name is 1 to 64 letters, digits, '_' or '-', got {name!r:.100}"
            )
        self.name = name
        self.description = description
        self.handler = handler
        self.parameters = parameters
        self.inline = inline and timeout_s is None
        self.timeout_s = timeout_s
        self._make_reader()

    def _make_reader(self) -> None:
        self._schema = parameters_schema(self.parameters, where=f"tool {self.name!r}")
        self.function = _ByName(self.handler, self.name)  # type: ignore[assignment]  # an object
        self.is_async = _is(inspect.iscoroutinefunction, self.handler)
        self.required = tuple(self._schema.schema.get("required", ()))
        self.spec = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self._schema.schema,
            },
        }

    def __getstate__(self) -> dict[str, Any]:
        kept = ("name", "description", "parameters", "handler", "inline", "timeout_s")
        return {key: getattr(self, key) for key in kept}

    @property
    def needs_loop(self) -> bool:
        """Whether a call must run on an event loop."""
        waits = self.is_async or _is(inspect.isasyncgenfunction, self.handler)
        return (waits and not self.inline) or self.timeout_s is not None

    def read(self, raw: Any) -> dict[str, Any]:
        """Read a model's arguments; see `Tool.read`.

        Raises:
            MalformedCall: With a text that tells the model how to mend its call.
        """
        arguments: dict[str, Any] = self._schema.exact(self._as_mapping(raw))
        if faults := self._schema.faults(arguments):
            raise MalformedCall(
                f"Error: invalid arguments for {self.name}: {'; '.join(faults)}. "
                f"Call it again with {self.example()}."
            )
        return arguments

    def example(self) -> str:
        """The shape of the arguments, for error messages."""
        properties = self._schema.schema["properties"]
        return json.dumps(
            {key: f"<{type_name(properties.get(key, {}))}>" for key in self.required},
            ensure_ascii=False,
        )


class _ByName:
    """Calls a handler, which takes one dict, the way functions are called: by name."""

    def __init__(self, handler: Callable[[dict[str, Any]], Any], name: str) -> None:
        self._handler = handler
        self._waits = _is(inspect.iscoroutinefunction, handler)
        self.__name__ = name

    def __call__(self, /, **arguments: Any) -> Any:
        result = self._handler(arguments)
        if inspect.iscoroutine(result) and not self._waits:
            result.close()
            raise EnvFault(
                f"the handler of tool {self.__name__!r} returned a coroutine; write it as an "
                "`async def`, or as a functools.partial of one"
            )
        return result


def _is(kind: Callable[[Any], bool], handler: Any) -> bool:
    """Whether a handler, which may be an object with `__call__`, is a function of a kind."""
    return kind(handler) or kind(type(handler).__call__)
