"""Arguments that a format writes as plain text: the tool's JSON schema says what they are.

`75001` may be a postcode or a number, and only the schema knows. A parameter that may be text stays
text; without a schema, what reads as JSON is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentgym.tokens.calls.json_text import find_json

_NULLS = ("null", "None")
_PYTHON = {"True": True, "False": False, "None": None}  # as Jinja writes them
_REF = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
_STEPS = 20  # a reference may lead back to itself


def typed(text: str, parameters: Mapping[str, Any], key: str) -> Any:
    """A parameter's value from its text.

    Args:
        text: As the model wrote it.
        parameters: JSON schema of the tool's parameters.
        key: The parameter.

    Returns:
        The value; the text itself where it doesn't fit the schema, for the tool to refuse.
    """
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = _kinds(schema, parameters, _STEPS)
    if "null" in kinds and text.strip() in _NULLS:
        return None
    if "string" in kinds:
        return text
    return value_of(text)


def value_of(text: str) -> Any:
    """What a text is as JSON or as Python writes it; the text itself if it is neither."""
    inner = text.strip()
    if inner in _PYTHON:
        return _PYTHON[inner]
    found = find_json(inner, 0) if inner else None
    return text if found is None or found.end != len(inner) else found.value


def _kinds(schema: Any, root: Mapping[str, Any], steps: int) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it doesn't say."""
    if not isinstance(schema, Mapping) or not steps:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        found = _REF.fullmatch(reference)
        definitions = root.get("$defs") or root.get("definitions")
        target = definitions.get(found.group(1)) if found and definitions else None
        return _kinds(target, root, steps - 1)
    kinds: set[str] = set()
    given = schema.get("type", ())
    kinds.update((given,) if isinstance(given, str) else given)
    options = [o for k in ("anyOf", "oneOf", "allOf") for o in schema.get(k) or ()]
    for option in options:
        kinds |= _kinds(option, root, steps - 1)
    if not kinds:
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        kinds.update("string" for value in values if isinstance(value, str))
    return frozenset(kinds)
