"""Tools: typed Python functions that a model may call.

The schema comes from the signature and the docstring, so what the model is told and what the
function takes can't drift apart. Reading is strict where guessing would hide a fault of the policy
(unknown names, extra or missing arguments, `"maybe"` for a boolean) and lenient where servers
merely differ in dialect (a dict for a JSON string, `""` for no arguments, `"42"` for 42).
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from agentgym.copies import copied
from agentgym.deadline import Deadline
from agentgym.errors import AgentGymError, ConfigError, EnvFault, MalformedCall, ToolError
from agentgym.threads import in_thread
from agentgym.tool_schema import schema_of, type_name
from agentgym.types import MAX_NESTING, ToolSpec, clean_json, clean_text, nests_too_deep

MOST_FAULTS = 8
"""Faults of one call's arguments that the model is told, at most."""


class Tool:
    """One function a model may call.

    Args:
        function: Typed, with a Google-style docstring; `def` or `async def`. Its first paragraph
            describes the tool, its `Args:` the parameters.
        name: As the model calls it; default: the function's name.
        inline: Promise that a `def` function is quick and never blocks, so it may run on the event
            loop. Without it, blocking functions run in a thread when many episodes run at once.
        timeout_s: Seconds after which the call is answered with a time-out error.

    Raises:
        ConfigError: If a parameter has no type, or is positional-only or variadic.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        inline: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        if not inspect.isroutine(function):
            raise ConfigError(f"a tool is a function or method, got {function!r}; wrap it in a def")
        self.function = function
        self.name = name or function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        self.inline = inline and timeout_s is None
        self.timeout_s = timeout_s
        self._make_reader()

    def _make_reader(self) -> None:
        plain = getattr(self.function, "__func__", self.function)
        self._arguments, spec = schema_of(plain, self.name, bound=inspect.ismethod(self.function))
        self.spec = copied(spec)  # the cached one serves every env of the process
        fields = self._arguments.model_fields
        self._parameters = {field: str(info.alias) for field, info in fields.items()}
        self.required: tuple[str, ...] = tuple(
            self._parameters[field] for field, info in fields.items() if info.is_required()
        )

    def __getstate__(self) -> dict[str, Any]:
        """What can be pickled; the reader is a class made on the spot, and is made again."""
        kept = ("function", "name", "is_async", "inline", "timeout_s")
        return {key: getattr(self, key) for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_reader()

    @property
    def needs_loop(self) -> bool:
        """Whether a call must run on an event loop."""
        waits = self.is_async or inspect.isasyncgenfunction(self.function)
        return waits or self.timeout_s is not None

    def read(self, raw: Any) -> dict[str, Any]:
        """Read a model's arguments, whatever form its server gives them.

        Args:
            raw: JSON text, a mapping, or nothing (`None`, `""`, `"null"`).

        Returns:
            Validated arguments by name.

        Raises:
            MalformedCall: With a text that tells the model how to mend its call.
        """
        given = self._as_mapping(raw)
        try:
            arguments = self._arguments.model_validate(given)
        except ValidationError as error:
            raise MalformedCall(self._explain(error)) from error
        return {
            parameter: getattr(arguments, field)
            for field, parameter in self._parameters.items()
            if field in arguments.model_fields_set
        }

    def _as_mapping(self, raw: Any) -> Mapping[str, Any]:
        if isinstance(raw, str) and raw.strip() in ("", "null"):
            raw = None
        if raw is None:
            return {}
        if isinstance(raw, str):
            try:
                raw = _JSON.decode(raw)
            except (ValueError, RecursionError) as error:
                raise MalformedCall(
                    f"Error: the arguments of {self.name} are not valid JSON ({error}). "
                    f"Call it again with {self.example()}."
                ) from error
        if not isinstance(raw, Mapping):
            raise MalformedCall(
                f"Error: the arguments of {self.name} must be a JSON object, "
                f"got {type(raw).__name__}. Call it again with {self.example()}."
            )
        if nests_too_deep(raw):
            raise MalformedCall(
                f"Error: the arguments of {self.name} are nested more than {MAX_NESTING} levels "
                f"deep. Call it again with {self.example()}."
            )
        cleaned: dict[str, Any] = clean_json(raw)
        return cleaned

    def example(self) -> str:
        """The shape of the arguments, for error messages."""
        properties = self.spec["function"]["parameters"]["properties"]
        return json.dumps({key: f"<{type_name(properties[key])}>" for key in self.required})

    def _explain(self, error: ValidationError) -> str:
        faults = []
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            where = f"{'.'.join(str(part) for part in fault['loc']):.100}"
            if fault["type"] == "missing":
                faults.append(f"{where} is missing")
            elif fault["type"] == "extra_forbidden":
                faults.append(f"{where} is not a parameter")
            else:
                faults.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}")
        return (
            f"Error: invalid arguments for {self.name}: {'; '.join(faults[:MOST_FAULTS])}. "
            f"Call it again with {self.example()}."
        )

    async def call(self, arguments: Mapping[str, Any], *, on_loop: bool) -> str:
        """Run the tool and give its result as text.

        Args:
            arguments: As `read` returned them.
            on_loop: Whether an event loop runs that other episodes share; a blocking function then
                goes to a thread.

        Raises:
            ToolError: What the model is to be told (its own errors, a time-out).
            EnvFault: If the function crashed; the episode can't be scored.
        """
        try:
            async with Deadline(self.timeout_s) if self.timeout_s else _no_limit:
                if self.is_async:
                    result = await self.function(**arguments)
                elif on_loop and not self.inline:
                    result = await _in_thread(self.name, self.function, arguments)
                else:
                    result = self.function(**arguments)
                if inspect.isasyncgen(result):
                    result = [item async for item in result]
            return result if type(result) is str and result.isascii() else render_result(result)
        except TimeoutError as error:
            limit = f" after {self.timeout_s:g} s" if self.timeout_s else ""
            raise ToolError(f"Error: {self.name} timed out{limit}.") from error
        except AgentGymError:
            raise
        except Exception as error:
            raise EnvFault(
                f"tool {self.name!r} crashed: {type(error).__name__}: {error}"
            ) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


class _NoLimit:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exc: object) -> None: ...


_no_limit = _NoLimit()


class ToolBox:
    """The tools of one environment, by name.

    Args:
        tools: `Tool`s, or functions that become tools.

    Raises:
        ConfigError: If two tools share a name.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            entry = item if isinstance(item, Tool) else Tool(item)
            if entry.name in self._tools:
                raise ConfigError(f"two tools are called {entry.name!r}; names must differ")
            self._tools[entry.name] = entry
        self.specs: tuple[ToolSpec, ...] = tuple(t.spec for t in self._tools.values())
        self.needs_loop = any(t.needs_loop for t in self._tools.values())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def find(self, name: object) -> Tool:
        """The tool of that name.

        Raises:
            MalformedCall: With the names there are.
        """
        found = self._tools.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(self._tools) or "none"
            raise MalformedCall(f"Error: there is no tool {name!r:.100}. Tools: {known}.")
        return found


def render_result(value: Any) -> str:
    """Turn whatever a tool returned into text a strict server accepts.

    Text stays, `None` is empty, JSON values are encoded, bytes are decoded or given as base64,
    iterators are consumed.

    Raises:
        ToolError: If the value has no JSON form.
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return clean_text(value.model_dump_json())
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(bytes(value)).decode()
    if isinstance(value, Iterator):
        value = list(value)
    try:
        return json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"Error: the tool's result can't be shown ({error}).") from error


async def _in_thread(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run a blocking function in a thread, the body of a generator, too."""

    def work() -> Any:
        result = function(**arguments)
        return list(result) if isinstance(result, Iterator) else result

    return await in_thread(work, name=f"tool-{name}")
