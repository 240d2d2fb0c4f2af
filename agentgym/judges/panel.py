"""Several judges of the same thing, and how far they agree.

One judge's verdict says nothing of its own noise. Judges of different make who agree are evidence;
where they don't, the number between them is noise with a decimal point, and may be refused.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Judge, Score
from agentgym.judges.compose import scores_of
from agentgym.types import Episode

Rule: TypeAlias = Literal["mean", "majority"]

AGREEMENT = "panel_agreement"
"""Component that holds the share of pairs of judges whose totals agree."""


class Panel:
    """Asks several judges and settles on one score.

    Args:
        judges: At least two, of the same scale.
        rule: `mean` averages totals and components. `majority` takes the score (total and
            components) that more than half of the judges gave, and fails without one.
        tolerance: How far two totals may lie apart and still agree.
        least_agreement: Share of agreeing pairs below which the judgement has failed; 0 takes any.
        quorum: Judges that must give a verdict; None: all of them.

    Raises:
        ConfigError: If a parameter is not allowed.
    """

    def __init__(
        self,
        judges: Sequence[Judge],
        *,
        rule: Rule = "mean",
        tolerance: float = 1e-9,
        least_agreement: float = 0.0,
        quorum: int | None = None,
    ) -> None:
        self.judges = tuple(judges)
        if len(self.judges) < 2:
            raise ConfigError(f"a panel needs at least 2 judges, got {len(self.judges)}")
        if rule not in get_args(Rule):
            raise ConfigError(f"rule must be 'mean' or 'majority', got {rule!r}")
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ConfigError(f"tolerance must be a finite number of at least 0, got {tolerance!r}")
        if not 0 <= least_agreement <= 1:
            raise ConfigError(f"least_agreement must be from 0 to 1, got {least_agreement!r}")
        self.quorum = len(self.judges) if quorum is None else quorum
        if not 2 <= self.quorum <= len(self.judges):
            raise ConfigError(f"quorum must be from 2 to {len(self.judges)}, got {quorum!r}")
        self.rule = rule
        self.tolerance = tolerance
        self.least_agreement = least_agreement
        self.inline = all(judge.inline for judge in self.judges)

    def __repr__(self) -> str:
        return f"Panel({list(self.judges)!r}, rule={self.rule!r})"

    @property
    def highest(self) -> float:
        """The best total, as far as the judges tell theirs; 1 for one that doesn't."""
        return max(float(getattr(judge, "highest", 1.0)) for judge in self.judges)

    async def score(self, episode: Episode) -> Score:
        """Score one episode; see `Judge.score`.

        Raises:
            JudgeError: If too few judges gave a score, they agree too little, or have no majority.
        """
        found = await scores_of(self.judges, episode)
        scores = [each for each in found if isinstance(each, Score)]
        errors = [str(each) for each in found if isinstance(each, JudgeError)]
        if len(scores) < self.quorum:
            raise JudgeError(
                f"{len(scores)} of {len(self.judges)} judges gave a score, {self.quorum} are "
                f"needed: {'; '.join(errors)}"
            )
        agreement = self._agreement(scores)
        if agreement < self.least_agreement:
            totals = ", ".join(f"{score.total:g}" for score in scores)
            raise JudgeError(
                f"the judges disagree ({totals}): {agreement:.2f} of the pairs agree, "
                f"{self.least_agreement:g} are needed"
            )
        settled = _majority(scores) if self.rule == "majority" else _mean(scores)
        components = {**settled.components, AGREEMENT: agreement}
        remarks = [score.reason for score in scores if score.reason]
        remarks += [f"no score: {error}" for error in errors]
        reason = "\n".join(dict.fromkeys(remarks)) or None
        return settled.model_copy(update={"components": components, "reason": reason})

    def _agreement(self, scores: Sequence[Score]) -> float:
        pairs = list(itertools.combinations([score.total for score in scores], 2))
        return sum(abs(a - b) <= self.tolerance for a, b in pairs) / len(pairs)


def _mean(scores: Sequence[Score]) -> Score:
    """Means of totals and of the components that all have; majorities of the facts."""
    shared = [n for n in scores[0].components if all(n in s.components for s in scores)]
    return Score(
        total=math.fsum(s.total for s in scores) / len(scores),
        components={n: math.fsum(s.components[n] for s in scores) / len(scores) for n in shared},
        correct=_most([s.correct for s in scores]),
        completed=_most([s.completed for s in scores]),
    )


def _most(facts: Sequence[bool | None]) -> bool | None:
    """What more than half of those who know say; None if there is no such answer."""
    known = Counter(fact for fact in facts if fact is not None)
    return next((fact for fact, count in known.items() if 2 * count > known.total()), None)


def _majority(scores: Sequence[Score]) -> Score:
    said = [json.dumps([s.total, s.components], sort_keys=True) for s in scores]
    (winner, count), *_ = Counter(said).most_common(1)
    if 2 * count <= len(scores):
        totals = ", ".join(f"{score.total:g}" for score in scores)
        raise JudgeError(f"no majority: the judges gave {totals}")
    agreeing = [score for score, each in zip(scores, said, strict=True) if each == winner]
    return agreeing[0].model_copy(update={"correct": _most([s.correct for s in agreeing])})
