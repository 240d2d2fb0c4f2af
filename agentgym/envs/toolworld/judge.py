"""Scoring where what is right is known: by program, from the answer, the results and the world.

Solved means: the answer claims the right value and nothing else, whoever gave it has looked at what
decides it, and the world has changed as the task wanted and in no other way. Grounded means: the
answer rests on what the tools said. Naming everything that was seen is neither.

A right answer without a look was guessed, or learned by heart: tasks are played again and again in
training, and the same values come up in many of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.envs.toolworld.answers import (
    NOTHING,
    Answer,
    Claims,
    answer_part,
    claims_in,
    dates_in,
    mentions,
    times_in,
)
from agentgym.envs.toolworld.tasks import Reference
from agentgym.errors import JudgeError
from agentgym.gates import Gate
from agentgym.judge import Score
from agentgym.types import Episode

GROUNDED_WEIGHT = 0.3
"""As in the default rubric: total = task_solved + 0.3 · grounded."""


class AnswerVerifier:
    """Scores an episode of the embedded backend.

    Components are `task_solved` and `grounded`, of which the total is made, and what the first is
    made of: `answer_right` and `state_right`.
    """

    inline = True
    highest = 1.0 + GROUNDED_WEIGHT
    """The best total there is."""

    async def score(self, episode: Episode) -> Score:
        """Compare answer and changes with the task's reference.

        Raises:
            JudgeError: If the task has no reference.
        """
        reference = episode.task.reference
        if not isinstance(reference, Reference):
            raise JudgeError(
                f"task {episode.task.task_id} has no reference: what a hosted simulator makes up "
                "has no right answer that a program knows; give judge="
            )
        calls = _answered(episode)
        claimed = claims_in(episode.answer or "", reference.answer)
        seen = all(any(_seen(look, calls) for look in ways) for ways in reference.evidence)
        right = seen and claimed == reference.answer.claims
        state_right = episode.outcome.get("changes") == reference.changes
        solved = right and state_right
        grounded = seen and _is_supported(
            claimed, reference.answer, "\n".join(call.result for call in calls if not call.refused)
        )
        return Score(
            total=float(solved) + GROUNDED_WEIGHT * grounded,
            components={
                "task_solved": float(solved),
                "grounded": float(grounded),
                "answer_right": float(right),
                "state_right": float(state_right),
            },
            correct=solved,
        )


@dataclass(frozen=True)
class _Call:
    """A call that was answered, in pieces of JSON."""

    names: str
    """Of its arguments."""
    values: str
    """Of its arguments."""
    result: str
    """What it was answered with; a refusal's text."""
    refused: bool


def _answered(episode: Episode) -> list[_Call]:
    """Every call that reached the world; no malformed ones."""
    found = []
    for turn in episode.turns:
        results = {reply.get("tool_call_id"): reply.get("content") for reply in turn.replies}
        for call in turn.calls:
            if call.status in ("ok", "error"):
                arguments = call.arguments or {}
                names = json.dumps(list(arguments), ensure_ascii=False)
                values = json.dumps(list(arguments.values()), ensure_ascii=False)
                result = str(results.get(call.id) or "")
                found.append(_Call(names, values, result, refused=call.status == "error"))
    return found


def _seen(look: Sequence[str], calls: Sequence[_Call]) -> bool:
    """Whether a key and fields stand together in one call and its result, as JSON strings.

    What was asked about counts: an empty list says only there what is not. Keys can't be guessed,
    and several within one text are no JSON strings. A refusal repeats what it was asked, so it
    counts only where its whole text is what decides.
    """
    if look[0].startswith("Error:"):
        return any(call.refused and call.result == look[0] for call in calls)
    key, *fields = (json.dumps(piece, ensure_ascii=False) for piece in look)
    for call in calls:
        shown = call.names + call.result
        if call.refused:
            continue
        if key in call.values + shown and all(field in shown for field in fields):
            return True
    return False


def _is_supported(claimed: Claims, answer: Answer, results: str) -> bool:
    """Whether results hold what is claimed, or it is rightly concluded from them.

    One value is asked for or a list, so two values, or a list mostly wrong, support nothing.
    """
    right = claimed & answer.claims
    if answer.kind == "names" and answer.values:
        definite = bool(claimed) and 2 * len(right) >= len(claimed)
    else:
        definite = len(claimed) == 1
    return definite and all(
        claim in right or (claim != NOTHING and mentions(results, claim, answer.kind))
        for claim in claimed
    )


_KEY = re.compile(r"\b[a-z]{1,12}[_-]?\d{3,}\b", re.IGNORECASE)


def _invented(episode: Episode) -> int:
    """How many keys, dates and times of the answer stand nowhere in prompt and results."""
    part = answer_part(episode.answer or "")
    given = [
        str(message.get("content") or "")
        for message in episode.messages
        if message.get("role") != "assistant"
    ]
    known = "\n".join(given).casefold()
    keys = {key.casefold() for key in _KEY.findall(part)}
    unknown = {key for key in keys if not re.search(rf"\b{re.escape(key)}\b", known)}
    unknown |= (dates_in(part) - dates_in(known)) | (times_in(part) - times_in(known))
    return len(unknown)


INVENTED_VALUE = Gate(name="invented_value", tripped=_invented, penalty=0.3)
"""For worlds that a model makes up: a key, date or time in the answer that no tool gave. Numbers
are left to the judge, since they may well be computed."""
