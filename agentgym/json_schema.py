"""JSON schemas at work: checked when they are given, cached, and explained in words.

Tools of a catalogue, results of simulators and answers of models come with schemas that somebody
wrote down. A schema that is broken, or that points somewhere on the network, is refused where it is
given; after that a value is either valid or has faults that a model can be told about.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from agentgym.errors import ConfigError
from agentgym.tool_schema import type_name
from agentgym.types import MAX_NESTING, nests_too_deep

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

MOST_FAULTS = 8
"""Faults of one value that are told, at most."""
LONGEST_FAULT = 200
"""Characters of one fault; a value may be long, and faults quote it."""

_REFERENCES = ("$ref", "$dynamicRef")
_DATA = ("enum", "const", "default", "examples")  # what stands in them is no schema
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,1000})", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


class JsonSchema:
    """A JSON schema that has been checked.

    `format` is an annotation, as the standard has it: which formats could be checked would depend
    on what else is installed.

    Args:
        schema: The schema; draft 2020-12 unless its `$schema` says otherwise.
        where: Whose schema it is, for error messages (`tool 'find', parameters`).

    Raises:
        ConfigError: If it is no JSON, no valid schema, or refers to anything outside itself.
    """

    def __init__(self, schema: Mapping[str, Any], *, where: str) -> None:
        if not isinstance(schema, Mapping):
            raise ConfigError(f"{where}: a JSON schema is a dict, got {schema!r:.100}")
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: the schema is not JSON ({error})") from error
        try:
            self._validator = _validator(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        self.schema: dict[str, Any] = json.loads(text)

    def faults(self, value: Any) -> list[str]:
        """What is wrong with a JSON value, in words; empty if it is valid."""
        if nests_too_deep(value):
            return [f"nested more than {MAX_NESTING} levels deep"]
        if odd := next(non_finite(value), None):
            return [f"{odd} is not a JSON number"]
        try:
            with _remembering():
                found = zip(range(MOST_FAULTS), self._validator.iter_errors(value), strict=False)
                return [_in_words(error) for _, error in found]
        except (ArithmeticError, RecursionError, ValueError) as error:  # 1e999 as a multiple of 3
            return [f"can't be checked ({type(error).__name__}: {error})"[:LONGEST_FAULT]]
        except BaseException as error:
            if not _is_panic(error):
                raise
            return ["can't be checked (nested too deep for its schema)"]

    def exact(self, value: Any) -> Any:
        """Read what models send as strings where a number or a boolean is declared.

        `"42"` is 42 and `"true"` is true where no string is allowed, and 3.0 is 3 where a whole
        number is; a value that doesn't read exactly stays as it is. Nothing is ever parsed into an
        object or a list.
        """
        try:
            with _remembering():
                return _exact(value, self._validator.schema, self._validator)
        except RecursionError:  # nested too deep for its schema
            return value
        except BaseException as error:
            if not _is_panic(error):
                raise
            return value


def _is_panic(error: BaseException) -> bool:
    """Whether jsonschema's map of references (rpds-py 2026.9) died of a stack that ended inside it.

    It is no `Exception`, and anybody may nest arguments deep enough for it.
    """
    return type(error).__module__ == "pyo3_runtime"


@functools.lru_cache(maxsize=4096)
def _validator(text: str) -> Validator:
    """The validator of a schema; checking one takes milliseconds, and envs share catalogues."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    if nests_too_deep(schema):
        raise ConfigError(f"the schema is nested more than {MAX_NESTING} levels deep")
    cls = validator_for(schema, default=Draft202012Validator)
    try:
        cls.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(
            f"not a valid JSON schema at {error.json_path}: {error.message:.200}"
        ) from error
    for reference in _references(schema):
        _check_progress(schema, _follow(schema, reference), reference)
    # Without "$schema", by which the validator of a subschema would be chosen anew.
    return _remembering_class(cls)({k: v for k, v in schema.items() if k != "$schema"})


def _references(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in _REFERENCES and isinstance(value, str):
                yield value
            elif key in _NAMED and isinstance(value, dict):
                yield from _references(list(value.values()))
            elif key not in _DATA:
                yield from _references(value)


def _follow(root: Any, reference: str) -> Any:
    """The schema a local reference means, through further references.

    Raises:
        ConfigError: If it leads nowhere, outside, or in a circle.
    """
    seen = [reference]
    while True:
        target: Any = root
        pointer = seen[-1]
        if pointer != "#" and not pointer.startswith("#/"):
            raise ConfigError(
                f"reference {pointer!r} points outside the schema; give what it means under "
                '"$defs" and refer to "#/$defs/…"'
            )
        for part in pointer.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and part.isdigit() and int(part) < len(target):
                target = target[int(part)]
            elif isinstance(target, dict) and part in target:
                target = target[part]
            else:
                raise ConfigError(f"reference {pointer!r} leads nowhere in the schema")
        if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
            return target
        if target["$ref"] in seen:
            raise ConfigError(f"reference {pointer!r} leads back to itself")
        seen.append(target["$ref"])


def _check_progress(root: Any, target: Any, reference: str) -> None:
    """See that a reference doesn't come back to itself about the very same value.

    Raises:
        ConfigError: If it does, since checking anything by it would never end.
    """
    seen: list[Any] = []
    waiting = _about_the_same(root, target)
    while waiting:
        schema = waiting.pop()
        if schema is target:
            raise ConfigError(f"reference {reference!r} leads back to itself")
        if isinstance(schema, dict) and not any(schema is other for other in seen):
            seen.append(schema)
            waiting += _about_the_same(root, schema)


def _about_the_same(root: Any, schema: Any) -> list[Any]:
    """The schemas that a value is held against because it is held against this one."""
    if not isinstance(schema, dict):
        return []
    found = [schema[key] for key in ("not", "if", "then", "else") if key in schema]
    found += [part for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key, ())]
    found += schema.get("dependentSchemas", {}).values()
    found += [_follow(root, schema[key]) for key in _REFERENCES if isinstance(schema.get(key), str)]
    return found


def non_finite(value: Any) -> Iterator[float]:
    """The numbers of a JSON value that JSON has no form for."""
    if isinstance(value, float) and not math.isfinite(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from non_finite(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from non_finite(item)


def _in_words(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path)[:100]
    inside = f"{where}." if where else ""
    if error.validator == "required":
        missing = error.message.removesuffix(" is a required property").strip("'\"")
        return f"{inside}{missing} is missing"[:LONGEST_FAULT]
    if error.validator == "additionalProperties" and error.validator_value is False:
        return f"{inside}{_unknown_names(error)}"[:LONGEST_FAULT]
    if error.validator in ("type", "enum", "anyOf", "oneOf"):
        got = json.dumps(error.instance, ensure_ascii=False, default=str)
        expected = type_name({error.validator: error.validator_value})
        return f"{where or 'value'}: must be {expected}, got {got:.60}"[:LONGEST_FAULT]
    return f"{where or 'value'}: {error.message}"[:LONGEST_FAULT]


def _unknown_names(error: ValidationError) -> str:
    schema, instance = cast("dict[str, Any]", error.schema), cast("dict[str, Any]", error.instance)
    known = list(schema.get("properties", ()))
    unknown = ", ".join([key for key in instance if key not in known][:MOST_FAULTS])
    return f"{unknown:.100} is unknown here; there is {', '.join(known) or 'nothing'}"


def _exact(value: Any, schema: Any, validator: Validator) -> Any:
    if not isinstance(schema, dict):
        return value
    if isinstance(schema.get("$ref"), str):
        value = _exact(value, _follow(validator.schema, schema["$ref"]), validator)
    for part in schema.get("allOf", ()):
        value = _exact(value, part, validator)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        value = _exact_in_one_of(value, options, validator)
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if isinstance(value, str):
        return value if "string" in kinds else _exact_scalar(value, kinds)
    if isinstance(value, float) and "integer" in kinds and "number" not in kinds:
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return _exact_members(value, schema, validator)
    if isinstance(value, list):
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        return [
            _exact(item, first[i] if i < len(first) else rest, validator)
            for i, item in enumerate(value)
        ]
    return value


def _exact_members(
    value: Mapping[str, Any], schema: Mapping[str, Any], validator: Validator
) -> dict[str, Any]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    return {
        key: _exact(item, properties.get(key, others), validator) for key, item in value.items()
    }


def _exact_in_one_of(value: Any, options: Any, validator: Validator) -> Any:
    """The first reading of a value that one of the options takes, as it stands if possible."""
    as_given = ((option, value) for option in options)
    readings = ((option, _reading(value, option, validator)) for option in options)
    for option, reading in itertools.chain(as_given, readings):
        if _fits(validator, reading, option):
            return reading
    return value


def _reading(value: Any, option: Any, validator: Validator) -> Any:
    return _once("reading", value, option, lambda: _exact(value, option, validator))


def _exact_scalar(text: str, kinds: Any) -> Any:
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    if "integer" in kinds and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in kinds and _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def rebased(schema: Any, root: str) -> Any:
    """A schema to stand inside another one, its local references moved along.

    Args:
        schema: With references relative to itself.
        root: Where it will stand, such as `#/properties/result`.
    """
    if isinstance(schema, list):
        return [rebased(item, root) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _REFERENCES and isinstance(value, str):
            moved[key] = root + value.removeprefix("#")
        elif key in _NAMED and isinstance(value, Mapping):
            moved[key] = {name: rebased(item, root) for name, item in value.items()}
        elif key not in ("$id", "$schema"):  # an identity of its own would move its references
            moved[key] = value if key in _DATA else rebased(value, root)
    return moved


# --- alternatives, in linear time ---------------------------------------------------------------
#
# A filter such as {"op": "not", "args": [...]}, whose args are filters, is an anyOf of objects with
# the same anyOf inside. Tried as the standard says it, three kinds nested twenty times are three
# thousand million attempts, and whoever makes a call chooses how deep. So it is remembered, within
# one check, whether a value fits an alternative, and how it reads as one.

_memo: ContextVar[dict[tuple[str, int, int], tuple[Any, Any]]] = ContextVar("json_schema_memo")


@contextmanager
def _remembering() -> Iterator[None]:
    token = _memo.set({})
    try:
        yield
    finally:
        _memo.reset(token)


def _once(kind: str, value: Any, schema: Any, compute: Callable[[], Any]) -> Any:
    """What was computed for this value and this schema; both live as long as the memory."""
    memo, key = _memo.get(), (kind, id(value), id(schema))
    if key not in memo:
        memo[key] = (value, compute())
    return memo[key][1]


def _fits(validator: Any, value: Any, schema: Any) -> bool:
    fits: bool = _once(
        "fits", value, schema, lambda: validator.evolve(schema=schema).is_valid(value)
    )
    return fits


def _any_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if not any(_fits(validator, value, option) for option in options):
        yield ValidationError("fits none of the alternatives")


def _one_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if sum(_fits(validator, value, option) for option in options) != 1:
        yield ValidationError("must fit exactly one of the alternatives")


def _multiple_of(validator: Any, unit: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    """Exact for numbers as they are written: 0.07 is seven times 0.01, in floats it isn't."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(value, "number") and Fraction(str(value)) % Fraction(str(unit)):
        yield ValidationError(f"{value!r} is not a multiple of {unit!r}")


def _unique_items(validator: Any, unique: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    """In linear time: upstream (jsonschema 4) compares every object with every other."""
    from jsonschema.exceptions import ValidationError

    if unique and validator.is_type(value, "array"):
        told_apart = {json.dumps(_as_compared(item), sort_keys=True) for item in value}
        if len(told_apart) < len(value):
            yield ValidationError("has an item twice")


def _as_compared(value: Any) -> Any:
    """A JSON value with one form for equal numbers: 1.0 is 1, and true is neither."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _as_compared(item) for key, item in value.items()}
    return [_as_compared(item) for item in value] if isinstance(value, list | tuple) else value


@functools.cache
def _remembering_class(cls: type[Validator]) -> Callable[[Any], Validator]:
    from jsonschema import validators

    extend: Any = validators.extend  # untyped upstream
    made: type[Validator] = extend(
        cls,
        {
            "anyOf": _any_of,
            "oneOf": _one_of,
            "multipleOf": _multiple_of,
            "uniqueItems": _unique_items,
        },
    )
    return made
