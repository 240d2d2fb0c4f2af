"""Fuzzy equality of short texts, as the original's reward decides it.

The reward compares attributes and options with thefuzz 0.19's ``token_set_ratio`` on top of
``difflib``; later versions and other back-ends give other scores, so the formula is written out.
Almost every comparison is a clear miss or a subset, which is settled without ``difflib``.
"""

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache

THRESHOLD = 85
"""Two texts are the same if their score is above this, on a scale of 0 to 100."""

_LATIN1_UPPER_HALF = dict.fromkeys(range(128, 256))
_NOT_A_WORD = re.compile(r"\W")


class _Words:
    """A text as the comparison sees it: no characters 128 to 255, other non-words are gaps.

    Attributes:
        tokens: Its words.
        length: Length of the words joined by spaces.
        letters: How often each character is in the joined words.
    """

    __slots__ = ("length", "letters", "tokens")

    def __init__(self, text: str) -> None:
        plain = _NOT_A_WORD.sub(" ", text.translate(_LATIN1_UPPER_HALF)).lower()
        self.tokens = frozenset(plain.split())
        joined = " ".join(self.tokens)
        self.length = len(joined)
        self.letters = dict(Counter(joined))


_words = lru_cache(maxsize=1 << 13)(_Words)


def _pairs(a: frozenset[str], b: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The three pairs of strings whose best ratio is the score."""
    common = " ".join(sorted(a & b))
    first = f"{common} {' '.join(sorted(a - b))}".strip()
    second = f"{common} {' '.join(sorted(b - a))}".strip()
    if common:
        yield common, first
        yield common, second
    yield first, second


def _percent(a: str, b: str) -> int:
    return 100 if a == b else round(100 * SequenceMatcher(None, a, b).ratio())


def token_set_ratio(a: str, b: str) -> int:
    """Similarity of two texts as sets of words, 0 to 100; 100 if one's words are among the other's.

    Source: thefuzz 0.19.0, ``fuzz.token_set_ratio`` with its ``difflib`` back-end.
    """
    tokens_a, tokens_b = _words(a).tokens, _words(b).tokens
    if not tokens_a or not tokens_b:
        return 0
    return max(_percent(*pair) for pair in _pairs(tokens_a, tokens_b))


def _may_match(a: _Words, b: _Words, common: frozenset[str]) -> bool:
    """Whether the letters two texts have in common allow a score above the threshold."""
    if common:
        length = sum(map(len, common)) + len(common) - 1
        if round(200 * length / (length + min(a.length, b.length))) > THRESHOLD:
            return True
    total = a.length + b.length
    if round(200 * min(a.length, b.length) / total) <= THRESHOLD:
        return False
    other = b.letters
    shared = 0
    for letter, count in a.letters.items():
        if letter in other:
            shared += min(count, other[letter])
    return round(200 * shared / total) > THRESHOLD


@lru_cache(maxsize=1 << 15)
def is_match(a: str, b: str) -> bool:
    """Whether ``token_set_ratio(a, b)`` is above the threshold, without always computing it."""
    words_a, words_b = _words(a), _words(b)
    if not words_a.tokens or not words_b.tokens:
        return False
    common = words_a.tokens & words_b.tokens
    if common and (common == words_a.tokens or common == words_b.tokens):
        return True
    return _may_match(words_a, words_b, common) and token_set_ratio(a, b) > THRESHOLD
