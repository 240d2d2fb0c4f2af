"""Values as Python writes them: single quotes, `True`, `None`, a comma at the end.

Some models write the quotes inside a string without escaping them, so a quote ends a string only
where something follows that can follow a value.
"""

from __future__ import annotations

import re
from typing import Any

from agentgym.tokens.calls.json_text import Found, find_json, skip
from agentgym.tokens.calls.values import value_of
from agentgym.types import MAX_NESTING

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_STRING = {
    quote: re.compile(rf"{quote}((?:\\.|[^\\])*?){quote}(?=\s*[,)\]}}:])", re.DOTALL)
    for quote in ("'", '"')
}
_LITERAL = re.compile(r"[^\s,()\[\]{}:'\"]+(?=\s*[,)\]}:])")
_COLON = re.compile(r"\s*:\s*")


def read_literal(text: str, at: int, levels: int = MAX_NESTING) -> Found | None:
    """The value that starts here, as JSON or as Python writes it.

    Args:
        text: Any text.
        at: Where the value starts.
        levels: Levels of lists and objects that it may have.

    Returns:
        The value; None if there is none, as behind a quote that nothing ends, or at a bare word.
    """
    opener = text[at : at + 1]
    if opener in _STRING and opener:
        quoted = _STRING[opener].match(text, at)
        if quoted is None:
            return None
        return Found(_ESCAPE.sub(_unescaped, quoted.group(1)), quoted.end(), False)
    if opener in ("{", "["):
        return find_json(text, at) or (_collection(text, at, levels - 1) if levels else None)
    word = _LITERAL.match(text, at)
    value = value_of(word.group()) if word else ""
    return None if word is None or isinstance(value, str) else Found(value, word.end(), False)


def _collection(text: str, at: int, levels: int) -> Found | None:
    keyed, closer = text[at] == "{", {"{": "}", "[": "]"}[text[at]]
    members: dict[str, Any] = {}
    items: list[Any] = []
    at = skip(text, at + 1)
    while not text.startswith(closer, at):
        key = read_literal(text, at, 0) if keyed else Found("", at, False)
        colon = _COLON.match(text, key.end) if keyed and key else None
        if key is None or (keyed and colon is None):
            return None
        value = read_literal(text, colon.end() if colon else at, levels)
        if value is None:
            return None
        members[str(key.value)] = value.value
        items.append(value.value)
        at = skip(text, value.end)
        if text.startswith(",", at):
            at = skip(text, at + 1)
        elif not text.startswith(closer, at):
            return None
    return Found(members if keyed else items, at + 1, False)


def _unescaped(found: re.Match[str]) -> str:
    character = found.group(1)
    if character in "\\'\"":
        return character
    return _ESCAPES.get(character, found.group())
