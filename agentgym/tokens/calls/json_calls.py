"""Calls whose arguments are JSON: those that are valid, and those that are certain all the same.

Only what can be said for certain is repaired: a missing bracket where a closing tag says that the
text is over, a raw line break in a string, a fence around it, a bracket too many, an object as
Python writes it. A string or a number that was cut could mean anything, so text that simply ends is
never completed inside the arguments.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from agentgym.tokens.calls.json_text import find_json, skip
from agentgym.tokens.calls.literals import read_literal
from agentgym.tokens.calls.reading import ReadCall, last_repaired, repaired, unreadable

_FENCE = "```"
_BETWEEN = " \t\r\n,;"
_CLOSERS = re.compile(r"[\s\]}]*")
_BRACKETS = {"{": "}", "[": "]"}
_KEYS = ("arguments", "parameters")
_BESIDE = frozenset({"name", "id", "type", "index"})
"""What a call may have beside its arguments. Behind anything else may be what was meant by them."""


def mend_json(text: str, *, over: bool) -> Any:
    """The object that a text means, or None.

    Args:
        text: From the object's start to where it should have ended.
        over: Whether a tag says that it ends there. Otherwise nothing but the last bracket of a
            call is supplied, behind the arguments' own.
    """
    text, _ = _unfenced(text)
    missing = _missing_brackets(text)
    if missing is None:
        return _python_object(text)
    if not (over or missing == "" or (missing == "}" and text.endswith("}"))):
        return None
    found = find_json(text + missing, 0)
    if found is None or _CLOSERS.fullmatch(text + missing, found.end) is None:
        return _python_object(text)
    return found.value


def _python_object(text: str) -> Any:
    found = read_literal(text, 0)
    return found.value if found is not None and found.end == len(text) else None


def _unfenced(text: str) -> tuple[str, bool]:
    """A text without the fence around it, and whether it had one."""
    text = text.strip()
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) >= 2 * len(_FENCE)):
        return text, False
    return text.strip("`").strip().removeprefix("json").strip(), True


def _missing_brackets(text: str) -> str | None:
    """The brackets that close everything open at the end of a text; None inside a string."""
    waiting: list[str] = []
    inside = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif inside:
            escaped = character == "\\"
            inside = character != '"'
        elif character == '"':
            inside = True
        elif character in _BRACKETS:
            waiting.append(_BRACKETS[character])
        elif waiting and character == waiting[-1]:
            waiting.pop()
    return None if inside else "".join(reversed(waiting))


def call_of(value: Any, *, key: str = "arguments", mended: bool = False) -> ReadCall | None:
    """The call that an object `{"name": …, "arguments": …}` makes; None if none is certain.

    Args:
        value: Any JSON value.
        key: Where the format has the arguments; the other families' key is understood too.
        mended: Whether the object had to be mended to be read.
    """
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):  # OpenAI's own form
        value, mended = value["function"], True
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    if not any(k in value for k in _KEYS) and value.keys() - _BESIDE:
        return None
    other = next((k for k in _KEYS if k != key and k in value and key not in value), None)
    arguments = value.get(other or key)
    if isinstance(arguments, str) and arguments.strip():
        decoded = find_json(arguments.strip(), 0)
        mended = True
        if decoded is not None and isinstance(decoded.value, dict):
            arguments = decoded.value
    if arguments is None or arguments == "":
        arguments = {}
    return ReadCall(name.strip(), arguments, mended or other is not None or name != name.strip())


class Block(NamedTuple):
    """The calls between two tags, and where the reading goes on."""

    calls: list[ReadCall]
    end: int


def json_calls(
    text: str, at: int, border: re.Pattern[str], *, key: str = "arguments", listed: bool = False
) -> Block:
    """Read the calls of one block: JSON objects one after another, up to a border.

    Args:
        text: The reply.
        at: Where the block's text starts.
        border: Matches where a block can end; its group `close`, if it took part, is the tag that
            closes the block, and anything else is what the block should not have run into. A
            format without a closing tag gives a pattern whose `close` matches the end of the text.
        key: See `call_of`.
        listed: Whether the format has the calls in a list, so that several are as they should be.
    """
    calls: list[ReadCall] = []
    broken = False
    place = start = skip(text, at)
    if text.startswith("[", place):
        place, broken = place + 1, not listed
    elif listed:
        broken = True
    while True:
        place = skip(text, place, _BETWEEN)
        found = find_json(text, place) if text.startswith("{", place) else None
        call = call_of(found.value, key=key, mended=not found.valid) if found else None
        if found is None or call is None:
            break
        calls.append(repaired(call, bool(calls) and not listed))
        place = found.end
    ending = border.search(text, place)
    stop = ending.start() if ending else len(text)
    closed = ending is not None and ending.group("close") is not None
    over = bool(ending and ending.group("close"))  # by a tag, not by the text's end
    rest = text[place:stop].strip()
    if rest.startswith("]") and listed and not broken:
        rest = rest[1:].strip()
    elif listed and not broken:
        broken = True
    if not calls:
        mended = call_of(mend_json(text[start:stop], over=over), key=key, mended=True)
        calls = [mended or unreadable(text[start:stop])]
    elif rest.startswith(("{", "[")):  # one more, which is broken
        mended = call_of(mend_json(rest, over=over), key=key, mended=True)
        calls.append(mended or unreadable(rest))
    elif rest:
        broken = True
    end = ending.end() if closed and ending else stop
    return Block(last_repaired(calls, broken or not closed), end)


def json_arguments(
    text: str, at: int, border: re.Pattern[str], name: str, *, behind: str = ""
) -> tuple[ReadCall, int]:
    """Read the arguments of a call whose name came before: one JSON object, up to a border.

    Args:
        text: The reply.
        at: Where the arguments start.
        border: As in `json_calls`.
        name: The tool.
        behind: What may stand between the arguments and the border.

    Returns:
        The call, and where the reading goes on.
    """
    start = skip(text, at)
    found = find_json(text, start) if text.startswith("{", start) else None
    ending = border.search(text, found.end if found else start)
    stop = ending.start() if ending else len(text)
    closed = ending is not None and ending.group("close") is not None
    end = ending.end() if closed and ending else stop
    if not name:
        return unreadable(text[at:stop]), end
    if found is not None:
        rest = text[found.end : stop].strip()
        return ReadCall(name, found.value, not (found.valid and closed and rest == behind)), end
    raw = text[start:stop].strip().removesuffix(behind).strip()
    over = bool(ending and ending.group("close"))  # by a tag, not by the text's end
    if not raw and over:
        return ReadCall(name, {}), end
    mended = mend_json(raw, over=True) if over else None
    if isinstance(mended, dict):
        return ReadCall(name, mended, repaired=True), end
    return unreadable(f"{name} {raw}"), end


def bare_call(text: str, names: frozenset[str], *, key: str) -> ReadCall | None:
    """The call that a whole text is, without any tag; None if it is an answer.

    Args:
        text: The text.
        names: The tools there are; an answer may well be JSON with a name in it.
        key: See `call_of`.
    """
    inner, fenced = _unfenced(text)
    found = find_json(inner, 0) if inner.startswith("{") else None
    if found is None or found.end != len(inner):
        return None
    call = call_of(found.value, key=key, mended=fenced or not found.valid)
    if call is None:
        named = found.value.get("name")
        return unreadable(inner) if isinstance(named, str) and named in names else None
    return call if call.name in names else None
