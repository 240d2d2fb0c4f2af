"""Whether the errand is done or the question answered: this world's score for evaluations.

The reward reads answers generously and pays extra for being grounded. Here an errand is judged by
what the world looks like afterwards and by nothing that is said, and a question by a short final
answer that states the value and no other, after a look at what decides it. The verifier's reading
of answers and results is not used.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.envs.toolworld.answers import Answer
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.tasks import Reference
from agentgym.errors import ConfigError
from agentgym.judge import Score
from agentgym.trace import Trace
from agentgym.types import Turn

_ANSWER = re.compile(r"answer\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)
_FIGURE = re.compile(
    r"(?:(?<![\w.:-])|(?<=\beur)|(?<=\busd))(-?(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?)"
    r"(?:kg|km|h|min|minutes|kwh|w|eur|usd)?(?![\w:-])",
    re.IGNORECASE,
)
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_TIME = re.compile(r"(?<![\d:])(\d{1,2}):(\d{2})(?!\d)(?: ?([ap])\.?m\b)?", re.IGNORECASE)
_NONE = re.compile(
    r"\b(none|nothing|nobody|not possible|impossible)\b|^\W*(no|n/a)\b", re.IGNORECASE
)
_TYPED = str.maketrans(dict.fromkeys("‐‑‒–−", "-") | {"’": "'", "\u00a0": " ", "\u202f": " "})
"""What a model writes for the characters that a keyboard has; a minus stays a minus."""
_HUGE = 10**18  # what a policy may put where no world has such a number
_LONGEST = 400
"""Characters of an answer; whoever writes more has not answered."""


def external_score(env: ToolWorldEnv, trace: Trace) -> Score:
    """1 if the world is as the task wants it and a question has its answer, else 0.

    Args:
        env: Of the same parameters; the task is drawn again from it.
        trace: `task_id`, the turns, `answer` and the changes in `outcome` are read.

    Raises:
        ConfigError: If a simulator makes the world up, so that nobody knows what is right.
        UnknownTaskError: If the env has no such task.
    """
    reference = env.choose_task({"task_id": trace.task_id}).reference
    if not isinstance(reference, Reference):
        raise ConfigError(
            "a simulator that makes its results up has no final state to compare with; "
            "give a score of your own with --score MODULE:FUNCTION"
        )
    changes = trace.outcome.get("changes", {})
    state = _canonical(changes) == _canonical(reference.changes)
    parts = {"state": float(state)}
    right = state
    if not reference.changes:
        parts["answer"] = float(_answers(trace.answer or "", reference.answer))
        parts["looked"] = float(_looked(trace.turns, reference))
        right = all(value == 1.0 for value in parts.values())
    return Score(
        total=float(right),
        components=parts,
        correct=right,
        completed=trace.terminated and trace.answer is not None,
    )


def _canonical(value: Any) -> str:
    """Changes as text: keys in order, numbers to the cent, created records in any order."""
    return json.dumps(_ordered(value), sort_keys=True, ensure_ascii=False, default=str)


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _ordered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted((_ordered(item) for item in value), key=lambda item: json.dumps(item))
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}.00" if abs(value) < _HUGE else "huge"
    return value


def _looked(turns: Sequence[Turn], reference: Reference) -> bool:
    """Whether every part of what decides the answer stood in some call and its result."""
    seen = []
    for turn in turns:
        results = {reply.get("tool_call_id"): reply.get("content") for reply in turn.replies}
        for call in turn.calls:
            if call.status in ("ok", "error"):
                asked = json.dumps(call.arguments, ensure_ascii=False)
                seen.append(f"{asked} {results.get(call.id) or ''}")
    return all(
        any(all(piece in text for piece in look) for look in ways for text in seen)
        for ways in reference.evidence
    )


def _answers(text: str, right: Answer) -> bool:
    """Whether the part after `Answer:` states the right value, or that there is none."""
    text = text.translate(_TYPED)
    found = _ANSWER.search(text)
    stated = (found[1] if found else text).strip()
    if not stated or len(stated) > _LONGEST:
        return False
    if not right.values:
        return bool(_NONE.search(stated)) and not _stated(stated, right)
    return _stated(stated, right) == _wanted(right)


def _stated(text: str, right: Answer) -> set[str]:
    """Every value of the kind in a text."""
    if right.kind == "number":
        plain = (re.sub("[, ]", "", figure) for figure in _FIGURE.findall(text))
        return {f"{float(figure):.2f}" for figure in plain}
    if right.kind == "date":
        return set(_DATE.findall(text))
    if right.kind == "time":
        return {_on_24_hours(*parts) for parts in _TIME.findall(text)}
    rest, found = _spelled(text), set()
    for name in sorted(right.among, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(_spelled(name))}(?!\w)"
        rest, count = re.subn(pattern, "|", rest)
        if count:
            found.add(_spelled(name))
    return found


def _wanted(right: Answer) -> set[str]:
    if right.kind == "number":
        return {f"{float(value):.2f}" for value in right.values}
    if right.kind in ("date", "time"):
        return set(right.values)
    return {_spelled(value) for value in right.values}


def _on_24_hours(hours: str, minutes: str, half: str) -> str:
    hour = int(hours)
    if half:
        hour = hour % 12 + (12 if half in "pP" else 0)
    return f"{hour:02d}:{minutes}"


def _spelled(text: str) -> str:
    """A name without what people type differently: case, accents, hyphens."""
    letters = unicodedata.normalize("NFKD", text.translate(_TYPED).casefold().replace("ø", "o"))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(plain.replace("-", " ").split())
