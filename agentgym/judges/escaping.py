r"""Texts that can't be taken for anything but text.

A judge's prompt is one string in the end, and a chat template makes it a longer one. A text from an
episode must not close the block it stands in, begin a line, or become a control token when the
server tokenises the prompt. So every character that could (angle brackets and their look-alikes,
bracketed tags, invisible and direction-changing characters) is written as the JSON escape it has:
`<|im_end|>` reads `\u003c|im_end|\u003e`. Nothing is lost; any JSON reader gives it back.
"""

from __future__ import annotations

import json
import re
import unicodedata

from agentgym.types import clean_text

_BRACKETED = re.compile(r"\[(?=[/|]|[A-Z][A-Z0-9_]+\]|[gs]MASK\]|e~\[)|\](?=~)")
"""Control tokens without angle brackets: `[INST]`, `[/INST]`, `[|system|]`, `[gMASK]`, `]~b]`."""

_ANGLES = frozenset("<>‹›«»˂˃ᐸᐳ≪≫⋘⋙⟨⟩⟪⟫〈〉〈〉《》︿﹀❬❭❮❯❰❱⦑⦒⧼⧽◁▷")
_STRUCTURE = frozenset('<>[]"\\|')
"""What other characters must not become where a reader normalises (full-width quotes, …)."""
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp"})
_INVISIBLE = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")


class _Escapes(dict[int, str | int]):
    """A table for `str.translate` that is filled as characters are met."""

    def __missing__(self, code: int) -> str | int:
        self[code] = _escape(chr(code)) if _is_harmful(chr(code)) else code
        return self[code]


def _is_harmful(char: str) -> bool:
    """Whether a character is structure, becomes structure when normalised, or can't be seen."""
    if char in "\n\t":
        return False
    is_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    normal = "" if char.isascii() else unicodedata.normalize("NFKD", char)
    return (
        char in _ANGLES
        or char in _INVISIBLE
        or is_selector
        or not _STRUCTURE.isdisjoint(normal)
        or unicodedata.category(char) in _INVISIBLE_CATEGORIES
    )


def _escape(char: str) -> str:
    """A character as JSON escapes it: one or two UTF-16 units."""
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))


_ESCAPES = _Escapes()


def defused(text: str) -> str:
    """A text in which what could pass for a marker or a control token is written as its escape."""
    return _BRACKETED.sub(lambda found: _escape(found[0]), clean_text(text).translate(_ESCAPES))


def quoted(text: str) -> str:
    """A text as a JSON string that is `defused`; `json.loads` gives the text back."""
    return defused(json.dumps(clean_text(text), ensure_ascii=False))


def cut_middle(text: str, limit: int | None) -> str:
    """A text as `quoted`, or its two ends around how many characters are missing between them.

    The number stands outside the strings, so a text can't pretend that something was cut from it:
    `["begin", {"characters_cut": 5000}, "end"]`.
    """
    if limit is None or len(text) <= limit:
        return quoted(text)
    head, tail = text[: (limit + 1) // 2], text[len(text) - limit // 2 :]
    return f'[{quoted(head)}, {{"characters_cut": {len(text) - limit}}}, {quoted(tail)}]'
