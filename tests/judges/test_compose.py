"""Several judges as one: sums worked by hand, and parts that fail."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentgym.errors import ConfigError, JudgeError, JudgeTruncated
from agentgym.judge import Judge, Score
from agentgym.judges import Verifier, Weighted, compose
from agentgym.judges.episodes import episode_from_messages
from agentgym.sync import run_inline
from agentgym.types import Task

EPISODE = episode_from_messages(
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Bye"}],
    task=Task(task_id="t/0"),
)


def says(found):
    def function(episode):
        if isinstance(found, BaseException):
            raise found
        return found

    return Verifier(function, name="v", high=10)


class Slow:
    """A judge that needs an event loop."""

    inline = False

    def __init__(self, found):
        self.found = found
        self.finished = False

    async def score(self, episode):
        await asyncio.sleep(0)
        self.finished = True
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


def test_total_is_the_weighted_sum_and_parts_are_components():
    """Worked by hand: 1·1 + 0.3·0.5 + 2·0.25 = 1.65."""
    parts = {"solved": says(True), "grounded": (says(0.5), 0.3), "style": (says(0.25), 2.0)}
    judge = Weighted(parts)
    assert isinstance(judge, Judge)
    assert judge.inline
    found = run_inline(judge.score(EPISODE))
    assert found.total == pytest.approx(1.65)
    assert found.components == {"solved": 1.0, "grounded": 0.5, "style": 0.25}
    assert found.correct is True


def test_what_a_part_is_made_of_follows_under_its_name():
    inner = Score(total=0.7, components={"a": 1.0, "b": 0.4}, reason="so so")
    found = run_inline(Weighted({"style": says(inner)}).score(EPISODE))
    assert found.components == {"style": 0.7, "style.a": 1.0, "style.b": 0.4}
    assert found.reason == "style: so so"


@pytest.mark.parametrize("wrap", [says, Slow])
def test_a_part_that_counts_and_fails_fails_the_whole(wrap):
    judge = Weighted({"solved": says(True), "style": (wrap(JudgeTruncated("cut")), 0.1)})
    with pytest.raises(JudgeTruncated, match="style: cut"):
        asyncio.run(judge.score(EPISODE))


def test_a_part_that_gives_no_score_or_crashes_fails_the_whole():
    for wrong, message in [(None, "gave None, not a Score"), (KeyError("x"), "KeyError")]:
        judge = Weighted({"solved": says(True), "style": Slow(wrong)})
        with pytest.raises(JudgeError, match=message):
            asyncio.run(judge.score(EPISODE))


def test_a_part_of_weight_zero_is_only_logged_and_may_fail():
    parts = {"solved": says(True), "length": (says(9), 0), "style": (says(JudgeError("no")), 0)}
    found = run_inline(Weighted(parts).score(EPISODE))
    assert (found.total, found.components) == (1.0, {"solved": 1.0, "length": 9.0})
    assert found.reason == "style failed: no"


def test_all_parts_run_to_their_end_also_if_one_fails():
    slow = Slow(Score(total=1.0))
    with pytest.raises(JudgeError):
        asyncio.run(Weighted({"a": says(JudgeError("no")), "b": slow}).score(EPISODE))
    assert slow.finished


def test_which_part_says_correct():
    parts = {"a": says(0.5), "b": says(False), "c": says(True)}
    assert run_inline(Weighted(parts).score(EPISODE)).correct is False, "the first that says"
    assert run_inline(Weighted(parts, correct="c").score(EPISODE)).correct is True
    assert run_inline(Weighted(parts, correct="a").score(EPISODE)).correct is None


def test_compose_takes_gates_off_the_sum_in_a_range_that_holds_it():
    """Worked by hand: 1 + 0.3·1 = 1.3, less 0.2 is 1.1."""
    judge = says(True)
    scoring = compose(
        {"solved": Verifier(lambda e: True), "grounded": (Verifier(lambda e: True), 0.3)},
        gates=[{"kind": "custom", "name": "rude", "predicate": lambda e: 2, "penalty": 0.2}],
    )
    assert scoring.reward_range == (-1.0, pytest.approx(1.3))
    found = run_inline(scoring.verdict(EPISODE))
    assert found.reward == pytest.approx(1.1)
    assert (found.gates, found.gate_counts) == ({"rude": True}, {"rude": 2})
    assert [g.name for g in compose({"a": judge}).gates] == [
        "truncated", "malformed_call", "no_answer"
    ]  # fmt: skip
    assert compose({"a": judge}, reward_range=(0, 1)).reward_range == (0.0, 1.0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "weights must not all be 0"),
        ({"a": (says(1), 0)}, "weights must not all be 0"),
        ({"a": (says(1), -1)}, "part 'a': a weight is a finite number of at least 0, got -1"),
        ({"a": (says(1), math.nan)}, "got nan"),
        ({"a": (says(1), math.inf)}, "got inf"),
        ({"a": (says(1), True)}, "got True"),
        ({"a": (says(1), "1")}, "got '1'"),
        ({"a": (says(1),)}, "must be a judge or"),
        ({"a": 5}, "must be a judge or"),
        ({"a": lambda e: 1}, "must be a judge or"),
    ],
)
def test_wrong_parts_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        Weighted(parts)


def test_other_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"correct must name a part \(a\), got 'b'"):
        Weighted({"a": says(1)}, correct="b")
    with pytest.raises(ConfigError, match="reward_range"):
        compose({"a": says(1)}, reward_range=(1, 0))
    with pytest.raises(ConfigError, match="no standard gate"):
        compose({"a": says(1)}, gates=["x"])
