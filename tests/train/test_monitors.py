from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import HEALTHY, SICK, Symptoms, alarms_of, flat, ramp, score_of, steps_of

from agentgym.statistics.groups import all_equal
from agentgym.train.metrics import expected_without_signal
from agentgym.train.monitors.alarm import Alarm, AlarmBook
from agentgym.train.monitors.checks import ALARMS, look
from agentgym.train.monitors.collapse import collapse
from agentgym.train.monitors.history import OURS, RunHistory, Thresholds
from agentgym.train.monitors.scores import read_scores

# What a symptom drags along: these follow from it and name it, or are its lasting effect.
COMPANIONS = {
    "no_signal": {"flat"},
    "identical_rollouts": {"no_signal"},
    "unfinished": {"turn_cap", "flat"},
    "reward_without_correctness": {"held_out_gap"},
    "no_success": {"plateau"},
    "collapse": {"plateau"},
}


SLOW = {"flat", "plateau", "collapse", "held_out_gap"}
"""Seen after many steps only."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in SICK],
)
def test_each_symptom_raises_its_alarm_and_no_other(name: str) -> None:
    raised = alarms_of(SICK[name], steps=120, until=name)
    assert name in {alarm.name for alarm in raised}
    assert {alarm.name for alarm in raised} <= {name, *COMPANIONS.get(name, ())}
    alarm = next(alarm for alarm in raised if alarm.name == name)
    assert alarm.kind in ALARMS
    assert alarm.numbers
    assert any(char.isdigit() for char in alarm.seen)
    assert len(alarm.text().splitlines()) == 1


def test_there_is_a_run_for_every_alarm() -> None:
    untested = set(ALARMS) - {name.partition(":")[0] for name in SICK}
    assert untested == {"untrainable_rows"}  # below


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.thorough) for s in (1, 2))]
)
def test_a_healthy_run_raises_none(seed: int) -> None:
    assert alarms_of(HEALTHY, steps=100, seed=100 + seed) == []


LEARNING = Path(__file__).parents[2] / "benchmarks" / "results" / "learning.json"
REAL_COLLAPSE = Path(__file__).parents[1] / "report" / "data" / "collapses"
REAL_RUNS = json.loads(LEARNING.read_text())["runs"]


def alarms_of_curves(run: dict[str, Any]) -> set[str]:
    history, book = RunHistory(), AlarmBook()
    curves = zip(run["train_reward"], run["train_success"], strict=True)
    for step, (reward, success) in enumerate(curves, start=1):
        history.add(step, {"reward": reward, OURS + "correct": success, OURS + "groups": 16.0})
        book.add(look(history))
    return {alarm.name for alarm in book.alarms}


def test_real_learning_runs_raise_none() -> None:
    real = [run for run in REAL_RUNS if not run["shuffled"]]
    assert len(real) == 3
    assert [alarms_of_curves(run) for run in real] == [set()] * 3


def test_real_runs_with_shuffled_rewards_collapse() -> None:
    shuffled = [alarms_of_curves(run) for run in REAL_RUNS if run["shuffled"]]
    assert "collapse" in shuffled[0]
    assert sum("collapse" in raised for raised in shuffled) >= 2


@pytest.mark.thorough
def test_a_run_that_has_learned_its_tasks_raises_none() -> None:
    learned = replace(
        HEALTHY, skill=ramp(-0.8, 5.0, 40), entropy=ramp(1.0, 0.05, 50), tokens=ramp(60, 20, 50)
    )
    assert alarms_of(learned, steps=90, seed=5) == []


def test_a_run_that_solves_everything_is_not_told_that_it_has_no_gradient() -> None:
    def solved(step: int) -> float:
        return min(1.0, 0.3 + step / 50)

    def equal(step: int) -> float:
        return float(solved(step) == 1)

    shares = dict.fromkeys(("groups_without_signal", "groups_equal", "groups_all_solved"), equal)
    values = {"correct": solved, "reward": solved, "grad_norm": lambda s: 0.3 - 0.3 * equal(s)}
    done = history_of(60, group_size=8.0, **values, **shares)
    assert max(done.last("grad_norm")) == 0
    assert look(done) == []


@pytest.mark.thorough
def test_small_noisy_batches_are_no_evidence() -> None:
    noisy = replace(HEALTHY, per_step=2, group_size=4, cut_off=flat(0.04), capped=flat(0.15))
    assert [alarms_of(noisy, steps=60, seed=seed) for seed in range(4)] == [[]] * 4


def test_untrainable_rows_are_told() -> None:
    history = RunHistory()
    for step in range(1, 8):
        history.add(step, {OURS + "masked/rows": 0.1, OURS + "groups": 16.0, "reward": 0.1})
    (alarm,) = look(history)
    assert alarm.name == "untrainable_rows"
    assert "opening fills the context" in alarm.cause


def test_everything_clipped_names_the_clipped_ratio() -> None:
    """F14."""
    clipped = replace(SICK["no_signal"], skill=flat(0.0), cut_off=flat(1.0))
    raised = {alarm.name: alarm for alarm in alarms_of(clipped, steps=6)}
    assert raised["token_limit"].step == raised["no_signal"].step == 5
    assert "completions/clipped_ratio is 1.00" in raised["token_limit"].seen
    assert raised["token_limit"].numbers["clipped_ratio"] == 1.0
    assert "clipped_ratio" in raised["no_signal"].cause
    assert "max_turn_tokens" in raised["no_signal"].change


def test_context_that_ends_all_is_named_before_the_gate_that_it_trips() -> None:
    history = RunHistory()
    ended = {"truncated/context": 1.0, "gates/truncated": 1.0, "groups_equal": 1.0, "correct": 0.0}
    for step in range(1, 8):
        values = {f"{OURS}{name}": value for name, value in ended.items()}
        history.add(step, {**values, f"{OURS}groups": 16.0, "reward": -0.5})
    raised = {alarm.name: alarm for alarm in look(history)}
    assert raised["no_signal"].change == "a higher max_context"


def test_trls_clipped_ratio_is_enough_where_ours_is_missing() -> None:
    history = RunHistory(Thresholds(min_steps=3))
    for step in range(1, 4):
        history.add(step, {"completions/clipped_ratio": 1.0, "frac_reward_zero_std": 1.0})
    assert [alarm.name for alarm in look(history)] == ["token_limit"]
    for step in range(4, 21):
        history.add(step, {"completions/clipped_ratio": 1.0, "frac_reward_zero_std": 1.0})
    named = {alarm.name: alarm for alarm in look(history)}
    assert named.keys() == {"token_limit", "no_signal"}
    assert "clipped_ratio" in named["no_signal"].cause


def test_no_signal_says_what_the_success_rate_predicts() -> None:
    hard = replace(SICK["no_signal"], skill=flat(-4.6), difficulty=0.0)
    (alarm,) = alarms_of(hard, steps=5)
    predicted = expected_without_signal(alarm.numbers["p"], 8)
    assert alarm.numbers["expected"] == pytest.approx(predicted, abs=0.02)
    assert alarm.numbers["share"] == pytest.approx(0.92, abs=0.08)
    assert "too hard" in alarm.cause
    assert "difficulty" in alarm.change


def test_no_signal_of_tasks_that_are_always_or_never_solved() -> None:
    split = replace(SICK["no_signal"], skill=flat(0.0), difficulty=30.0)
    alarm = alarms_of(split, steps=5)[0]
    assert alarm.name == "no_signal"
    assert "always solved or never" in alarm.cause


def test_a_gate_that_fails_for_all_is_named() -> None:
    """F14."""
    assert "'polite'" in next(iter(alarms_of(SICK["gate:polite"], steps=5))).seen


def test_a_falling_share_of_malformed_calls_is_no_alarm() -> None:
    learning = replace(HEALTHY, malformed=ramp(0.9, 0.05, 40))
    assert alarms_of(learning, steps=50) == []


def test_masked_names_the_class_that_failed_most() -> None:
    (alarm,) = alarms_of(replace(HEALTHY, masked=flat(0.3), masked_by="simulator"), steps=6)
    assert alarm.name == "masked"
    assert "simulator" in alarm.cause
    assert alarm.numbers["simulator"] == pytest.approx(0.3, abs=0.1)


def test_masked_counts_failures_whatever_is_left_out_on_purpose() -> None:
    on_purpose = {"masked": 0.55, "masked__truncated": 0.40}
    (alarm,) = look(history_of(10, masked__judge=0.10, masked__stale=0.05, **on_purpose))
    assert alarm.name == "masked"
    assert alarm.numbers["share"] == pytest.approx(0.15)
    assert alarm.seen.startswith("15% (")
    assert "(judge 10%, stale 5%)" in alarm.seen
    assert look(history_of(10, **on_purpose)) == []


@pytest.mark.parametrize("name", ["malformed", "gates__polite"])
def test_a_share_that_is_no_longer_known_is_no_alarm(name: str) -> None:
    """Few groups are looked at for 40 steps; in the last ones nobody could be judged."""
    history = RunHistory()
    for step in range(1, 36):
        judged = {OURS + name.replace("__", "/"): 0.95} if step <= 20 else {}
        history.add(step, {OURS + "groups": 1.0, OURS + "masked/env": 0.0, **judged})
        look(history)
    assert history.share(name.replace("__", "/")) is not None
    assert look(history) == []


@pytest.mark.parametrize("name", ["turn_cap", "token_limit"])
def test_limits_are_the_published_ones(name: str) -> None:
    thresholds = Thresholds()
    assert (thresholds.turn_cap, thresholds.token_limit) == (0.10, 0.05)
    below = {"turn_cap": "turn_cap_unanswered", "token_limit": "cut_off"}[name]
    limit = getattr(thresholds, name)
    for share, expected in ((limit * 0.9, []), (limit * 1.6, [name])):
        history = RunHistory()
        for step in range(1, 11):
            history.add(step, {OURS + below: share, OURS + "groups": 64.0})
        assert [alarm.name for alarm in look(history)] == expected


def test_few_groups_are_seen_for_longer() -> None:
    alone = replace(SICK["gate:polite"], per_step=1, group_size=4)
    raised = alarms_of(alone, steps=45, until="gate:polite")
    assert {alarm.name for alarm in raised} == {"gate:polite"}
    assert 30 < raised[0].step <= 40


def test_groups_of_two_are_equal_by_chance_and_a_larger_size_is_named() -> None:
    pairs = replace(SICK["no_signal"], skill=flat(1.3), difficulty=0.0, group_size=2, per_step=64)
    (alarm,) = alarms_of(pairs, steps=8)
    assert alarm.name == "no_signal"
    assert "groups of 2 are that often equal by chance" in alarm.cause
    assert alarm.change.startswith("group_size = 4, of which ")


def history_of(steps: int, **values: float | Callable[[int], float]) -> RunHistory:
    """A history of our own metrics, `masked__rows` for `masked/rows`; 64 groups a step."""
    history = RunHistory()
    for step in range(1, steps + 1):
        logged = {n: v(step) if callable(v) else v for n, v in values.items()}
        named = {OURS + name.replace("__", "/"): value for name, value in logged.items()}
        history.add(step, {OURS + "groups": 64.0, **named})
    return history


def test_two_rollouts_that_say_the_same_lack_no_variety() -> None:
    assert look(history_of(10, group_size=2, groups_identical=0.45)) == []
    names = [a.name for a in look(history_of(10, group_size=8, groups_identical=0.45))]
    assert names == ["identical_rollouts"]
    names = [a.name for a in look(history_of(10, group_size=2, groups_identical=0.97))]
    assert names == ["identical_rollouts"]


def test_identical_rollouts_are_a_share_of_what_is_unsolved() -> None:
    alike = {"group_size": 4, "groups_identical": 0.5}
    assert look(history_of(10, **alike)) == []
    names = [a.name for a in look(history_of(10, groups_all_solved=0.4, **alike))]
    assert names == ["identical_rollouts"]


def test_rewards_that_are_no_numbers_are_not_blamed_on_the_sampler() -> None:
    (alarm,) = look(history_of(10, masked=0.3, masked__nonfinite=0.3))
    assert alarm.name == "masked"
    assert "rewards are NaN" in alarm.cause
    assert "float16" not in alarm.change


def test_what_ends_with_the_environments_words_is_not_cut_off() -> None:
    history = RunHistory()
    for step in range(1, 11):  # TRL takes each row for clipped that doesn't end in a stop token
        history.add(
            step,
            {"completions/clipped_ratio": 1.0, OURS + "cut_off": 0.0, OURS + "correct": 0.01,
             OURS + "groups_equal": 0.95, OURS + "group_size": 8.0, OURS + "groups": 16.0},
        )  # fmt: skip
    (alarm,) = look(history)
    assert alarm.name == "no_signal"
    assert "too hard" in alarm.cause


def test_unscored_groups_are_not_called_equal() -> None:
    raised = alarms_of(replace(HEALTHY, masked=flat(1.0)), steps=30, eval_every=100)
    assert [alarm.name for alarm in raised] == ["masked"]


def test_flat_for_want_of_signal_blames_no_learning_rate() -> None:
    values = {"groups_equal": 0.9, "correct": 0.02, "group_size": 8.0, "reward__max": 1.0}
    history = history_of(30, reward=lambda s: 0.02 + s % 2 / 1000, **values)
    alarms = {alarm.name: alarm for alarm in look(history)}
    assert alarms.keys() == {"no_signal", "flat"}
    assert "90% of groups have all rewards equal" in alarms["flat"].cause
    assert "from step 6 to 30" in alarms["flat"].seen


def test_help_names_every_alarm() -> None:
    from agentgym.cli import diagnose

    assert [name for name in ALARMS if name not in str(diagnose.__doc__)] == []


def test_a_slow_rise_is_no_standstill() -> None:
    slow = history_of(200, reward=lambda s: 0.2 + 0.0017 * s + 0.004 * (s % 3), reward__max=1.0)
    assert look(slow) == []
    stopped = history_of(
        200, reward=lambda s: 0.2 + 0.0017 * min(s, 140) + 0.004 * (s % 3), reward__max=1.0
    )
    assert [alarm.name for alarm in look(stopped)] == ["plateau"]


def test_no_success_in_a_few_groups_is_no_evidence() -> None:
    few = {"correct": 0.0, "groups_equal": 0.1}
    assert look(history_of(10, groups=2.0, **few)) == []
    assert [a.name for a in look(history_of(40, groups=2.0, **few))] == ["no_success"]


def test_length_needs_its_whole_interval_beyond_the_limit() -> None:
    def wild(step: int) -> float:
        return 40.0 if step <= 5 else (20.0, 60.0, 230.0)[step % 3]  # 2.6 times on average

    assert look(history_of(25, tokens=wild, reward=0.5)) == []
    long = history_of(25, tokens=lambda s: 40.0 + s % 2 if s <= 5 else 120.0, reward=0.5)
    assert [alarm.name for alarm in look(long)] == ["length_explosion"]


@pytest.mark.parametrize("seed", range(3))
def test_luck_in_a_long_run_is_no_collapse(seed: int) -> None:
    draw = random.Random(seed)
    history = RunHistory()
    for step in range(1, 1501):
        history.add(step, {"reward": min(max(draw.gauss(0.5, 0.25), 0), 1)})
        if step % 5 == 0:
            assert "collapse" not in [alarm.name for alarm in collapse(history)]


def real_collapse() -> Iterator[tuple[int, dict[str, Any]]]:
    lines = (REAL_COLLAPSE / "metrics.jsonl").read_text().splitlines()
    for values in map(json.loads, lines):
        yield values.pop("step"), values


def test_a_fall_in_the_first_steps_is_a_collapse() -> None:
    # The best of its windows of ten steps has one good step in it.
    history = RunHistory()
    for step, values in real_collapse():
        history.add(step, values)
        if found := [alarm for alarm in look(history) if alarm.name == "collapse"]:
            break
    assert history.now <= 7
    assert found[0].seen.startswith("the reward fell from 0.695 (step 1) to -0.5")
    assert found[0].numbers["fall_low"] > 0.1


def test_a_fall_of_held_out_success_is_a_collapse() -> None:
    history = RunHistory()
    history.add(1, {"reward": 0.5})
    scores = read_scores(REAL_COLLAPSE / "evaluations.jsonl")
    history.add_evaluation(scores[0])
    assert list(collapse(history)) == []
    history.add_evaluation(scores[1])
    (alarm,) = collapse(history)
    assert alarm.seen == "success on held-out tasks fell from 42% (step 0) to 0% (step 6)"
    history.add_evaluation(scores[0].model_copy(update={"step": 12}))
    assert list(collapse(history)) == []  # it is back


@pytest.mark.parametrize("seed", range(10))
def test_a_lucky_first_step_of_few_groups_is_no_collapse(seed: int) -> None:
    draw, history = random.Random(seed), RunHistory()
    for step in range(1, 40):
        groups = [draw.choice((0.02, 0.98)) for _ in range(3)]  # tasks are easy or hard
        rewards = [float(draw.random() < p) for p in groups for _ in range(8)]
        ends = {"reward/min": min(rewards), "reward/max": max(rewards), "groups": 3.0}
        history.add(step, {"reward/mean": sum(rewards) / 24, **ends})
        assert list(collapse(history)) == []


def test_luck_in_held_out_evaluations_is_no_collapse() -> None:
    for seed in range(20):
        draw, history = random.Random(seed), RunHistory()
        history.add(1, {"reward": 0.5})
        for step in range(20):
            tasks = {f"t{i}": (sum(draw.random() < 0.5 for _ in range(2)), 2) for i in range(16)}
            share = sum(solved for solved, _ in tasks.values()) / 32
            known = score_of(HEALTHY, step)
            history.add_evaluation(known.model_copy(update={"success": share, "tasks": tasks}))
            assert list(collapse(history)) == []


def test_collapse_names_the_steps_that_were_good() -> None:
    history = RunHistory()
    for step in range(10, 610, 10):  # traces of every tenth step
        history.add(step, {"reward": (0.9 if 200 < step <= 300 else 0.2) + step % 20 / 1000})
    (alarm,) = collapse(history)
    assert "(steps 210 to 300)" in alarm.seen


def test_no_name_reaches_the_terminal_raw() -> None:
    alarm = Alarm(name="gate:a\n\x1b[2J", step=1, seen="s", cause="c", change="d")
    assert alarm.text() == "gate:a\\n\\x1b[2J: s: c; try d"


RATES = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@given(rates=RATES, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_alarm_before_there_are_enough_steps(rates: list[float], seed: int) -> None:
    sick = Symptoms(cut_off=flat(rates[0]), gate=flat(rates[-1]), per_step=2, group_size=2)
    assert alarms_of(sick, steps=4, seed=seed) == []


LOGGED = st.sampled_from(
    sorted({name for _, values, _ in steps_of(HEALTHY, steps=2) for name in values})
)


@given(
    steps=st.lists(
        st.dictionaries(LOGGED, st.floats() | st.floats(0, 1) | st.integers(), max_size=8),
        min_size=5,
        max_size=30,
    ),
    kept=st.sets(LOGGED, max_size=12),
    window=st.sampled_from((4, 20)),
)
@settings(max_examples=60, deadline=None)
def test_looking_never_fails_whatever_was_logged(
    steps: list[dict[str, float]], kept: set[str], window: int
) -> None:
    history = RunHistory(Thresholds(min_steps=3, window=window, trend=10))
    for number, values in enumerate(steps, start=1):
        history.add(number, {**dict.fromkeys(kept, 0.5), **values})
        look(history)


@given(share=st.floats(0.0, 1.0), noise=st.floats(0.01, 0.2), seed=st.integers(0, 999))
@settings(max_examples=200, deadline=None)
def test_an_alarm_has_its_whole_interval_beyond_the_threshold(
    share: float, noise: float, seed: int
) -> None:
    draw, history = random.Random(seed), RunHistory()
    for step in range(1, 11):
        value = min(max(draw.gauss(share, noise), 0.0), 1.0)
        history.add(step, {OURS + "turn_cap_unanswered": value, OURS + "groups": 16.0})
    mean = sum(history.last("turn_cap_unanswered")) / 10
    raised = look(history)
    for alarm in raised:
        assert alarm.numbers["low"] >= 0.10
        assert alarm.numbers["low"] < mean
    if mean < 0.10:
        assert raised == []


def test_a_step_that_comes_again_takes_the_place_of_what_followed_it() -> None:
    history = RunHistory()
    for step, reward in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.9)):
        history.add(step, {"reward": reward})
    assert history.of("reward") == [0.1, 0.9]


def test_what_is_no_number_is_left_out_and_of_the_loss_it_is_kept_that_it_was_none() -> None:
    history = RunHistory()
    history.add(1, {"kl": None, "loss": float("nan"), "note": "text", "reward": 1})
    assert history.steps[0].values == {"reward": 1.0, "nonfinite/loss": 1.0}


def test_an_alarm_is_noted_once_also_over_a_resume(tmp_path) -> None:
    alarm = Alarm(name="masked", step=7, seen="s", cause="c", change="x", numbers={"share": 0.2})
    later = alarm.model_copy(update={"step": 9})
    book = AlarmBook(tmp_path / "alarms.jsonl")
    assert book.add([alarm, later]) == [alarm]
    with (tmp_path / "alarms.jsonl").open("a") as file:
        file.write('{"name": "torn')
    resumed = AlarmBook(tmp_path / "alarms.jsonl", done=8)
    assert resumed.alarms == [alarm]
    assert resumed.add([later]) == []


def test_thresholds_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="window=3 is less than min_steps=5"):
        Thresholds(window=3)


def test_expected_share_of_equal_groups_by_hand() -> None:
    # 0.99^8 + 0.01^8 = 0.92274; the table of the signal page has 1 - that = 8 %.
    assert expected_without_signal(0.01, 8) == pytest.approx(0.92274, abs=1e-5)
    assert 1 - expected_without_signal(0.2, 8) == pytest.approx(0.83, abs=0.005)
    assert 1 - expected_without_signal(0.5, 8) == pytest.approx(0.99, abs=0.005)


def test_expected_share_with_an_uncertain_rate_by_hand() -> None:
    # A rate that may be anything, Beta(1, 1): 2 · ∫ p² dp = 2/3 of the pairs are equal.
    assert all_equal(1, 1, 2) == pytest.approx(2 / 3)
    assert all_equal(1e6, 1e6, 8) == pytest.approx(2 / 256, rel=1e-3)


def test_task_by_task_prediction_sees_that_tasks_differ() -> None:
    split = replace(HEALTHY, skill=flat(0.0), difficulty=30.0, tasks=32, malformed=flat(0.0))
    *_, (_, metrics, _) = steps_of(split, steps=8)
    assert metrics[OURS + "groups_equal_expected"] < 0.1
    assert metrics[OURS + "groups_equal_expected_by_task"] > 0.7


@pytest.mark.thorough
def test_offline_parts_need_no_training_stack() -> None:
    code = (
        "import sys, agentgym.train.monitors, agentgym.train.metrics; "
        "assert not {'torch', 'trl', 'transformers', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_loss_that_is_no_number_is_told_at_once(name: str, value: float | None) -> None:
    """As it is logged while the run goes, and as a file has it (`null`)."""
    history = RunHistory()
    history.add(1, {"reward": 0.5, "loss": 0.1, "grad_norm": 0.2})
    assert look(history) == []
    history.add(2, {"reward": 0.5, "loss": 0.1, "grad_norm": 0.2, name: value})
    (alarm,) = look(history)
    assert alarm.name == "nonfinite_loss"
    assert alarm.numbers == {name: 1.0, "first_step": 2.0}


def test_a_step_without_a_loss_is_no_alarm() -> None:
    history = RunHistory()
    history.add(1, {"reward": 0.5})
    assert look(history) == []
