r"""From a judge's reply to numbers, or to an error that says what is wrong with it.

The order is: the whole reply as JSON; else, without think blocks, the whole of what is left, bare
or in one code fence; else the objects that stand in the text, found by a scanner that respects
strings. Only an object with the rubric's own keys is a verdict. An object that the judge quotes
from the transcript is none, in whatever spelling (see `quotations`), also a broken one; and two
verdicts that disagree are no verdict.

| criterion | taken | refused |
|---|---|---|
| binary | `true` `false` `1` `0`, and as strings, with `"yes"` `"no"`, in any case | the rest |
| graded | finite numbers and plain numeric strings in range | booleans, `"4/5"`, `"80%"`, NaN |
| keys | any order and case, spaces or hyphens for underscores | a missing one |

A key that no criterion has is ignored, and noted. Nothing is ever clamped, rounded or filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from agentgym.client import Completion
from agentgym.errors import JudgeError, JudgeRefused, JudgeTruncated
from agentgym.judges.quotations import Quotes
from agentgym.judges.rubric import Criterion
from agentgym.types import nests_too_deep

LONGEST_REPLY = 100_000
"""Characters of a reply that are read; a longer one is no verdict."""

_CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED = frozenset(
    {"content_filter", "refusal", "safety", "prohibited_content", "recitation", "blocklist", "spii"}
)
_BINARY = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_FENCED = re.compile(r"\A```[A-Za-z0-9]*[ \t]*\n(.*)\n?[ \t]*```\Z", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\\.|[{}]', re.DOTALL)
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_OBJECT_START = re.compile(r"""\{\s*(?:["']|[A-Za-z_]\w*\s*:)""")
_NESTED = ("criteria", "scores")
_MOST_STRAY_BRACES = 20  # each costs a look through the rest of the text


class Unreadable(JudgeError):
    """A reply that is no verdict.

    Args:
        fault: What is wrong with it, in none of its own words, so that the judge can be told.
        said: What stands there instead, for whoever reads the error.
    """

    def __init__(self, fault: str, said: str = "") -> None:
        super().__init__(fault + said)
        self.fault = fault
        self.said = said


class Reading(NamedTuple):
    """What a judge says of one episode."""

    values: dict[str, float]
    """Every criterion's grade, by name."""
    reason: str
    notes: tuple[str, ...]
    """What was odd about the reply and did no harm."""


def text_of(completion: Completion) -> str:
    """The text of a judge's reply.

    Raises:
        JudgeTruncated: If the output limit ended it, also if a verdict seems to be there.
        JudgeRefused: If the model or a filter refused.
        JudgeError: If there is none.
    """
    content = completion.message.get("content")
    text = content if isinstance(content, str) else ""
    ended = str(completion.finish_reason or "").lower()
    if completion.cut_off or ended in _CUT_OFF:
        raise JudgeTruncated("the output limit ended the reply")
    refusal = completion.message.get("refusal")
    if refusal or ended in _FILTERED:
        raise JudgeRefused(f"the judge refused to rate ({refusal or ended!s:.200})")
    if not text.strip():
        raise Unreadable("the reply is empty")
    if len(text) > LONGEST_REPLY:
        raise Unreadable(f"the reply has {len(text)} characters, more than {LONGEST_REPLY}")
    return text


def read_verdict(
    text: str, criteria: Sequence[Criterion], *, quotable: Callable[[], str] | None = None
) -> Reading:
    """Read a verdict on one episode.

    Args:
        text: The reply.
        criteria: What was asked for.
        quotable: Gives the transcript's texts; an object found in them is a quotation.

    Raises:
        JudgeError: If there is not exactly one verdict, complete and in range.
    """
    names = {_key(criterion.name) for criterion in criteria}

    def is_verdict(found: Mapping[str, Any]) -> bool:
        return any(_key(key) in names for key, _ in _flat(found))

    found = find_object(text, is_verdict, keys=names, quotable=quotable)
    return read_values(found, criteria)


def read_values(found: Mapping[str, Any], criteria: Sequence[Criterion]) -> Reading:
    """Read the criteria's grades from a verdict object.

    Raises:
        JudgeError: If one is missing, given twice in different ways, unreadable or out of range.
    """
    given: dict[str, list[tuple[str, Any]]] = {}
    for key, value in _flat(found):
        given.setdefault(_key(key), []).append((key, value))
    reasons = [value for _, value in given.pop("reason", [])]
    if any(isinstance(each, Mapping) for each in reasons):
        raise Unreadable("the reason must be a text, not an object")  # perhaps the real verdict
    values = {}
    for criterion in criteria:
        entries = given.pop(_key(criterion.name), [])
        if not entries:
            raise Unreadable(f"{criterion.name!r} is missing")
        grades = {_grade(criterion, value) for _, value in entries}
        if len(grades) > 1:
            raise Unreadable(f"{criterion.name!r} is there twice, with different values")
        values[criterion.name] = grades.pop()
    strange = [key for entries in given.values() for key, _ in entries]
    notes = (f"ignored: {', '.join(strange)[:200]}",) if strange else ()
    reason = next((each for each in reasons if isinstance(each, str)), "")
    return Reading(values, reason, notes)


def find_object(
    text: str,
    is_verdict: Callable[[Mapping[str, Any]], bool],
    *,
    keys: Collection[str],
    quotable: Callable[[], str] | None = None,
) -> Mapping[str, Any]:
    """The one object of a reply that is the judge's verdict.

    Args:
        text: The reply.
        is_verdict: Whether an object has the keys of a verdict.
        keys: What a verdict's keys are called; they mark broken JSON as a broken verdict.
        quotable: Gives the transcript's texts.

    Raises:
        JudgeError: If there is none, several that differ, or a broken one.
    """
    fault = f"there is no JSON object with the keys {', '.join(sorted(keys))} in it"
    found = _whole(text)
    if found is not None:
        if not is_verdict(found):
            raise Unreadable(fault)
        return found

    @cache
    def quotes() -> Quotes:
        return Quotes(quotable() if quotable is not None else "")

    rest = _without_thinking(text)
    found = _whole(rest)
    spans = [(rest, found)] if found is not None else _objects(rest, _keys_in_text(keys), quotes)
    verdicts = [(source, each) for source, each in spans if is_verdict(each)]
    if not verdicts:
        raise Unreadable(fault)
    verdicts = [each for each in verdicts if not quotes().hold_object(*each)]
    if not verdicts:
        raise Unreadable("the only verdict in it is a quotation from the transcript")
    if any(_canonical(each) != _canonical(verdicts[0][1]) for _, each in verdicts[1:]):
        raise Unreadable(f"there are {len(verdicts)} verdicts in it, and they differ")
    return verdicts[-1][1]


def shortened(text: str) -> str:
    """The begin and end of a reply, for errors and traces."""
    return repr(text if len(text) <= 600 else f"{text[:300]} […] {text[-300:]}")


def _canonical(found: Mapping[str, Any]) -> str:
    return json.dumps(found, sort_keys=True, default=str)


# --- JSON ---------------------------------------------------------------------------------------


class _Twice:
    """The value of a key that an object has twice, with different values."""

    def __repr__(self) -> str:
        return "two different values"


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = _Twice() if key in found and not _same(found[key], value) else value
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


_DECODER = json.JSONDecoder(object_pairs_hook=_object_of, strict=False)
"""Takes raw line ends in strings, as models write them. NaN and infinities are read here, so that
an object stays whole, and refused where a grade is read."""


def _loaded(text: str) -> Mapping[str, Any] | None:
    """The JSON object that a whole text is; None if it is none."""
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) and not nests_too_deep(found) else None


def _whole(text: str) -> Mapping[str, Any] | None:
    """The JSON object that a whole text is, bare or in one code fence."""
    text = text.strip()
    fenced = _FENCED.match(text)
    found = _loaded(text)
    return _loaded(fenced[1]) if found is None and fenced else found


def _keys_in_text(keys: Collection[str]) -> re.Pattern[str]:
    """Finds the keys of a verdict in JSON that can't be read."""
    names = "|".join(re.escape(key).replace("_", r"[_\s-]") for key in keys)
    return re.compile(rf"""\b(?:{names})\s*["']?\s*:""", re.IGNORECASE)


def _objects(
    text: str,
    broken_verdict: re.Pattern[str] | None = None,
    quotes: Callable[[], Quotes] | None = None,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The outermost JSON objects in a text, with their source.

    What stands inside another object, whole or broken, is part of that one and never promoted.

    Args:
        text: To look through.
        broken_verdict: Finds the keys of a verdict, which must not be broken; None minds nothing.
        quotes: Gives what the judge may quote, also broken.

    Raises:
        JudgeError: If what can't be read looks like a verdict, or might hide one.
    """
    position, strays = 0, 0
    while (start := text.find("{", position)) >= 0:
        if strays == _MOST_STRAY_BRACES:
            if broken_verdict is None:
                return
            raise Unreadable("there are too many braces without an end in it")
        end = _end_of(text, start)
        source = text[start:end]
        found = None if end is None else _loaded(source)
        if found is not None:
            yield source, found
        elif (
            broken_verdict
            and _OBJECT_START.match(source)
            and broken_verdict.search(source)
            and not (end is not None and quotes is not None and quotes().hold_text(source))
        ):
            raise Unreadable("a JSON object in it can't be read")
        strays += end is None
        position = start + 1 if end is None else end


def _end_of(text: str, start: int) -> int | None:
    """The position after the brace that closes the one at `start`; None if nothing does."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return None


def _without_thinking(text: str) -> str:
    """A reply without its reasoning; a think tag inside a JSON object is part of that object.

    Some chat templates open the block themselves, so a closing tag alone ends reasoning, too.
    """
    tags = list(_THINK_TAG.finditer(text))
    if not tags:
        return text
    ranges = [(start, start + len(source)) for source, start in _located_objects(text)]
    kept, position, thinking = "", 0, False
    for tag in tags:
        if any(start < tag.start() < end for start, end in ranges):
            continue
        closes = tag[1] == "/"
        if not closes and not thinking:
            kept += text[position : tag.start()]
        thinking = not closes
        position = tag.end()
    return kept if thinking else kept + text[position:]


def _located_objects(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    for source, _ in _objects(text):
        position = text.index(source, position)
        yield source, position
        position += len(source)


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys and values of a verdict, also where it has them one level down."""
    for key, value in found.items():
        if key in _NESTED and isinstance(value, Mapping):
            yield from value.items()
        else:
            yield key, value


def _grade(criterion: Criterion, value: Any) -> float:
    """A criterion's grade; see the table above."""
    number = value
    if isinstance(value, str):
        text = value.strip().lower()
        if criterion.kind == "binary":
            number = _BINARY.get(text)
        else:
            number = float(text) if _PLAIN_NUMBER.fullmatch(text) else None
    if criterion.kind == "graded" and isinstance(number, bool):
        number = None
    allowed = (
        "true or false"
        if criterion.kind == "binary"
        else (f"a number from {criterion.low:g} to {criterion.high:g}")
    )
    # Written so that NaN, which compares with nothing, is outside.
    inside = isinstance(number, int | float) and criterion.low <= number <= criterion.high
    if not inside or (criterion.kind == "binary" and number not in (0, 1)):
        raise Unreadable(f"{criterion.name!r} must be {allowed}", f", not {value!r:.60}")
    return float(number)


def _key(name: str) -> str:
    """A key as it is compared: case, spaces and hyphens make no difference."""
    return re.sub(r"[\s\-]+", "_", name.strip()).lower()
