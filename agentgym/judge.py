"""How an episode becomes a reward: judges score, gates decide, one function settles.

A judge says what an episode is worth and may fail. A gate is a hard condition a program can check,
with a named consequence, so that no amount of persuasion moves it. `Scoring.verdict` is the only
place where the two meet an episode, and the only place where a failed judgement becomes a masked
verdict rather than a number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pydantic import Field, ValidationError, model_validator

from agentgym.errors import ConfigError, JudgeError
from agentgym.types import Episode, Finite, Record, Verdict, in_one_line


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


class Gate(Record):
    """A hard condition and its consequence: a penalty, or the floor of the reward range."""

    name: str
    """As it appears in `Verdict.gates`."""
    tripped: Callable[[Episode], bool | int] = Field(repr=False)
    """Whether the episode breaks the condition, or how often it does."""
    penalty: Finite = Field(default=0.0, ge=0)
    """Subtracted from the score when tripped."""
    floor: bool = False
    """Whether tripping pins the reward to the bottom of the range instead."""


def _truncated(episode: Episode) -> bool:
    return episode.truncated


def _malformed(episode: Episode) -> bool:
    return episode.malformed_calls > 0


def _no_answer(episode: Episode) -> bool:
    """Stopped by itself without saying anything (an empty final message)."""
    return episode.termination_reason == "answered" and not (episode.answer or "").strip()


STANDARD_GATES: dict[str, Gate] = {
    "truncated": Gate(name="truncated", tripped=_truncated, penalty=0.5),
    "malformed_call": Gate(name="malformed_call", tripped=_malformed, penalty=0.3),
    "no_answer": Gate(name="no_answer", tripped=_no_answer, penalty=0.5),
}
"""The default gates: at most one penalty each, so one slip and ten cost the same."""

GateSpec: TypeAlias = Gate | str | Mapping[str, Any]
"""A gate, a standard one's name, or `{"name": …, "penalty": …, "floor": …}` to re-weigh one."""


def resolve_gates(specs: Iterable[GateSpec] | None) -> tuple[Gate, ...]:
    """Turn gate specs into gates; None gives the standard ones, `()` gives none.

    Raises:
        ConfigError: If a name is not that of a standard gate, or a field is wrong.
    """
    if specs is None:
        return tuple(STANDARD_GATES.values())
    if isinstance(specs, str | Mapping) or not isinstance(specs, Iterable):
        raise ConfigError(
            f"gates must be a list such as ['truncated', {{'name': 'malformed_call', 'penalty': "
            f"0.1}}], () for none or None for the standard ones, got {specs!r:.100}"
        )
    gates: dict[str, Gate] = {}
    for spec in specs:
        gate = spec if isinstance(spec, Gate) else _standard_gate(spec)
        if gate.name in gates:
            raise ConfigError(f"gate {gate.name!r} is given twice; name each gate once")
        gates[gate.name] = gate
    return tuple(gates.values())


def _standard_gate(spec: str | Mapping[str, Any]) -> Gate:
    if not isinstance(spec, str | Mapping):
        raise ConfigError(f"a gate is a name, a dict with 'name' or a Gate, got {spec!r:.100}")
    fields = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in STANDARD_GATES:
        known = ", ".join(STANDARD_GATES)
        raise ConfigError(f"no standard gate {name!r}; there are {known}, or pass a Gate")
    unknown = set(fields) - {"penalty", "floor"}
    if unknown:
        raise ConfigError(
            f"gate {name!r} takes penalty and floor, not {', '.join(sorted(unknown))}"
        )
    try:
        return Gate.model_validate({**dict(STANDARD_GATES[name]), **fields})
    except ValidationError as error:
        raise ConfigError(f"gate {name!r}: {in_one_line(error)}") from error


class Scoring(Record):
    """A judge, the gates and the reward range: all that turns an episode into a verdict.

    It holds nothing of the environment, so the environment can be closed before judging starts.
    """

    judge: Any = Field(repr=False)
    """A `Judge`."""
    gates: tuple[Gate, ...] = ()
    reward_range: tuple[Finite, Finite] = (-1.0, 1.0)
    """Rewards are clipped to it; a floor gate pins to its lower end."""

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

    async def verdict(self, episode: Episode) -> Verdict:
        """Judge an episode; whatever fails on the way masks it and never raises.

        Cancellation passes through.
        """
        gates: dict[str, bool] = {}
        broken = episode.failure_class is not None and episode.failure_class != "policy"
        blamed = episode.failure_class if broken else "judge"
        try:
            gates = {gate.name: _trips(gate, episode) for gate in self.gates}
            if broken:
                return _masked(episode, gates, blamed, episode.error)
            score = await self.judge.score(episode)
            if not isinstance(score, Score):
                raise JudgeError(f"{type(self.judge).__name__} gave {score!r:.100}, not a Score")
            return self._settle(episode, score, gates)
        except JudgeError as error:
            return _masked(episode, gates, blamed, str(error))
        except Exception as error:  # a judge's bug must mask the episode, not become a number
            return _masked(episode, gates, blamed, f"{type(error).__name__}: {error}")

    def _settle(self, episode: Episode, score: Score, gates: dict[str, bool]) -> Verdict:
        low, high = self.reward_range
        reward = score.total - sum(g.penalty for g in self.gates if gates[g.name])
        if any(g.floor for g in self.gates if gates[g.name]):
            reward = low
        completed = episode.terminated if score.completed is None else score.completed
        solved = score.correct is not False and not any(gates.values())
        return Verdict(
            components=score.components,
            gates=gates,
            completed=completed,
            correct=score.correct,
            failure_class=None if solved else "policy",
            reward=min(max(reward, low), high),
            reason=score.reason,
        )


def _trips(gate: Gate, episode: Episode) -> bool:
    found: object = gate.tripped(episode)
    if inspect.iscoroutine(found):
        found.close()
        raise TypeError(f"gate {gate.name!r} is async; a gate is a plain function")
    return bool(found)


def _masked(
    episode: Episode, gates: dict[str, bool], failure_class: Any, reason: str | None
) -> Verdict:
    return Verdict(
        gates=gates,
        completed=episode.terminated,
        failure_class=failure_class,
        judge_failed=failure_class == "judge",
        masked=True,
        reward=None,
        reason=reason,
    )
