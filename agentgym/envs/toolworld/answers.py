"""Reading an answer: which values a final message claims, and whether they are the right ones.

The answer is what follows the last `Answer:` of the message, or the whole message where there is no
such line. Everything of the question's kind that stands there is a claim: every number, or every
name that the world knows. So an answer is right only if it claims the right value and no other,
and a message that lists all it has seen claims too much. One that goes on and on claims nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal, TypeAlias

from agentgym.types import Record

AnswerKind: TypeAlias = Literal["number", "date", "time", "name", "names"]
Claims: TypeAlias = frozenset[str]
"""Claimed values in one canonical form each; `NOTHING` for "none"."""

NOTHING = "NONE"
"""The claim that nothing fits, or that the task can't be done."""
MOST_BESIDE = 240
"""Characters that an answer may have beside the names in it; more is no answer but a report."""
LONGEST_NONE = 80
"""Characters around a bare "none"; a longer text, such as the task's own, only mentions it."""


class Answer(Record):
    """The right answer to a question."""

    kind: AnswerKind
    """What is asked for; `names` is a set, in any order."""
    values: tuple[str, ...]
    """In canonical form; empty if the right answer is that there is none."""
    among: tuple[str, ...] = ()
    """For names: every name of that kind in the world, so that a wrong one is recognised."""

    @property
    def claims(self) -> Claims:
        """What a right message claims."""
        right = frozenset(_canonical(self.kind, value) for value in self.values)
        return right or frozenset({NOTHING})

    def __str__(self) -> str:
        return ", ".join(self.values) or NOTHING


def number(value: float) -> Answer:
    """A number; amounts are exact to the cent."""
    return Answer(kind="number", values=(_plain_number(value),))


def rounds_clearly(value: float) -> bool:
    """Whether everybody rounds a number to the same cents: half a cent goes either way."""
    return abs(abs(value) * 100 % 1 - 0.5) > 0.01


def no_number() -> Answer:
    """There is no such number."""
    return Answer(kind="number", values=())


def date(value: str | None) -> Answer:
    """A date as YYYY-MM-DD, or none."""
    return Answer(kind="date", values=(value,) if value else ())


def time(value: str | None) -> Answer:
    """A time as HH:MM, or none."""
    return Answer(kind="time", values=(value,) if value else ())


def name(value: str | None, among: Iterable[str]) -> Answer:
    """One name or key, or none.

    Args:
        value: The right one.
        among: All of that kind.
    """
    known = sorted({*among, *((value,) if value else ())})
    return Answer(kind="name", values=(value,) if value else (), among=tuple(known))


def names(values: Iterable[str], among: Iterable[str]) -> Answer:
    """A set of names or keys, or none.

    Args:
        values: The right ones.
        among: All of that kind.
    """
    right = tuple(sorted(values))
    return Answer(kind="names", values=right, among=tuple(sorted({*among, *right})))


def answer_part(text: str) -> str:
    """The part of a message that is read as the answer."""
    plain = _EMPHASIS.sub("", _without_typography(text))
    return re.split(r"\banswer\s*:", plain, flags=re.IGNORECASE)[-1].strip()


def claims_in(text: str, answer: Answer) -> Claims:
    """Every value of the question's kind that a message claims.

    Args:
        text: The whole message.
        answer: Says what kind; the right values don't matter.
    """
    part = answer_part(text)
    found: set[str] = set()
    if answer.kind in ("name", "names"):
        found, part = _names_in(part, answer.among)
    if len(part) > MOST_BESIDE:
        return frozenset()
    if answer.kind == "number":
        found = numbers_in(part)
    elif answer.kind == "date":
        found = dates_in(part)
    elif answer.kind == "time":
        found = times_in(part)
    short = len(part) <= LONGEST_NONE
    if (_SAYS_NOTHING.search(part) and (found or short)) or (
        _DENIES.match(part) and short and not found
    ):
        found.add(NOTHING)
    return frozenset(found)


def mentions(text: str, claim: str, kind: AnswerKind) -> bool:
    """Whether a tool's result holds a claimed value."""
    if kind == "number":
        return claim in numbers_in(text)
    if kind == "date":
        return claim in dates_in(text)
    if kind == "time":
        return claim in times_in(text)
    return _name_pattern(claim).search(_normal(text)) is not None


_EMPHASIS = re.compile(r"`|(?<!\w)[*_]+|[*_]+(?!\w)")
_SAYS_NOTHING = re.compile(r"\b(none|not possible|impossible|nothing)\b", re.IGNORECASE)
_DENIES = re.compile(r"\W*(no|nobody|n/a|null)\b", re.IGNORECASE)
"""How an answer begins that names nothing; with a value in it, "no" says something else."""
_MONTHS = {
    month: index
    for index, month in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        start=1,
    )
}
_ISO_DATE = re.compile(r"\b(\d{4})([-/.])(\d\d?)\2(\d\d?)(?!\d)")
_DAY_MONTH = re.compile(
    r"\b(\d\d?)(?:st|nd|rd|th)?\.?(?: of)?[ -]([a-z]{3,9})\.?,?[ -](\d{4})\b", re.IGNORECASE
)
_MONTH_DAY = re.compile(r"\b([a-z]{3,9})\.? (\d\d?)(?:st|nd|rd|th)?,? (\d{4})\b", re.IGNORECASE)
_TIME = re.compile(
    r"(?:(?<![\w:])|(?<=\dT))(\d\d?):(\d\d)(?::\d\d)?(?!\d)(?: ?([ap])\.?m\b)?", re.IGNORECASE
)
_FULL_HOUR = re.compile(r"(?<![\w:.])(\d\d?) ?([ap])\.?m\b", re.IGNORECASE)
_TITLE = re.compile(r"\b(dr|mr|mrs|ms|prof)\.\s?")
_PLAIN = str.maketrans(
    {"‐": "-", "‑": "-", "‒": "-", "–": "-", "−": "-", "—": " - ", "―": " - "}
    | {"’": "'", "∶": ":"}
)
_MONEY = "eur|usd|chf|nok|pln|sek"
_NUMBER = re.compile(
    rf"(?<![\w.])(?:{_MONEY})?(-?(?:\d{{1,3}}(?:[,' ]\d{{3}})+(?!\d)|\d+)(?:\.\d+)?)"
    rf"(?:kg|km|min(?:ute)?s?|h|kwh|w(?:atts?)?|cents?|ct|points?|pts?|units?|{_MONEY})?(?!\w|\.\d)",
    re.IGNORECASE,
)
_NUMBER_WORDS = {
    word: str(value)
    for value, word in enumerate(
        (
            *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
            *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
            *("seventeen", "eighteen", "nineteen", "twenty"),
        )
    )
}
_NUMBER_WORD = re.compile(rf"(?<![\w-])(?<!no )({'|'.join(_NUMBER_WORDS)})\b(?!-)", re.IGNORECASE)


def numbers_in(text: str) -> set[str]:
    """The numbers of a text; digits within dates, times and keys are none."""
    for pattern in (_ISO_DATE, _DAY_MONTH, _MONTH_DAY, _TIME, _FULL_HOUR):
        text = pattern.sub(" ", text)
    found = {_plain_number(_value(match)) for match in _NUMBER.findall(text)}
    return found | {_NUMBER_WORDS[word.casefold()] for word in _NUMBER_WORD.findall(text)}


def dates_in(text: str) -> set[str]:
    """The dates of a text, as YYYY-MM-DD."""
    found = {f"{y}-{int(m):02d}-{int(d):02d}" for y, _, m, d in _ISO_DATE.findall(text)}
    written = [(d, m, y) for d, m, y in _DAY_MONTH.findall(text)]
    written += [(d, m, y) for m, d, y in _MONTH_DAY.findall(text)]
    for day, month, year in written:
        if index := _MONTHS.get(month[:3].casefold()):
            found.add(f"{year}-{index:02d}-{int(day):02d}")
    return found


def times_in(text: str) -> set[str]:
    """The times of a text, as HH:MM."""
    found = set()
    named = _TIME.findall(text) + [(hours, "00", half) for hours, half in _FULL_HOUR.findall(text)]
    for hours, minutes, half in named:
        hour = int(hours)
        if half:
            hour = hour % 12 + 12 * (half.casefold() == "p")
        found.add(f"{hour:02d}:{minutes}")
    return found


def _names_in(text: str, known: Iterable[str]) -> tuple[set[str], str]:
    """The known names of a text, and what is left without them; longer names are read first."""
    rest, found = _normal(text), set()
    for candidate in sorted(known, key=len, reverse=True):
        rest, count = _name_pattern(candidate).subn(" | ", rest)
        if count:
            found.add(_normal(candidate))
    return found, rest


def _name_pattern(candidate: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(_normal(candidate))}(?!\w)")


def _normal(text: str) -> str:
    """A name as it is compared: accents, case, hyphens and the point of a title don't tell."""
    text = unicodedata.normalize("NFKD", _without_typography(text).casefold())
    text = "".join(char for char in text if not unicodedata.combining(char)).replace("ø", "o")
    return " ".join(_TITLE.sub(r"\1 ", text).replace("-", " ").split())


def _without_typography(text: str) -> str:
    """A text with the plain characters that a keyboard has for spaces, dashes and colons."""
    return unicodedata.normalize("NFKC", text).translate(_PLAIN)


def _canonical(kind: AnswerKind, value: str) -> str:
    return _normal(value) if kind in ("name", "names") else value


def _value(text: str) -> float:
    return float(re.sub("[,' ]", "", text))


def _plain_number(value: float) -> str:
    """A number without superfluous digits: exact to the cent, -0 is 0."""
    rounded = round(value + 0.0, 2)
    return f"{rounded + 0.0:.2f}".removesuffix(".00")
