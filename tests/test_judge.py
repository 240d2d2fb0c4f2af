"""From an episode to a verdict: gates, ranges, and judges that fail."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import STANDARD_GATES, Gate, Score, Scoring, resolve_gates
from agentgym.metering import Meter, charge, metered
from agentgym.testing.envs import CounterEnv, QuizEnv
from agentgym.testing.messages import calling, tool_call
from agentgym.types import Episode, Task, ToolCall, Turn, Usage, Verdict


class Fixed:
    """Judge that gives what it was told to, or raises it."""

    inline = True

    def __init__(self, outcome):
        self.outcome = outcome

    async def score(self, episode):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome() if callable(self.outcome) else self.outcome


def episode(**changes):
    fields = {
        "env_id": "t/T-v0",
        "task": Task(task_id="t/0"),
        "messages": (),
        "terminated": True,
        "truncated": False,
        "termination_reason": "answered",
        "answer": "42",
    }
    return Episode(**{**fields, **changes})


TRUNCATED = {
    "terminated": False,
    "truncated": True,
    "termination_reason": None,
    "truncation_reason": "turns",
    "answer": None,
}
MALFORMED = Turn(
    index=0,
    message={},
    calls=(ToolCall(id="c", name="x", arguments=None, status="malformed"),),
)
CUT_OFF = Turn(
    index=0,
    message={},
    cut_off=True,
    calls=(ToolCall(id="c", name="x", arguments=None, status="cut_off"),),
)


def verdict(outcome, played=None, **scoring):
    scoring.setdefault("gates", resolve_gates(None))
    return asyncio.run(
        Scoring(judge=Fixed(outcome), **scoring).verdict(episode() if played is None else played)
    )


@pytest.mark.parametrize(
    ("name", "honest", "attack", "penalty"),
    [
        ("truncated", {}, TRUNCATED, 0.5),
        ("malformed_call", {"turns": (CUT_OFF,)}, {"turns": (MALFORMED, MALFORMED)}, 0.3),
        ("no_answer", {}, {"answer": " \n"}, 0.5),
        ("no_answer", {"answer": "\u200b3"}, {"answer": "\u200b\u2060\u00a0"}, 0.5),
    ],
)
def test_each_standard_gate_passes_the_honest_and_trips_on_the_attack(
    name, honest, attack, penalty
):
    passed = verdict(Score(total=1.0, correct=True), episode(**honest))
    assert passed.gates == dict.fromkeys(STANDARD_GATES, False)
    assert (passed.reward, passed.failure_class) == (1.0, None)
    tripped = verdict(Score(total=1.0, correct=True), episode(**attack))
    assert tripped.gates == {**dict.fromkeys(STANDARD_GATES, False), name: True}
    assert tripped.reward == pytest.approx(1.0 - penalty)
    assert (tripped.failure_class, tripped.masked) == ("policy", False)
    count = 2 if name == "malformed_call" else 1
    assert tripped.gate_counts == {**dict.fromkeys(STANDARD_GATES, 0), name: count}


def test_gates_add_up_and_stay_in_the_range():
    """Worked by hand: 0 - 0.5 (truncated) - 0.3 (malformed) = -0.8; -0.5 more is clipped to -1."""
    both = episode(**TRUNCATED, turns=(MALFORMED,))
    assert verdict(Score(total=0.0), both).reward == pytest.approx(-0.8)
    assert verdict(Score(total=-0.5), both).reward == -1.0
    assert verdict(Score(total=9.0)).reward == 1.0


def test_a_floor_gate_pins_the_reward_whatever_the_judge_says():
    gates = resolve_gates([{"name": "malformed_call", "floor": True}])
    assert verdict(Score(total=1.0), gates=gates).reward == 1.0
    attack = verdict(Score(total=1.0), episode(turns=(MALFORMED,)), gates=gates)
    assert attack.reward == -1.0
    wide = verdict(
        Score(total=1.0), episode(turns=(MALFORMED,)), gates=gates, reward_range=(-3.0, 2.0)
    )
    assert wide.reward == -3.0


def test_own_gates_and_none():
    shouting = Gate(name="shouting", tripped=lambda e: (e.answer or "").isupper(), penalty=0.25)
    assert verdict(Score(total=1.0), episode(answer="HI"), gates=(shouting,)).reward == 0.75
    assert verdict(Score(total=1.0), episode(answer="hi"), gates=(shouting,)).reward == 1.0
    assert verdict(Score(total=1.0), episode(**TRUNCATED), gates=()).reward == 1.0


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("truncated", "gates must be a list"),
        ({"truncated": 1}, "gates must be a list"),
        (5, "gates must be a list"),
        ([5], "a gate is a name, a dict with 'name' or a Gate, got 5"),
        ([{"name": ["truncated"]}], "no standard gate"),
        (["nonsense"], "no standard gate 'nonsense'; there are truncated, malformed_call"),
        ([{"name": "truncated", "weight": 1}], "takes penalty and floor, not weight"),
        ([{"name": "truncated", "penalty": -1}], "gate 'truncated'"),
        ([{"name": "truncated", "penalty": math.nan}], "gate 'truncated'"),
        (["truncated", "truncated"], "given twice"),
        ([{}], "no standard gate None"),
    ],
)
def test_wrong_gates_are_refused(specs, message):
    with pytest.raises(ConfigError, match=message):
        resolve_gates(specs)


def test_gates_are_resolved_by_name_or_all_by_default():
    assert [g.name for g in resolve_gates(None)] == ["truncated", "malformed_call", "no_answer"]
    assert resolve_gates(()) == ()
    (only,) = resolve_gates([{"name": "truncated", "penalty": 0.1}])
    assert (only.penalty, only.floor) == (0.1, False)


@pytest.mark.parametrize(
    "outcome",
    [
        JudgeError("the reply was cut off"),
        RuntimeError("a bug"),
        lambda: Score(total=math.nan),
        lambda: Score(total=0.0, components={"x": math.inf}),
        None,
        0.5,
        {"total": 1.0},
    ],
)
def test_a_failed_judgement_masks_and_is_never_a_number(outcome):
    found = verdict(outcome, episode(turns=(MALFORMED,)))
    assert (found.reward, found.masked, found.judge_failed) == (None, True, True)
    assert found.failure_class == "judge"
    assert found.gates["malformed_call"]
    assert found.reason


def test_a_judge_that_gives_no_score_is_told_so():
    assert verdict(0.5).reason == "Fixed gave 0.5, not a Score"


def test_a_crashing_gate_masks():
    def crash(episode):
        raise KeyError("no such field")

    async def waits(episode):
        return False

    for tripped in (crash, waits):
        found = verdict(Score(total=1.0), gates=(Gate(name="g", tripped=tripped),))
        assert (found.reward, found.judge_failed) == (None, True)


@pytest.mark.parametrize("broken", ["simulator", "env", "infra"])
def test_a_broken_episode_is_masked_with_its_own_class_and_not_judged(broken):
    played = episode(**{**TRUNCATED, "truncation_reason": "fault"}, failure_class=broken, error="E")
    found = verdict(AssertionError("must not be asked"), played)
    assert (found.reward, found.masked, found.judge_failed) == (None, True, False)
    assert (found.failure_class, found.reason) == (broken, "E")


def test_a_policys_failure_is_scored():
    found = verdict(Score(total=0.0), episode(failure_class="policy"))
    assert (found.reward, found.masked) == (0.0, False)


@pytest.mark.parametrize("total", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("gates", [(), (Gate(name="on", tripped=lambda e: True, floor=True),)])
def test_a_total_that_is_no_number_is_neither_clipped_nor_pinned(total, gates):
    score = Score(total=1.0).model_copy(update={"total": total})
    found = verdict(score, gates=gates)
    assert (found.reward, found.masked, found.failure_class) == (None, True, "judge")
    assert f"gave a total of {total}" in found.reason


def test_cancelling_the_judge_cancels():
    with pytest.raises(asyncio.CancelledError):
        verdict(asyncio.CancelledError())


def test_completed_and_correct_are_two_facts():
    wrong = verdict(Score(total=0.0, correct=False))
    assert (wrong.completed, wrong.correct, wrong.failure_class) == (True, False, "policy")
    unsure = verdict(Score(total=0.5))
    assert (unsure.completed, unsure.correct, unsure.failure_class) == (True, None, None)
    assert not verdict(Score(total=0.5), episode(**TRUNCATED)).completed
    assert not verdict(Score(total=0.5, completed=False)).completed


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (1.0, -1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_wrong_reward_range_is_refused(bounds):
    with pytest.raises(ValueError, match=r"reward_range|finite"):
        Scoring(judge=Fixed(None), reward_range=bounds)
    with pytest.raises(ValueError, match="reward is None exactly when masked"):
        Verdict(reward=None)
    with pytest.raises(ValueError, match="reward is None exactly when masked"):
        Verdict(reward=1.0, masked=True)


@given(
    total=st.floats(allow_nan=False, allow_infinity=False),
    penalties=st.lists(st.floats(0, 1e308), max_size=4),
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    floor=st.booleans(),
)
def test_a_reward_is_finite_and_in_range(total, penalties, low, width, floor):
    gates = tuple(
        Gate(name=f"g{n}", tripped=lambda e: True, penalty=p, floor=floor)
        for n, p in enumerate(penalties)
    )
    found = verdict(Score(total=total), gates=gates, reward_range=(low, low + width))
    assert low <= found.reward <= low + width


def test_doing_nothing_never_beats_trying():
    """A wrong answer, a cut-off attempt and silence, each scored by the default gates."""
    rewards = {}
    for name, actions in {
        "right": ["Lima"],
        "wrong": ["Cusco"],
        "silent": [""],
        "capped": [calling(tool_call("first_letter"))] * 4,
    }.items():
        env = QuizEnv()
        env.reset(options={"task_id": "quiz/Peru"})
        for action in actions:
            _, rewards[name], *_ = env.step(action)
    assert rewards == {"right": 1.0, "wrong": 0.0, "silent": -0.5, "capped": -0.5}


def test_the_step_of_a_masked_episode_returns_zero_and_says_so():
    env = CounterEnv()
    env.scoring = env.scoring.model_copy(update={"judge": Fixed(JudgeError("no"))})
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(calling(tool_call("submit")))
    assert (reward, terminated) == (0.0, True)
    assert (info["verdict"].masked, info["verdict"].reward) == (True, None)


def test_env_refuses_wrong_gates_when_made():
    with pytest.raises(ConfigError, match="no standard gate 'x'"):
        CounterEnv(gates=["x"])


def spending(outcome):
    def judge():
        charge("judge", Usage(prompt_tokens=90, completion_tokens=10, cost_usd=0.5))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return judge


@pytest.mark.parametrize("outcome", [Score(total=1.0), JudgeError("no"), RuntimeError("a bug")])
def test_what_judging_cost_is_in_the_verdict_also_of_a_failed_one(outcome):
    with metered(Meter()) as around:
        found = verdict(spending(outcome))
    assert found.spent == {"judge": Usage(prompt_tokens=90, completion_tokens=10, cost_usd=0.5)}
    assert around.by_role == found.spent
    assert verdict(Score(total=1.0)).spent == {}


class JudgeUpToTwo(Fixed):
    highest = 2.0


def test_the_default_range_reaches_up_to_the_judges_best():
    assert Scoring(judge=Fixed(None)).reward_range == (-1.0, 1.0)
    assert Scoring(judge=JudgeUpToTwo(None)).reward_range == (-1.0, 2.0)
    assert Scoring(judge=JudgeUpToTwo(None), reward_range=(0.0, 1.0)).reward_range == (0.0, 1.0)
    assert CounterEnv().scoring.reward_range == (-1.0, 1.0)


class Comparing:
    """A group judge that gives what it was told to."""

    inline = True

    def __init__(self, *outcomes):
        self.outcomes = outcomes
        self.seen = []

    async def score_group(self, episodes):
        self.seen.append([e.answer for e in episodes])
        charge("judge", Usage(calls=2, prompt_tokens=10, cost_usd=0.3))
        if len(self.outcomes) == 1 and isinstance(self.outcomes[0], BaseException):
            raise self.outcomes[0]
        return self.outcomes


def verdicts(judge, *episodes):
    return asyncio.run(Scoring(judge=judge, gates=resolve_gates(None)).verdicts(episodes))


def test_a_group_is_judged_together_with_gates_of_each_its_own():
    judge = Comparing(Score(total=1.0), JudgeError("no idea"), Score(total=0.5))
    found = verdicts(judge, episode(answer="a"), episode(answer="b"), episode(turns=(MALFORMED,)))
    assert judge.seen == [["a", "b", "42"]]
    assert [v.reward for v in found] == [1.0, None, pytest.approx(0.2)]
    assert [v.judge_failed for v in found] == [False, True, False]


def test_a_broken_episode_stays_out_of_the_comparison():
    broken = episode(
        **{**TRUNCATED, "truncation_reason": "fault"}, failure_class="simulator", error="E"
    )
    judge = Comparing(Score(total=1.0), Score(total=0.0))
    found = verdicts(judge, episode(answer="a"), broken, episode(answer="c"))
    assert judge.seen == [["a", "c"]]
    assert [(v.reward, v.failure_class) for v in found] == [
        (1.0, None), (None, "simulator"), (0.0, None)
    ]  # fmt: skip


def test_the_cost_of_a_joint_judgement_adds_up_over_the_group():
    found = verdicts(Comparing(*[Score(total=0.0)] * 3), *[episode()] * 3)
    shares = [v.spent["judge"] for v in found]
    total = sum(shares, Usage(calls=0))
    assert (total.calls, total.prompt_tokens) == (2, 10)
    assert total.cost_usd == pytest.approx(0.3)
    assert [share.prompt_tokens for share in shares] == [4, 3, 3]


@pytest.mark.parametrize(
    "judge",
    [
        Comparing(JudgeError("no")),
        Comparing(RuntimeError("a bug")),
        Comparing(Score(total=1.0)),
        Comparing(*[Score(total=1.0)] * 3),
        Comparing(1.0, None),
    ],
)
def test_a_failed_comparison_masks_the_whole_group(judge):
    found = verdicts(judge, episode(), episode())
    assert [(v.reward, v.judge_failed) for v in found] == [(None, True)] * 2


def test_a_judge_of_groups_can_not_score_one_alone():
    scoring = Scoring(judge=Comparing(Score(total=1.0)))
    assert scoring.judges_groups
    found = asyncio.run(scoring.verdict(episode()))
    assert (found.reward, found.judge_failed) == (None, True)
    assert "Scoring.verdicts" in found.reason


def test_a_judge_of_single_episodes_judges_a_group_one_by_one():
    class Waiting(Fixed):
        inline = False

    for judge in (Fixed(Score(total=0.5)), Waiting(Score(total=0.5))):
        assert not Scoring(judge=judge).judges_groups
        assert [v.reward for v in verdicts(judge, episode(), episode())] == [0.5, 0.5]
