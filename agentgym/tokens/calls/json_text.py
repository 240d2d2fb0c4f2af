"""JSON values inside a text."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from agentgym.types import nests_too_deep


def skip(text: str, at: int, characters: str = " \t\r\n") -> int:
    """The next place where none of the characters is; by default, where no space is."""
    while at < len(text) and text[at] in characters:
        at += 1
    return at


class Found(NamedTuple):
    """A JSON value inside a text."""

    value: Any
    end: int
    """Where it ends."""
    valid: bool
    """Whether it is JSON as it stands."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_no_constant)
_LOOSE = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # raw line breaks in strings


def find_json(text: str, at: int) -> Found | None:
    """The JSON value that starts at a place; None if there is none."""
    for decoder in (_STRICT, _LOOSE):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        return None if nests_too_deep(value) else Found(value, end, decoder is _STRICT)
    return None
