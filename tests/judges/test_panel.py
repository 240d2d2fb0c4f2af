"""Several judges of the same thing: figures worked by hand, and judges who disagree or fail."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Judge, Score
from agentgym.judges import Panel, Verifier
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

    return Verifier(function, name="solved")


def panel(*found, **options):
    return Panel([says(each) for each in found], **options)


def score(*found, **options):
    return run_inline(panel(*found, **options).score(EPISODE))


def test_mean_of_totals_and_components_with_the_share_of_pairs_that_agree():
    """Worked by hand: (1 + 1 + 0.4)/3 = 0.8; of three pairs one agrees."""
    found = score(True, True, 0.4)
    assert isinstance(panel(1, 1), Judge)
    assert found.total == pytest.approx(0.8)
    assert found.components == {
        "solved": pytest.approx(0.8),
        "panel_agreement": pytest.approx(1 / 3),
    }
    assert found.correct is True


def test_components_that_not_all_judges_have_are_left_out():
    found = score({"a": 1, "b": 0}, {"a": 0, "c": 1})
    assert set(found.components) == {"a", "panel_agreement"}


def test_a_tie_over_correct_is_unknown():
    assert score(True, False).correct is None
    assert score(True, False, False).correct is False
    assert score(0.5, 0.5).correct is None


def test_totals_within_the_tolerance_agree():
    assert score(0.5, 0.6).components["panel_agreement"] == 0.0
    assert score(0.5, 0.6, tolerance=0.11).components["panel_agreement"] == 1.0


def test_majority_takes_the_score_of_more_than_half():
    """Not the majority of each component, which nobody may have given."""
    one = Score(total=0.5, components={"a": 1, "b": 0}, reason="first")
    two = Score(total=0.5, components={"a": 0, "b": 1}, reason="second")
    found = score(one, two, two, rule="majority")
    assert (found.total, found.components["a"], found.components["b"]) == (0.5, 0.0, 1.0)
    assert found.components["panel_agreement"] == 1.0, "of totals"
    assert found.reason == "first\nsecond"
    with pytest.raises(JudgeError, match="no majority: the judges gave 1, 0.5, 0"):
        score(1, 0.5, 0, rule="majority")
    with pytest.raises(JudgeError, match="no majority"):
        score(True, False, rule="majority")


def test_too_little_agreement_is_a_failed_judgement():
    with pytest.raises(JudgeError, match=r"disagree \(1, 0, 0\): 0.33 of the pairs agree, 0.5"):
        score(True, False, False, least_agreement=0.5)
    assert score(True, True, True, least_agreement=1.0).total == 1.0


def test_all_have_to_answer_unless_a_quorum_is_set():
    failed = JudgeError("timed out")
    with pytest.raises(JudgeError, match="2 of 3 judges gave a score, 3 are needed: timed out"):
        score(True, False, failed)
    found = score(True, False, failed, quorum=2)
    assert (found.total, found.reason) == (0.5, "no score: timed out")
    with pytest.raises(JudgeError, match="1 of 3"):
        score(True, failed, failed, quorum=2)


def test_a_judge_that_crashes_or_gives_no_score_counts_as_failed():
    class Odd:
        inline = False

        async def score(self, episode):
            raise KeyError("x")

    class Silent:
        inline = False

        async def score(self, episode):
            return None

    for odd, message in [(Odd(), "KeyError"), (Silent(), "gave None, not a Score")]:
        both = Panel([says(True), odd])
        assert not both.inline
        with pytest.raises(JudgeError, match=message):
            asyncio.run(both.score(EPISODE))


def test_the_best_total_is_the_judges():
    assert Panel([Verifier(lambda e: 1, high=3), says(1)]).highest == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "median"}, "rule must be 'mean' or 'majority', got 'median'"),
        ({"tolerance": -1}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"least_agreement": 1.1}, "least_agreement"),
        ({"least_agreement": math.nan}, "least_agreement"),
        ({"quorum": 1}, "quorum must be from 2 to 3, got 1"),
        ({"quorum": 4}, "quorum must be from 2 to 3, got 4"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        panel(1, 1, 1, **options)
    with pytest.raises(ConfigError, match="at least 2 judges, got 1"):
        panel(1)
