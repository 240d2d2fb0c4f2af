"""The transcript a judge reads: everything it must check, as data that can't speak to it.

Each entry is one line of JSON whose keys are ours and whose texts, whoever wrote them, are JSON
strings: messages, tool names, arguments, results; see `escaping` for what a text can't do there.

The block stands between two marker lines with an id that is a hash of the judge's seed and the
episode itself: the same in every run, and out of reach of whoever writes the episode.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field

from agentgym.errors import JudgeError
from agentgym.judges.escaping import cut_middle, quoted
from agentgym.simulator import FAULTS
from agentgym.types import Episode, Message, Record, ToolCall

BEGIN = "<<<BEGIN TRANSCRIPT {id}>>>"
"""The line before the data; `{id}` stands for the block's marker id."""
END = "<<<END TRANSCRIPT {id}>>>"
"""The line after the data."""

CHARS_PER_TOKEN = 4
"""The usual rule of thumb, where no counter is given."""

_LEAST_CHARS = 120  # what stays of a text however tight the budget
_LONGEST_ID = 100  # of call ids and names outside their own text, which models may write at will


class TranscriptLimits(Record):
    """How long a transcript may get."""

    max_tokens: int = Field(default=16_000, ge=200)
    """For the whole transcript. Task and final answer have a third of it each, if they need it. In
    what is left, long results give way first, then long messages, then the oldest entries."""
    max_result_chars: int = Field(default=4_000, ge=_LEAST_CHARS)
    """For one tool result or argument text; what is too long is cut in the middle."""
    count_tokens: Callable[[str], int] | None = Field(default=None, repr=False)
    """Counts as the judge's tokenizer does; None estimates at four characters a token."""

    def tokens(self, text: str) -> int:
        """The length of a text."""
        if self.count_tokens is not None:
            return self.count_tokens(text)
        return -(-len(text) // CHARS_PER_TOKEN)


Shown = Literal["reference", "outcome"]
"""What a transcript may show beside the conversation: the task's hidden solution, and the env's
final state."""


def render_transcript(
    episode: Episode,
    limits: TranscriptLimits | None = None,
    *,
    show: Collection[Shown] = (),
    seed: int = 0,
) -> str:
    """An episode as a delimited block of JSON lines.

    Args:
        episode: Shown: messages, tool calls with arguments and results, how it ended. Not shown:
            reasoning and token counts.
        limits: How long it may get.
        show: What else to show, for rubrics that ask for it.
        seed: Of the marker id.

    Raises:
        JudgeError: If the episode doesn't have what is to be shown.
    """
    entries = [*_shown_on_request(episode, show), *_conversation(episode), _ending(episode)]
    lines = _fitted(entries, limits or TranscriptLimits())
    digest = hashlib.sha256("\n".join([f"agentgym {seed}", *lines]).encode()).hexdigest()[:16]
    return "\n".join([BEGIN.replace("{id}", digest), *lines, END.replace("{id}", digest)])


def quotable_text(
    episode: Episode, limits: TranscriptLimits | None = None, *, show: Collection[Shown] = ()
) -> str:
    """All texts of a transcript, to tell a judge's own words from what it quotes.

    Those of one kind stand together, so that what was split over several messages, or lost its
    middle, reads on.

    Args:
        episode: See `render_transcript`.
        limits: As the transcript had.
        show: As the transcript had.

    Raises:
        JudgeError: See `render_transcript`.
    """
    texts: dict[str, list[str]] = {}
    _, *lines, _ = render_transcript(episode, limits, show=show).split("\n")
    for line in lines:
        for key, value in json.loads(line).items():
            parts = value if isinstance(value, list) else [value]
            texts.setdefault(key, []).extend(part for part in parts if isinstance(part, str))
    return "\n".join(text for kind in texts.values() for text in kind)


# --- entries ------------------------------------------------------------------------------------

_RESULT, _TEXT, _OPENING, _LAST = range(4)
"""What gives way to the budget, in this order."""


@dataclass(frozen=True)
class _Entry:
    """One line: facts that are ours, and texts that may be cut."""

    rank: int
    facts: Mapping[str, Any]
    texts: Mapping[str, str]

    @cached_property
    def longest(self) -> int:
        """The length of its longest text."""
        return max(map(len, self.texts.values()), default=0)

    def line(self, limit: int | None) -> str:
        """The line, its texts cut to a limit."""
        fields = {
            key: quoted(fact) if isinstance(fact, str) else json.dumps(fact)
            for key, fact in self.facts.items()
        }
        fields |= {key: cut_middle(text, limit) for key, text in self.texts.items()}
        return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


def _shown_on_request(episode: Episode, show: Collection[Shown]) -> Iterator[_Entry]:
    # A simulator's refused replies never took place, and the policy may have provoked them.
    outcome = {name: value for name, value in episode.outcome.items() if name != FAULTS}
    given = {"reference": episode.task.reference, "outcome": outcome or None}
    for name in sorted(show):
        if given[name] is None:
            raise JudgeError(
                f"the rubric asks for {{{name}}}, and the episode of {episode.task.task_id!r} has "
                "none; take it out of the rubric or have the env give it (no trace has a reference)"
            )
        yield _Entry(_OPENING, {}, {name: _as_text(given[name])})


def _conversation(episode: Episode) -> Iterator[_Entry]:
    calls = {call.id: call for turn in episode.turns for call in turn.calls}
    spoke = [n for n, m in enumerate(episode.messages) if m.get("role") == "assistant"]
    first, last = (spoke[0], spoke[-1]) if spoke else (len(episode.messages), None)
    for number, message in enumerate(episode.messages):
        rank = _OPENING if number < first else _LAST if number == last else _TEXT
        if message.get("role") == "tool":
            yield _result(number, message, calls)
        else:
            yield from _message(number, message, rank)
    said = _spoken(episode.messages[last]) if last is not None else ""
    answer = _without_thinking(episode.answer or "")
    if answer.strip() not in ("", said.strip()):
        yield _Entry(_LAST, {}, {"final_answer": answer})


def _message(number: int, message: Message, rank: int) -> Iterator[_Entry]:
    role = str(message.get("role") or "")[:_LONGEST_ID]
    calls = [call for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    text = _spoken(message)
    if text or not calls:
        yield _Entry(rank, {"n": number, "role": role}, {"text": text})
    for call in calls:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        yield _Entry(
            _RESULT,
            {"n": number, "role": role, "call": str(call.get("id") or "")[:_LONGEST_ID]},
            {
                "tool": str(function.get("name") or ""),
                "arguments": _as_text(function.get("arguments")),
            },
        )


def _result(number: int, message: Message, calls: Mapping[str, ToolCall]) -> _Entry:
    call_id = str(message.get("tool_call_id") or "")
    facts: dict[str, Any] = {"n": number, "role": "tool", "answers": call_id[:_LONGEST_ID]}
    if call_id in calls:
        call = calls[call_id]
        facts |= {"tool": call.name[:_LONGEST_ID], "status": call.status}
    return _Entry(_RESULT, facts, {"result": _content(message.get("content"))})


def _ending(episode: Episode) -> _Entry:
    facts = {
        "episode": "cut short" if episode.truncated else "ended by itself",
        "reason": episode.truncation_reason or episode.termination_reason,
        "turns": len(episode.turns),
        "malformed_calls": episode.malformed_calls,
        "ended_by_output_limit": episode.cut_off_calls,
    }
    return _Entry(_LAST, facts, {})


_THINKING = re.compile(
    r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>\s*|\Z)", re.DOTALL | re.IGNORECASE
)


def _without_thinking(text: str) -> str:
    """A policy's text without reasoning that its server left in front of it."""
    return _THINKING.sub("", text)


def _spoken(message: Message) -> str:
    text = _content(message.get("content"))
    return _without_thinking(text) if message.get("role") == "assistant" else text


def _content(content: Any) -> str:
    """A message's text; a part that is no text is named."""
    if not isinstance(content, list):
        return "" if content is None else _as_text(content)
    parts = (part if isinstance(part, Mapping) else {"text": str(part)} for part in content)
    return "\n".join(str(p["text"]) if "text" in p else f"[{p.get('type')}]" for p in parts)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, circles
        return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


# --- the budget ---------------------------------------------------------------------------------


def _fitted(entries: Sequence[_Entry], limits: TranscriptLimits) -> list[str]:
    """The entries' lines within the budget, cut and left out by rank."""
    allowed: list[int | None] = [limits.max_result_chars, None, None, None]

    written: dict[tuple[int, int | None], str] = {}

    def line_of(number: int, entry: _Entry) -> str:
        """One line within its allowed length, written only where that changed it."""
        limit = allowed[entry.rank]
        key = (number, None if limit is None or entry.longest <= limit else limit)
        if key not in written:
            written[key] = entry.line(limit)
        return written[key]

    def lines_of(rank: int | None = None) -> list[str]:
        """All lines within the allowed lengths, but with a rank, only as many below it as fit."""
        lines = [line_of(number, entry) for number, entry in enumerate(entries)]
        return lines if rank is None else _without_oldest(entries, lines, rank, limits)

    def length(lines: Sequence[str], rank: int | None = None) -> int:
        ranked = zip(entries, lines, strict=False)
        chosen = lines if rank is None else [line for entry, line in ranked if entry.rank == rank]
        return sum(map(limits.tokens, chosen))

    lines = lines_of()
    if length(lines) <= limits.max_tokens:
        return lines
    for rank in (_OPENING, _LAST):  # neither a huge task nor a huge answer crowds out what was done
        for limit in _ever_shorter(entries, rank):
            if length(lines, rank) <= limits.max_tokens // 3:
                break
            allowed[rank] = limit
            lines = lines_of()
    for rank in (_RESULT, _TEXT):
        for limit in _ever_shorter(entries, rank, allowed[rank]):
            if length(lines) <= limits.max_tokens:
                return lines
            allowed[rank] = limit
            lines = lines_of()
    for rank in (_OPENING, _LAST):
        for shorter in (allowed[rank], *_ever_shorter(entries, rank, allowed[rank])):
            allowed[rank] = shorter
            lines = lines_of(rank)
            if length(lines) <= limits.max_tokens:
                return lines
    return lines


def _ever_shorter(entries: Sequence[_Entry], rank: int, limit: int | None = None) -> Iterator[int]:
    """Limits for the texts of a rank, each half the one before."""
    longest = max((entry.longest for entry in entries if entry.rank == rank), default=0)
    length = min(longest, limit or longest)
    while length > _LEAST_CHARS:
        length = max(_LEAST_CHARS, length // 2)
        yield length


def _without_oldest(
    entries: Sequence[_Entry], lines: Sequence[str], rank: int, limits: TranscriptLimits
) -> list[str]:
    """The lines without the oldest below a rank, as far as they are too many."""
    excess = sum(map(limits.tokens, lines)) - limits.max_tokens
    if excess <= 0:
        return list(lines)
    note = '{"left_out": "%d entries, for length"}'
    excess += limits.tokens(note)
    kept: list[str] = []
    places: list[int] = []
    for entry, line in zip(entries, lines, strict=True):
        if excess > 0 and entry.rank < rank:
            excess -= limits.tokens(line)
            places.append(len(kept))
        else:
            kept.append(line)
    if places:
        kept.insert(places[0], note % len(places))
    return kept
