"""Text that looks like a control token stays text.

A web page may contain `<|im_end|>`, and so may a tool's name or an argument that a model made up.
As text it is harmless; as a token it would end the turn or open another role. A tokenizer can't
tell them apart once both stand in one rendered string, so such texts are taken out before rendering
and put back, encoded in pieces, afterwards.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.tokens.direct import DirectTokenizer

_CHARACTERS = 8
"""Characters per token that are looked at to see whether a text is too long; few have more."""
_EDGE = 256
"""Ids by which the beginning of a text may have more than it has as part of the whole."""
_MARKUP = re.compile(r"[<\[｜|].*[>\]｜|]", re.DOTALL)


class ControlText:
    """Hides a tokenizer's control tokens in what others wrote, and encodes text with them put back.

    Control tokens are those that the tokenizer calls special and those written like markup
    (`<tool_response>`); runs of spaces or newlines that some tokenizers add are not.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._direct = DirectTokenizer(tokenizer)
        added = tokenizer.added_tokens_decoder
        control = {
            token.content: number
            for number, token in added.items()
            if token.content.strip() and (token.special or _MARKUP.fullmatch(token.content))
        }
        self.ids = frozenset(control.values())
        """Ids of the control tokens."""
        longest_first = sorted(control, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # Digits and plain letters: no template or JSON encoder writes them otherwise.
        nonce = secrets.token_hex(8)
        self._slot = f"q{nonce}q{{}}q{nonce}q"
        self._slots = re.compile(f"q{nonce}q(\\d+)q{nonce}q")
        self._anchor = self._find_anchor(added)
        self._normalized = _normalizer_of(tokenizer, added)
        self._cut: dict[str, list[int]] = {}

    def hide(self, value: Any, hidden: list[str]) -> Any:
        """Replace control tokens' texts in a message, or any part of one, by placeholders.

        Args:
            value: A string, or lists and mappings of strings.
            hidden: Takes the texts, in the order of their placeholders.
        """
        if isinstance(value, str):
            value = self._as_it_is_read(value)
            return self._texts.sub(lambda found: self._hide_one(found.group(), hidden), value)
        if isinstance(value, dict):
            return {self.hide(key, hidden): self.hide(each, hidden) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each, hidden) for each in value]
        return value

    def encode(self, text: str, hidden: Sequence[str] = ()) -> list[int]:
        """Ids of a rendered text; control tokens' texts that were hidden come back as text."""
        text = _encodable(text)
        if not hidden:
            return self._ids(text)
        ids: list[int] = []
        for position, piece in enumerate(self._slots.split(text)):
            if position % 2:
                ids += self._as_text(hidden[int(piece)])
            elif piece:
                ids += self._ids_within(piece) if position else self._ids(piece)
        return ids

    def exceeds(self, text: str, hidden: Sequence[str], most: int) -> bool:
        """Whether a text surely has more ids, found out from as little of it as possible.

        A page of a megabyte would hold up everybody else while it is encoded, and then not fit.

        Args:
            text: As for `encode`.
            hidden: As for `encode`.
            most: How many it may have; True is certain, False is not.
        """
        size = _CHARACTERS * max(most, _EDGE)
        while size < len(text):
            if len(self.encode(text[:size], hidden)) > most + _EDGE:
                return True
            size *= 4
        return False

    def _hide_one(self, text: str, hidden: list[str]) -> str:
        hidden.append(text)
        return self._slot.format(len(hidden) - 1)

    def _ids(self, text: str) -> list[int]:
        return self._direct.encode(text)

    def _ids_within(self, text: str) -> list[int]:
        """Ids of a text in the middle: some tokenizers put a space before a first word."""
        if self._anchor is None:
            return self._ids(text)
        return self._ids(self._anchor + text)[1:]

    def _as_it_is_read(self, text: str) -> str:
        """The text; normalized where a control token only then stands in it."""
        if self._normalized is None:
            return text
        read: str = self._normalized(text)
        is_same = self._texts.findall(read) == self._texts.findall(text)
        return text if is_same else read

    def _as_text(self, token: str) -> list[int]:
        """Ids of a control token's text, none of them a control token.

        Cut in two it isn't recognised; a token whose halves are tokens is cut elsewhere.
        """
        if token not in self._cut:
            self._cut[token] = self._cut_up(token)
        return self._cut[token]

    def _cut_up(self, token: str) -> list[int]:
        for cut in (max(1, len(token) // 2), *range(1, len(token))):
            ids = self._ids_within(token[:cut]) + self._ids_within(token[cut:])
            if self.ids.isdisjoint(ids):
                return ids
        letters = [i for letter in token for i in self._ids_within(letter)]
        return [i for i in letters if i not in self.ids]

    def _find_anchor(self, added: dict[int, Any]) -> str | None:
        """A control token after which text is encoded as it is in the middle of a text."""
        for number, token in added.items():
            if (
                token.special
                and not token.rstrip
                and self._ids(token.content + "a")[:1] == [number]
            ):
                return str(token.content)
        return None


def _normalizer_of(tokenizer: Any, added: dict[int, Any]) -> Callable[[str], str] | None:
    """What rewrites a text before control tokens are looked for in it; None if nothing does.

    Where tokens are `normalized`, a tokenizer with NFKC finds one in letters of double width.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    if normalizer is None or not any(token.normalized for token in added.values()):
        return None
    found: Callable[[str], str] = normalizer.normalize_str
    return found


def _encodable(text: str) -> str:
    """The text without halves of surrogate pairs, such as a JSON escape cut in two leaves."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
