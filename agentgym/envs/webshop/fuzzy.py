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


@lru_cache(maxsize=1 << 13)
def _tokens(text: str) -> frozenset[str]:
    """The words of a text: characters 128 to 255 deleted, other non-word characters are gaps."""
    return frozenset(
        _NOT_A_WORD.sub(" ", text.translate(_LATIN1_UPPER_HALF)).lower().strip().split()
    )


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
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    if not tokens_a or not tokens_b:
        return 0
    return max(_percent(*pair) for pair in _pairs(tokens_a, tokens_b))


@lru_cache(maxsize=1 << 13)
def _letters(tokens: frozenset[str]) -> tuple[int, dict[str, int]]:
    """Length and letter counts of the joined words."""
    joined = " ".join(tokens)
    return len(joined), Counter(joined)


def _may_match(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether the letters the two have in common allow a score above the threshold."""
    (length_a, letters_a), (length_b, letters_b) = _letters(a), _letters(b)
    total = length_a + length_b
    if round(200 * min(length_a, length_b) / total) <= THRESHOLD:
        return False
    common = sum([min(count, letters_b.get(letter, 0)) for letter, count in letters_a.items()])
    return round(200 * common / total) > THRESHOLD


@lru_cache(maxsize=1 << 14)
def is_match(a: str, b: str) -> bool:
    """Whether ``token_set_ratio(a, b)`` is above the threshold, without always computing it."""
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    if not tokens_a or not tokens_b:
        return False
    common = tokens_a & tokens_b
    if not common:
        return _may_match(tokens_a, tokens_b) and token_set_ratio(a, b) > THRESHOLD
    if len(common) == len(tokens_a) or len(common) == len(tokens_b):
        return True
    return token_set_ratio(a, b) > THRESHOLD
