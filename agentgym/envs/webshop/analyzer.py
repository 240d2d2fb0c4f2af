"""Lucene's English analysis chain: text to index terms.

The catalogue search has to rank as the original's Lucene index does, so documents and queries go
through the same chain: Unicode word segmentation (UAX #29, as ``StandardTokenizer``), possessive
removal, lower case, Lucene's 33 stop words and the Porter stemmer.

Every character is first mapped to a one-letter word-break class, and one regular expression over
those letters finds the words. That keeps the rules readable and the tables out of the package: the
classes come from ``unicodedata``, one character at a time, and are remembered.
"""

import re
import unicodedata
from functools import lru_cache

from agentgym.envs.webshop.stemmer import porter_stem

_STOP_WORD_LIST = """
    a an and are as at be but by for if in into is it no not of on or such that the their then
    there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
"""Lucene's default English stop words."""

MAX_TOKEN_LENGTH = 255
"""Longer words are cut into pieces of this many characters, as Lucene does."""

_MID_LETTER = frozenset(":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a")
_MID_NUMBER_LETTER = frozenset(".'\u2018\u2019\u2024\ufe52\uff07\uff0e")
_MID_NUMBER = frozenset(
    ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
)
_KATAKANA = (
    (0x3031, 0x3035),
    (0x309B, 0x309C),
    (0x30A0, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x32D0, 0x32FE),
    (0x3300, 0x3357),
    (0xFF66, 0xFF9D),
)
_HIRAGANA = ((0x3041, 0x3096), (0x309D, 0x309F), (0x1B000, 0x1B001), (0x1F200, 0x1F200))
_IDEOGRAPHS = (
    (0x2E80, 0x2FD5),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAD9),
    (0x20000, 0x3FFFD),
)
_SOUTH_EAST_ASIAN = (
    (0x0E01, 0x0EDF),
    (0x1000, 0x109F),
    (0x1780, 0x17DD),
    (0x1950, 0x19DF),
    (0x1A20, 0x1AAD),
    (0xA9E0, 0xA9FE),
    (0xAA60, 0xAADF),
)
_CIRCLED_LETTERS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
_PICTOGRAPHS = (
    (0x00A9, 0x00A9),
    (0x00AE, 0x00AE),
    (0x203C, 0x203C),
    (0x2049, 0x2049),
    (0x2122, 0x2122),
    (0x2194, 0x2199),
    (0x21A9, 0x21AA),
    (0x231A, 0x231B),
    (0x2328, 0x2328),
    (0x2388, 0x2388),
    (0x23CF, 0x23CF),
    (0x23E9, 0x23F3),
    (0x23F8, 0x23FA),
    (0x25AA, 0x25AB),
    (0x25B6, 0x25B6),
    (0x25C0, 0x25C0),
    (0x25FB, 0x25FE),
    (0x2600, 0x2605),
    (0x2607, 0x2612),
    (0x2614, 0x2685),
    (0x2690, 0x2705),
    (0x2708, 0x2712),
    (0x2714, 0x2714),
    (0x2716, 0x2716),
    (0x271D, 0x271D),
    (0x2721, 0x2721),
    (0x2728, 0x2728),
    (0x2733, 0x2734),
    (0x2744, 0x2744),
    (0x2747, 0x2747),
    (0x274C, 0x274C),
    (0x274E, 0x274E),
    (0x2753, 0x2755),
    (0x2757, 0x2757),
    (0x2763, 0x2767),
    (0x2795, 0x2797),
    (0x27A1, 0x27A1),
    (0x27B0, 0x27B0),
    (0x27BF, 0x27BF),
    (0x2934, 0x2935),
    (0x2B05, 0x2B07),
    (0x2B1B, 0x2B1C),
    (0x2B50, 0x2B50),
    (0x2B55, 0x2B55),
    (0x3030, 0x3030),
    (0x303D, 0x303D),
    (0x3297, 0x3297),
    (0x3299, 0x3299),
    (0x1F000, 0x1F0FF),
    (0x1F10D, 0x1F10F),
    (0x1F12F, 0x1F12F),
    (0x1F16C, 0x1F171),
    (0x1F17E, 0x1F17F),
    (0x1F18E, 0x1F18E),
    (0x1F191, 0x1F19A),
    (0x1F1AD, 0x1F1E5),
    (0x1F201, 0x1F20F),
    (0x1F21A, 0x1F21A),
    (0x1F22F, 0x1F22F),
    (0x1F232, 0x1F23A),
    (0x1F23C, 0x1F23F),
    (0x1F249, 0x1F3FA),
    (0x1F400, 0x1F53D),
    (0x1F546, 0x1F64F),
    (0x1F680, 0x1F6FF),
    (0x1F774, 0x1F77F),
    (0x1F7D5, 0x1F7FF),
    (0x1F80C, 0x1F80F),
    (0x1F848, 0x1F84F),
    (0x1F85A, 0x1F85F),
    (0x1F888, 0x1F88F),
    (0x1F8AE, 0x1F8FF),
    (0x1F90C, 0x1F93A),
    (0x1F93C, 0x1F945),
    (0x1F947, 0x1FFFD),
)

# Letters of the class string: A letter, N number, E connector such as "_", L joins letters, U joins
# numbers, B joins both, X extends what precedes it, Z zero-width joiner, K Katakana, H Hiragana,
# I ideograph, S script written without spaces, P pictograph, R regional indicator, O other.
_X = "[XZ]*"
_LETTERS = f"A{_X}(?:(?:[LB]{_X})?A{_X})*"
_NUMBERS = f"N{_X}(?:(?:[UB]{_X})?N{_X})*"
_UNIT = f"(?:(?:{_LETTERS}|{_NUMBERS})+|(?:K{_X})+)"
_WORD = re.compile(
    f"(?:E{_X})*+{_UNIT}(?:(?:E{_X})++{_UNIT})*(?:E{_X})*"
    f"|((?:E{_X})+)"  # connectors alone are no word; taken whole, or each would be tried again
    f"|PX*(?:ZPX*)*{_X}|R{_X}R{_X}|(?:S{_X})+|[IH]{_X}"
)


def _inside(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _letter_class(code: int) -> str:
    """Class of a character of category L or Nl."""
    if _inside(code, _KATAKANA):
        return "K"
    if _inside(code, _HIRAGANA):
        return "H"
    if _inside(code, _IDEOGRAPHS):
        return "I"
    return "S" if _inside(code, _SOUTH_EAST_ASIAN) else "A"


def word_break_class(character: str) -> str:
    """Return the one-letter word-break class of ``character`` (UAX #29, table 3)."""
    code = ord(character)
    category = unicodedata.category(character)
    if character in _MID_LETTER:
        return "L"
    if character in _MID_NUMBER_LETTER:
        return "B"
    if character in _MID_NUMBER:
        return "U"
    if category == "Pc" or code == 0x202F:
        return "E"
    if code == 0x200D:
        return "Z"
    if code == 0x200B:
        return "O"
    if 0x1F1E6 <= code <= 0x1F1FF:
        return "R"
    if category == "Nd" or code == 0x066B:
        return "N"
    if category in {"Mn", "Me", "Mc"}:
        return "S" if _inside(code, _SOUTH_EAST_ASIAN) else "X"
    if category == "Cf" or 0x1F3FB <= code <= 0x1F3FF or code in {0xFF9E, 0xFF9F}:
        return "X"
    if category[0] == "L" or category == "Nl":
        return _letter_class(code)
    if _inside(code, _CIRCLED_LETTERS):
        return "A"
    if _inside(code, _KATAKANA):
        return "K"
    if _inside(code, _IDEOGRAPHS):
        return "I"
    return "P" if _inside(code, _PICTOGRAPHS) else "O"


class _ClassTable(dict[int, str]):
    """Translation table for ``str.translate`` that fills itself as characters are met."""

    def __missing__(self, code: int) -> str:
        letter = self[code] = word_break_class(chr(code))
        return letter


_CLASSES = _ClassTable()


def _lower(word: str) -> str:
    """Lower-case one code point at a time, as Java's ``Character.toLowerCase`` does."""
    if word.isascii():
        return word.lower()
    return "".join(character.lower()[:1] for character in word)


@lru_cache(maxsize=1 << 16)
def _term(word: str) -> str:
    """Turn one word into its index term, or ``""`` for a stop word."""
    if len(word) >= 2 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    word = _lower(word)
    return "" if word in STOP_WORDS else porter_stem(word)


def words(text: str) -> list[str]:
    """Split ``text`` into words, neither lower-cased nor stemmed.

    Source: Unicode Standard Annex #29 as implemented by Lucene 8's ``StandardTokenizer``.
    """
    found = []
    for match in _WORD.finditer(text.translate(_CLASSES)):
        if match[1]:
            continue
        word = text[match.start() : match.end()]
        if len(word) <= MAX_TOKEN_LENGTH:
            found.append(word)
        else:
            found.extend(
                word[at : at + MAX_TOKEN_LENGTH] for at in range(0, len(word), MAX_TOKEN_LENGTH)
            )
    return found


def analyze(text: str) -> list[str]:
    """Return the index terms of ``text``, in order, stop words removed."""
    return [term for word in words(text) if (term := _term(word))]
