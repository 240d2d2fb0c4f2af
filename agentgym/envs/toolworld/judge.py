"""Scoring where what is right is known: by program, from the answer, the results and the world.

Solved means: the answer claims the right value and nothing else, and the world has changed as the
task wanted and in no other way. Grounded means: the answer rests on what the tools said. Naming
everything that was seen is neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

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
        seen = all(_seen(pieces, calls) for pieces in reference.evidence)
        right = claimed == reference.answer.claims and (seen or not reference.answer.guessable)
        state_right = episode.outcome.get("changes") == reference.changes
        solved = right and state_right
        grounded = seen and _is_supported(
            claimed, reference.answer, "\n".join(result for _, result in calls)
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


def _answered(episode: Episode) -> list[tuple[str, str]]:
    """Arguments and result of every call that was answered; no refusals and malformed calls."""
    found = []
    for turn in episode.turns:
        results = {reply.get("tool_call_id"): reply.get("content") for reply in turn.replies}
        for call in turn.calls:
            if call.status == "ok":
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                found.append((arguments, str(results.get(call.id) or "")))
    return found


def _seen(pieces: Sequence[str], calls: Sequence[tuple[str, str]]) -> bool:
    """Whether keys and fields stand together in one call and its result, as JSON strings.

    What was asked about counts: an empty list says only there what is not. Keys can't be guessed,
    and several within one text are no JSON strings.
    """
    quoted = [json.dumps(piece, ensure_ascii=False) for piece in pieces]
    return any(all(piece in asked + got for piece in quoted) for asked, got in calls)


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
