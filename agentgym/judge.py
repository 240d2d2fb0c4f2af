"""How an episode becomes a reward: judges score, gates decide, one function settles.

A judge says what an episode is worth and may fail. A gate is a hard condition a program can check,
with a named consequence, so that no amount of persuasion moves it. `Scoring.verdict` is the only
place where the two meet an episode, and the only place where a failed judgement becomes a masked
verdict rather than a number.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field, model_validator

from agentgym.errors import JudgeError
from agentgym.gates import STANDARD_GATES, Gate, GateSpec, resolve_gates
from agentgym.metering import Meter, metered
from agentgym.types import Episode, Finite, Record, Usage, Verdict

__all__ = [
    "STANDARD_GATES",
    "Gate",
    "GateSpec",
    "GroupJudge",
    "Judge",
    "Score",
    "Scoring",
    "resolve_gates",
]


class Score(Record):
    """What a judge or verifier says of an episode, before the gates."""

    total: Finite
    """The number the gates start from, within the env's reward range."""
    components: dict[str, Finite] = Field(default_factory=dict)
    """Named parts, logged one by one."""
    correct: bool | None = None
    """Whether the task was solved."""
    completed: bool | None = None
    """Whether a final answer came; None: it did if the episode terminated."""
    reason: str | None = None
    """A remark for the reader of the trace."""


@runtime_checkable
class Judge(Protocol):
    """Scores finished episodes; a verifier is a judge that is a program."""

    inline: bool
    """True if `score` never awaits anything, so that a plain loop needs no event loop."""

    async def score(self, episode: Episode) -> Score:
        """Score one episode.

        Raises:
            JudgeError: If it can't be scored; the episode is then masked, never 0.
        """
        ...


@runtime_checkable
class GroupJudge(Protocol):
    """Scores the episodes of one task against each other, for relative rewards."""

    inline: bool
    """See `Judge`."""

    async def score_group(self, episodes: Sequence[Episode]) -> Sequence[Score | JudgeError]:
        """Score the rollouts of one task together.

        Returns:
            One score per episode, in order; an error in place of one that can't be scored.

        Raises:
            JudgeError: If none of them can be scored; all are then masked.
        """
        ...


class Scoring(Record):
    """A judge, the gates and the reward range: all that turns an episode into a verdict.

    It holds nothing of the environment, so the environment can be closed before judging starts.
    """

    judge: Any = Field(repr=False)
    """A `Judge` or a `GroupJudge`."""
    gates: tuple[Gate, ...] = ()
    reward_range: tuple[Finite, Finite] = (-1.0, 1.0)
    """Rewards are clipped to it; a floor gate pins to its lower end. Left out, the upper end is the
    judge's own `highest` where that is above 1 (1.3 for the default rubric), so that no part of its
    score is clipped away."""

    @model_validator(mode="before")
    @classmethod
    def _range_holds_the_judge(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "reward_range" in fields:
            return fields
        highest = getattr(fields.get("judge"), "highest", None)
        top = max(1.0, highest) if isinstance(highest, float | int) else 1.0
        return {**fields, "reward_range": (-1.0, top)}

    @model_validator(mode="after")
    def _range_is_ordered(self) -> Scoring:
        low, high = self.reward_range
        if low >= high:
            raise ValueError(f"reward_range must be (low, high) with low < high, got {low}, {high}")
        return self

    @property
    def inline(self) -> bool:
        """Whether a verdict needs no event loop."""
        return bool(getattr(self.judge, "inline", False))

    @property
    def judges_groups(self) -> bool:
        """Whether the judge compares the episodes of a group: `verdicts` is then the way."""
        return callable(getattr(self.judge, "score_group", None))

    async def verdict(self, episode: Episode) -> Verdict:
        """Judge an episode; whatever fails on the way masks it and never raises.

        What judging cost is in `Verdict.spent`, whether it succeeded or not. Cancellation passes
        through.
        """
        meter = Meter()
        with metered(meter):
            verdict = await self._judged_alone(episode)
        return _with_spent(verdict, meter.by_role)

    async def verdicts(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """Judge the rollouts of one task, in order: together if the judge compares them.

        Episodes that broke are masked and stay out of the comparison. The cost of a joint judgement
        is spread evenly, so that the sum over the group is what was spent.
        """
        if not self.judges_groups:
            if self.inline:
                return [await self.verdict(episode) for episode in episodes]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.verdict(episode)) for episode in episodes]
            return [task.result() for task in tasks]
        whole = [n for n, episode in enumerate(episodes) if not _is_broken(episode)]
        meter = Meter()
        with metered(meter):
            scores = await self._scores_of([episodes[n] for n in whole])
        outcomes: dict[int, Score | Exception] = dict(zip(whole, scores, strict=True))
        found = [self._verdict_of(e, outcomes.get(n)) for n, e in enumerate(episodes)]
        for position, n in enumerate(whole):
            spent = {r: _share(u, len(whole), position) for r, u in meter.by_role.items()}
            found[n] = _with_spent(found[n], spent)
        return found

    async def _judged_alone(self, episode: Episode) -> Verdict:
        outcome: Score | Exception | None = None
        if not _is_broken(episode):
            try:
                outcome = await self._score_alone(episode)
            except Exception as error:  # a judge's bug must mask the episode, not become a number
                outcome = error
        return self._verdict_of(episode, outcome)

    async def _score_alone(self, episode: Episode) -> Any:
        if not callable(getattr(self.judge, "score", None)) and self.judges_groups:
            raise JudgeError(
                f"{type(self.judge).__name__} compares the episodes of a group and can't score one "
                "alone; judge the group with Scoring.verdicts"
            )
        return await self.judge.score(episode)

    async def _scores_of(self, episodes: Sequence[Episode]) -> Sequence[Any]:
        """What a group judge says of each episode: a score, or why there is none."""
        if not episodes:
            return ()
        try:
            scores = list(await self.judge.score_group(episodes))
            if len(scores) != len(episodes):
                raise JudgeError(
                    f"{type(self.judge).__name__} gave {len(scores)} scores for {len(episodes)} "
                    "episodes"
                )
        except Exception as error:
            return [error] * len(episodes)
        return scores

    def _verdict_of(self, episode: Episode, outcome: Any) -> Verdict:
        """The verdict that follows from what the judge said; an exception or no score masks."""
        gates: dict[str, int] = {}
        broken = _is_broken(episode)
        blamed = episode.failure_class if broken else "judge"
        try:
            gates = {gate.name: gate.count(episode) for gate in self.gates}
            if broken:
                return _masked(episode, gates, blamed, episode.error)
            if isinstance(outcome, Exception):
                raise outcome
            if not isinstance(outcome, Score):
                raise JudgeError(f"{type(self.judge).__name__} gave {outcome!r:.100}, not a Score")
            return self._settle(episode, outcome, gates)
        except JudgeError as error:
            kind = "" if type(error) is JudgeError else f"{type(error).__name__}: "
            return _masked(episode, gates, blamed, f"{kind}{error}")
        except Exception as error:  # a gate's bug too
            return _masked(episode, gates, blamed, f"{type(error).__name__}: {error}")

    def _settle(self, episode: Episode, score: Score, gates: dict[str, int]) -> Verdict:
        if not math.isfinite(score.total):  # from `model_copy`, which validates nothing
            raise JudgeError(f"{type(self.judge).__name__} gave a total of {score.total}")
        low, high = self.reward_range
        reward = score.total - sum(g.penalty for g in self.gates if gates[g.name])
        if any(g.floor for g in self.gates if gates[g.name]):
            reward = low
        completed = episode.terminated if score.completed is None else score.completed
        solved = score.correct is not False and not any(gates.values())
        return Verdict(
            components=score.components,
            gates={name: count > 0 for name, count in gates.items()},
            gate_counts=gates,
            completed=completed,
            correct=score.correct,
            failure_class=None if solved else "policy",
            reward=min(max(reward, low), high),
            reason=score.reason,
        )


def _is_broken(episode: Episode) -> bool:
    """Whether something other than the policy failed, so that there is nothing to judge."""
    return episode.failure_class is not None and episode.failure_class != "policy"


def _with_spent(verdict: Verdict, spent: Mapping[str, Usage]) -> Verdict:
    return verdict.model_copy(update={"spent": dict(spent)}) if spent else verdict


def _share(usage: Usage, parts: int, position: int) -> Usage:
    """One of `parts` nearly equal shares; they add up to the whole."""
    counts = {
        name: value // parts + (position < value % parts)
        for name, value in usage.model_dump().items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    cost = None if usage.cost_usd is None else usage.cost_usd / parts
    return usage.model_copy(update={**counts, "cost_usd": cost})


def _masked(
    episode: Episode, gates: dict[str, int], failure_class: Any, reason: str | None
) -> Verdict:
    return Verdict(
        gates={name: count > 0 for name, count in gates.items()},
        gate_counts=gates,
        completed=episode.terminated,
        failure_class=failure_class,
        judge_failed=failure_class == "judge",
        masked=True,
        reward=None,
        reason=reason,
    )
