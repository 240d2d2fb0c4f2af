"""Several judges as one: weighted parts, and the whole scoring in one place.

"Unscored is not zero" holds for parts, too: a part that counts and can't be scored leaves the
episode unscored, because a sum without it would be a lower number than the episode deserves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError

from agentgym.errors import ConfigError, JudgeError
from agentgym.gates import GateSpec, resolve_gates
from agentgym.judge import Judge, Score, Scoring
from agentgym.judges.asking import in_order
from agentgym.types import Episode, in_one_line

Part: TypeAlias = Judge | tuple[Judge, float]
"""A judge, or a judge and its weight; without one it is 1."""


class Weighted:
    """The weighted sum of what several judges say.

    A part's total is a component under the part's name, and what it is made of follows as
    `part.component`. A part of weight 0 is only logged, and may fail.

    Args:
        parts: Name to judge, or to `(judge, weight)`.
        correct: The part that says whether the task was solved; by default the first that does.

    Raises:
        ConfigError: If there is no part, a weight is not allowed, or none is above 0.

    Examples:
        >>> Weighted({"bought": Verifier(is_right), "grounded": (RubricJudge(client, rubric), 0.3)})
    """

    def __init__(self, parts: Mapping[str, Part], *, correct: str | None = None) -> None:
        given = {n: p if isinstance(p, tuple) else (p, 1.0) for n, p in dict(parts).items()}
        for name, pair in given.items():
            _check_part(name, pair)
        if not any(weight > 0 for _, weight in given.values()):
            raise ConfigError("weights must not all be 0; at least one part has to count")
        if correct is not None and correct not in given:
            raise ConfigError(f"correct must name a part ({', '.join(given)}), got {correct!r}")
        self.parts = given
        self.correct = correct
        self.inline = all(judge.inline for judge, _ in given.values())

    def __repr__(self) -> str:
        parts = ", ".join(f"{n}: {weight:g}·{judge!r}" for n, (judge, weight) in self.parts.items())
        return f"Weighted({parts})"

    @property
    def highest(self) -> float:
        """The best total, as far as the parts tell theirs; 1 for one that doesn't."""
        tops = ((getattr(judge, "highest", 1.0), weight) for judge, weight in self.parts.values())
        return sum(weight * top for top, weight in tops)

    async def score(self, episode: Episode) -> Score:
        """Score one episode; see `Judge.score`.

        Raises:
            JudgeError: If a part that counts can't be scored.
        """
        results = await scores_of([judge for judge, _ in self.parts.values()], episode)
        found = dict(zip(self.parts, results, strict=True))
        failed = {name: s for name, s in found.items() if isinstance(s, JudgeError)}
        for name, error in failed.items():
            if self.parts[name][1] > 0:
                raise type(error)(f"{name}: {error}") from error
        scores = {name: s for name, s in found.items() if isinstance(s, Score)}
        remarks = [f"{name}: {s.reason}" for name, s in scores.items() if s.reason]
        remarks += [f"{name} failed: {error}" for name, error in failed.items()]
        return Score(
            total=math.fsum(self.parts[name][1] * s.total for name, s in scores.items()),
            components=_components(scores),
            correct=self._correct(scores),
            completed=next((s.completed for s in scores.values() if s.completed is not None), None),
            reason="\n".join(remarks) or None,
        )

    def _correct(self, scores: Mapping[str, Score]) -> bool | None:
        if self.correct is not None:
            return scores[self.correct].correct if self.correct in scores else None
        return next((s.correct for s in scores.values() if s.correct is not None), None)


def compose(
    parts: Mapping[str, Part],
    *,
    gates: Iterable[GateSpec] | None = None,
    reward_range: tuple[float, float] | None = None,
    correct: str | None = None,
) -> Scoring:
    """Gates, then weighted parts: all that turns an episode into a verdict.

    Args:
        parts: See `Weighted`.
        gates: See `resolve_gates`; None for the standard ones.
        reward_range: See `Scoring`; None reaches from -1 to what the parts can give.
        correct: See `Weighted`.

    Raises:
        ConfigError: If anything is not allowed.
    """
    bounds = {} if reward_range is None else {"reward_range": reward_range}
    judge = Weighted(parts, correct=correct)
    try:
        return Scoring(judge=judge, gates=resolve_gates(gates), **bounds)
    except ValidationError as error:
        raise ConfigError(in_one_line(error)) from error


async def scores_of(judges: Sequence[Judge], episode: Episode) -> list[Score | JudgeError]:
    """What each judge says of an episode, in order: a score, or why there is none."""

    async def score(judge: Judge) -> Score:
        found: Any = await judge.score(episode)
        if not isinstance(found, Score):
            raise JudgeError(f"{type(judge).__name__} gave {found!r:.100}, not a Score")
        return found

    work = [score(judge) for judge in judges]
    return await in_order(work, inline=all(judge.inline for judge in judges))


def _check_part(name: str, pair: tuple[Any, ...]) -> None:
    if len(pair) != 2 or not callable(getattr(pair[0], "score", None)):
        raise ConfigError(f"part {name!r} must be a judge or (judge, weight), got {pair!r:.100}")
    weight = pair[1]
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (is_number and math.isfinite(weight) and weight >= 0):
        raise ConfigError(
            f"part {name!r}: a weight is a finite number of at least 0, got {weight!r}; what is to "
            "be taken off the reward is a gate's penalty"
        )


def _components(scores: Mapping[str, Score]) -> dict[str, float]:
    components = {}
    for name, score in scores.items():
        components[name] = score.total
        if list(score.components.values()) != [score.total]:  # else it would say the same twice
            components |= {f"{name}.{part}": value for part, value in score.components.items()}
    return components
