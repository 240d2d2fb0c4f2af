"""An external score is another object than the reward, or it is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.toolworld.judge import AnswerVerifier
from agentgym.errors import ConfigError
from agentgym.evaluate.external import ExternalScore, named_score
from agentgym.judge import Score
from agentgym.judges.compose import Weighted
from agentgym.rollout.source import EnvSource
from agentgym.trace import Trace
from agentgym.types import Verdict

ENV = "agentgym/ToolWorld-v0"


def env(**kwargs: Any) -> Any:
    return EnvSource(ENV, kwargs).make().unwrapped


def trace(**fields: Any) -> Trace:
    facts: dict[str, Any] = {
        "trace_id": "t",
        "env_spec": "{}",
        "task_id": "toolworld/library/late_fee/0",
        "verdict": Verdict(reward=1.0, correct=True),
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return Trace(**{**facts, **fields})


class Named(AnswerVerifier):
    """A judge that calls itself a score."""

    def __call__(self, env: Any, trace: Trace) -> float:
        return 1.0


def test_the_judge_is_refused_however_it_is_given() -> None:
    made = env()
    judge = made.scoring.judge
    for given in (judge, judge.score, AnswerVerifier, AnswerVerifier().score, Named()):
        with pytest.raises(ConfigError, match="training reward"):
            ExternalScore(env(judge=judge), given)
    for given in (made.scoring, made.scoring.verdict):
        with pytest.raises(ConfigError, match="the training reward itself"):
            ExternalScore(made, given)


def test_a_part_of_a_composed_judge_is_refused() -> None:
    part = AnswerVerifier()
    composed = Weighted({"service": (part, 1.0)}, correct="service")
    with pytest.raises(ConfigError, match="the judge of the training reward itself"):
        ExternalScore(env(judge=composed), part.score)


def test_a_gate_is_refused() -> None:
    made = env()
    with pytest.raises(ConfigError, match="a gate of the training reward"):
        ExternalScore(made, made.scoring.gates[0].tripped)


def test_an_env_without_a_score_says_how_to_give_one() -> None:
    from agentgym.testing.envs import CounterEnv

    with pytest.raises(ConfigError, match="ships no external score.*--score MODULE:FUNCTION"):
        ExternalScore(CounterEnv())


@pytest.mark.parametrize(
    ("given", "total", "correct"),
    [
        (True, 1.0, True),
        (False, 0.0, False),
        (1, 1.0, True),
        (0.25, 0.25, False),
        (Score(total=0.5), 0.5, False),
        (Score(total=0.5, correct=True), 0.5, True),
    ],
)
def test_what_a_score_may_be(given: Any, total: float, correct: bool) -> None:
    score = ExternalScore(env(), lambda env, trace: given)(trace())
    assert score is not None
    assert (score.total, score.correct) == (total, correct)


@pytest.mark.parametrize("given", [None, "1.0", float("nan"), 1.5, -0.1, Score(total=2.0)])
def test_what_it_may_not_be(given: Any) -> None:
    with pytest.raises(ConfigError, match="expected a Score, a bool, or a number from 0 to 1"):
        ExternalScore(env(), lambda env, trace: given)(trace())


def test_a_score_that_breaks_is_no_zero() -> None:
    def broken(env: Any, trace: Trace) -> float:
        raise KeyError("tool")

    with pytest.raises(ConfigError, match="broke on toolworld/library/late_fee/0: KeyError"):
        ExternalScore(env(), broken)(trace())


def test_the_verdict_is_hidden_from_it() -> None:
    seen: list[Trace] = []
    ExternalScore(env(), lambda env, trace: seen.append(trace) or True)(trace())
    assert seen[0].reward is None
    assert seen[0].verdict.components == {}
    assert seen[0].verdict.correct is None


@pytest.mark.parametrize("blamed", ["infra", "env", "simulator"])
def test_what_something_else_broke_has_no_score(blamed: Any) -> None:
    masked = Verdict(masked=True, reward=None, failure_class=blamed)
    score = ExternalScore(env(), lambda env, trace: True)
    assert score(trace(verdict=masked, failure_class=blamed)) is None


def test_an_episode_whose_judge_failed_is_whole_and_has_one() -> None:
    masked = Verdict(masked=True, reward=None, failure_class="judge", judge_failed=True)
    score = ExternalScore(env(), lambda env, trace: True)
    assert score(trace(verdict=masked, failure_class="judge")) == Score(total=1.0, correct=True)


def test_the_hash_is_of_the_code_with_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ExternalScore(EnvSource("agentgym/SupportDesk-v0").make().unwrapped)
    assert made.hash == made.hash
    seen: list[str] = []

    def source(module: str) -> str:
        seen.append(module.rpartition(".")[2])
        return module

    monkeypatch.setattr("agentgym.evaluate.external._source", source)
    assert made.hash
    assert {"external", "audit", "conduct"} <= set(seen)
    assert "env" not in seen
    assert ExternalScore(env(), lambda env, trace: True).hash != made.hash


def test_a_score_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores_of_mine.py").write_text("def strict(env, trace):\n    return True\n")
    assert named_score("scores_of_mine:strict")(None, trace()) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strict", "expected MODULE:FUNCTION"),
        ("no_such_module_of_mine:f", "can't import 'no_such_module_of_mine'"),
        ("json:loadz", "json has no 'loadz'"),
        ("json:__name__", "is no function but a str"),
    ],
)
def test_a_name_that_leads_nowhere(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_score(text)
