"""Telling a judge's own words from what it quotes.

A model seldom copies to the letter: it lays an object out anew, mends its quotes, or undoes an
encoding without noticing. So what counts are letters and digits, in the transcript as it stands or
decoded in the usual ways. Whatever else a model may make of a text (a translation, base64) is not
known again; two verdicts that differ are none all the same.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote


class Quotes:
    """What a judge may quote.

    Args:
        text: Of the transcript, or several.
    """

    def __init__(self, text: str) -> None:
        self._known = [_letters(reading) for reading in dict.fromkeys(_readings(text))]

    def hold_text(self, source: str) -> bool:
        """Whether a piece of a reply stands in the transcript."""
        letters = _letters(source)
        return any(letters in known for known in self._known)

    def hold_object(self, source: str, found: Mapping[str, Any]) -> bool:
        """Whether an object of a reply does, its entries in any order.

        Args:
            source: As it stands in the reply.
            found: As it was read.
        """
        entries = [_letters(key + value) for key, value in _entries(found) if _letters(value)]
        return self.hold_text(source) or any(_together(entries, known) for known in self._known)


def _together(entries: Sequence[str], text: str) -> bool:
    """Whether all entries stand in one stretch of a text that is little longer than they are."""
    longest, size = max(entries, key=len, default=""), sum(map(len, entries))
    if not longest:
        return False
    start = text.find(longest)
    while start >= 0:
        stretch = text[max(0, start - size) : start + size + len(longest)]
        if all(entry in stretch for entry in entries):
            return True
        start = text.find(longest, start + len(longest))
    return False


def _entries(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys and their values as text, those of objects inside others included."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _entries(inner, name)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _entries(inner, key)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)


def _readings(text: str) -> Iterator[str]:
    """A text, and what it reads when one of the usual encodings is undone."""
    yield text
    yield html.unescape(text)
    yield unquote(text)
    yield _without_escapes(text)


def _without_escapes(text: str) -> str:
    """A text with the escapes of JSON strings undone."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)


def _letters(text: str) -> str:
    """The letters and digits of a text, in lower case and usual width."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text)).casefold()
