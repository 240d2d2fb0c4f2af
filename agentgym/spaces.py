"""Gymnasium spaces of a conversation: messages out, one assistant message in.

Gymnasium's own `Text` space knows single characters and a maximum length; tool results have neither
a charset nor a bound. These spaces contain every message an OpenAI-compatible server would take,
and the action space samples valid calls from the tools' own schemas, so a random policy runs any
environment.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from agentgym.types import Action, Messages, ToolSpec, clean_text

_ROLES = ("system", "developer", "user", "assistant", "tool")
_WORDS = ("red", "blue", "large", "small", "cotton", "steel", "light", "soft", "new", "classic")
_DEEP = 4


class MessageSpace(gymnasium.Space[Messages]):
    """All tuples of well-formed messages, of any length and any text."""

    def __init__(self, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: conversations have no fixed length."""
        return False

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(is_message(m) for m in x)

    def sample(self, mask: Any = None, probability: Any = None) -> Messages:
        """Draw one to three short user messages; the arguments are Gymnasium's and not used."""
        count = int(self.np_random.integers(1, 4))
        return tuple({"role": "user", "content": _words(self.np_random)} for _ in range(count))

    def to_jsonable(self, sample_n: Iterable[Messages]) -> list[Any]:
        """Samples as JSON values."""
        return [list(messages) for messages in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Messages]:
        """Samples back from JSON values."""
        return [tuple(messages) for messages in sample_n]

    def __repr__(self) -> str:
        return "MessageSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSpace)

    __hash__ = None  # type: ignore[assignment]  # mutable through its generator, like every Space


class AssistantSpace(gymnasium.Space[Action]):
    """All assistant messages; samples are valid calls of the tools.

    Args:
        tools: OpenAI tool list to sample from; with none, samples are plain text.
        choices: Values to sample from by `(tool, parameter)`, where the env knows better than the
            schema (the buttons of the current page). The env keeps it up to date.
        seed: Seed of the sampler.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec] = (),
        *,
        choices: Mapping[tuple[str, str], Sequence[Any]] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.tools = tuple(tools)
        self.choices: Mapping[tuple[str, str], Sequence[Any]] = choices or {}

    @property
    def is_np_flattenable(self) -> bool:
        """False: messages have no fixed length."""
        return False

    def contains(self, x: Any) -> bool:
        """Whether `x` is text or an assistant message; its calls may well be malformed.

        A malformed call is the policy's failure and is answered by the env, so it belongs to the
        space, and so does text with lone surrogates, which the env mends; something that isn't an
        assistant message at all does not.
        """
        if isinstance(x, str):
            return True
        return (
            isinstance(x, dict)
            and x.get("role", "assistant") == "assistant"
            and is_message(x, encodable=False)
        )

    def sample(self, mask: Any = None, probability: Any = None) -> Action:
        """Draw a valid call of a random tool; the arguments are Gymnasium's and not used."""
        rng = self.np_random
        callable_tools = [t for t in self.tools if self._is_callable(t["function"])]
        if not callable_tools:
            return {"role": "assistant", "content": _words(rng)}
        function = callable_tools[int(rng.integers(len(callable_tools)))]["function"]
        arguments = self._sample_arguments(function)
        call = {"name": function["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        call_id = f"call_{int(rng.integers(1 << 32)):08x}"
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        }

    def _is_callable(self, function: Mapping[str, Any]) -> bool:
        """Whether no parameter of the tool has an empty set of choices right now."""
        name = function["name"]
        return not any(t == name and len(values) == 0 for (t, _), values in self.choices.items())

    def _sample_arguments(self, function: Mapping[str, Any]) -> dict[str, Any]:
        schema = function["parameters"]
        defs = {**schema.get("definitions", {}), **schema.get("$defs", {})}
        arguments = {}
        for key, sub in schema.get("properties", {}).items():
            if key not in schema.get("required", ()) and self.np_random.random() < 0.5:
                continue
            choices = self.choices.get((function["name"], key))
            if choices is not None:
                arguments[key] = choices[int(self.np_random.integers(len(choices)))]
            else:
                arguments[key] = sample_json(sub, self.np_random, defs)
        return arguments

    def to_jsonable(self, sample_n: Iterable[Action]) -> list[Any]:
        """Samples as JSON values."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[Action]:
        """Samples back from JSON values."""
        return list(sample_n)

    def __repr__(self) -> str:
        return f"AssistantSpace({', '.join(t['function']['name'] for t in self.tools)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AssistantSpace) and self.tools == other.tools

    __hash__ = None  # type: ignore[assignment]  # mutable through its generator, like every Space


def is_message(value: Any, *, encodable: bool = True) -> bool:
    """Whether a value has the shape of an OpenAI message, and text that can be encoded."""
    if not isinstance(value, dict) or value.get("role", "assistant") not in _ROLES:
        return False
    content = value.get("content")
    if isinstance(content, str):
        if encodable and not content.isascii() and clean_text(content) != content:
            return False
    elif content is not None and not isinstance(content, list):
        return False
    if value.get("role") == "tool" and not isinstance(value.get("tool_call_id"), str):
        return False
    calls = value.get("tool_calls")
    return calls is None or (isinstance(calls, list) and all(isinstance(c, dict) for c in calls))


def sample_json(
    schema: Mapping[str, Any], rng: np.random.Generator, defs: Mapping[str, Any], *, depth: int = 0
) -> Any:
    """Draw a value of a JSON schema of the kind made from Python type hints.

    Below `_DEEP` levels only what is required is drawn, so that a schema that includes itself (a
    tree of nodes) comes to an end.
    """
    if "$ref" in schema:
        return sample_json(defs[schema["$ref"].rsplit("/", 1)[-1]], rng, defs, depth=depth)
    if "const" in schema:
        return schema["const"]
    if len(schema.get("allOf", ())) == 1:
        return sample_json(schema["allOf"][0], rng, defs, depth=depth)
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][int(rng.integers(len(schema[key])))]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        if depth > _DEEP:
            options = [o for o in options if "$ref" not in o and "items" not in o] or options
        return sample_json(options[int(rng.integers(len(options)))], rng, defs, depth=depth)
    return _sample_typed(schema, rng, defs, depth)


def _sample_typed(
    schema: Mapping[str, Any], rng: np.random.Generator, defs: Mapping[str, Any], depth: int
) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[int(rng.integers(len(kind)))]
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        return _sample_number(schema, rng, whole=kind == "integer")
    if kind == "array":
        draw = functools.partial(sample_json, rng=rng, defs=defs, depth=depth + 1)
        first = [draw(item) for item in schema.get("prefixItems", ())]
        least = max(int(schema.get("minItems", 0)), len(first))
        most = max(int(schema.get("maxItems", least + 2)), least)
        if depth > _DEEP or schema.get("items") is False:
            most = least
        count = int(rng.integers(least, most + 1)) - len(first)
        items = schema.get("items") or {}
        return first + [draw(items) for _ in range(count)]
    if kind == "object":
        draw = functools.partial(sample_json, rng=rng, defs=defs, depth=depth + 1)
        required = schema.get("required", ())
        return {
            key: draw(sub)
            for key, sub in schema.get("properties", {}).items()
            if depth <= _DEEP or key in required
        }
    text = _words(rng)
    most = schema.get("maxLength", len(text))
    return text[:most].ljust(schema.get("minLength", 0), "a")


def _sample_number(
    schema: Mapping[str, Any], rng: np.random.Generator, *, whole: bool
) -> int | float:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max(lows) if lows else min(0, min(highs) - 100) if highs else 0
    high = min(highs) if highs else low + 100
    if not whole:
        return float(rng.uniform(low, high))
    first, last = math.ceil(low), math.floor(high)
    first += schema.get("exclusiveMinimum") == first
    last -= schema.get("exclusiveMaximum") == last
    unit = int(schema.get("multipleOf", 1))
    return unit * int(rng.integers(-(-first // unit), last // unit + 1))


def _words(rng: np.random.Generator) -> str:
    count = int(rng.integers(1, 4))
    return " ".join(_WORDS[int(i)] for i in rng.integers(len(_WORDS), size=count))
