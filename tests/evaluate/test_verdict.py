from __future__ import annotations

from dataclasses import replace

import pytest
from base_runs import BaseRun, always, beta

from agentgym.errors import ConfigError, DataError
from agentgym.evaluate.base_episodes import BaseEpisode
from agentgym.evaluate.determinism import Determinism, Differing
from agentgym.evaluate.finding import Finding
from agentgym.evaluate.signal_findings import reward_above_evaluation
from agentgym.evaluate.verdict import TrainingVerdict, training_verdict
from agentgym.judges.health import CriterionHealth, HealthReport
from agentgym.statistics.means import Proportion

GOOD = BaseRun()
DIFFERS = Determinism(
    compared=50,
    differing=1,
    examples=(Differing(task_id="task/0", after="now()", first="12:00", second="12:01"),),
)


def finding(found: TrainingVerdict, name: str) -> Finding:
    return next(each for each in found.findings if each.name == name)


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_base_is_to_be_trained(seed: int) -> None:
    found = training_verdict(replace(GOOD, seed=seed).episodes())
    assert found.conclusion == "train"
    assert found.changes == ()
    assert found.more_tasks is None
    assert "are expected to be informative" in " ".join(found.because)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (replace(GOOD, capped=0.25), "turn_cap"),
        (replace(GOOD, cut_off=0.15), "token_limit"),
        (replace(GOOD, malformed=0.8), "malformed"),
        (replace(GOOD, rate=always(0.0), malformed=0.9), "malformed"),
        (replace(GOOD, rate=beta(0.3, 0.3), copies=True), "variety"),
        (replace(GOOD, hacked=0.02), "reward_above_evaluation"),
    ],
)
def test_what_is_in_the_way_is_fixed_first_and_named(run: BaseRun, name: str) -> None:
    found = training_verdict(run.episodes())
    assert found.conclusion == "fix_first"
    assert next(each.name for each in found.findings if each.status == "alarm") == name
    assert finding(found, name).said in found.because
    assert finding(found, name).change in found.changes


def test_an_environment_that_does_not_repeat_itself_is_fixed_first() -> None:
    found = training_verdict(GOOD.episodes(), repeats=DIFFERS)
    assert found.conclusion == "fix_first"
    assert "'now()'" in found.because[0]
    assert "'12:01'" in found.because[0]


def test_a_base_at_zero_means_simpler_tasks() -> None:
    found = training_verdict(replace(GOOD, rate=always(0.0)).episodes())
    assert found.conclusion == "simplify"
    assert finding(found, "success").status == finding(found, "signal").status == "alarm"


def test_rare_success_means_simpler_tasks_by_the_groups_and_not_by_a_band() -> None:
    found = training_verdict(replace(GOOD, rate=beta(0.2, 9.8), tasks=120).episodes())
    assert found.conclusion == "simplify"
    assert finding(found, "success").status == "ok"
    assert "easier tasks" in found.changes[0]


def test_partial_credit_is_signal_too_but_not_without_any_success() -> None:
    rare = replace(GOOD, rate=beta(0.2, 9.8), tasks=120, capped=0.0).episodes()
    graded = [
        e.model_copy(update={"reward": 1.0 if e.correct else (i % 5) / 10})
        for i, e in enumerate(rare)
    ]
    assert training_verdict(rare).conclusion == "simplify"
    assert training_verdict(graded).conclusion == "train"
    assert "by reward, 100% (97% to 100%) of the groups of 8" in training_verdict(graded).because[1]
    half = [e for i, e in enumerate(graded) if i % 8 < 3]
    assert "groups of 3 that these episodes give" in training_verdict(half).because[1]
    hopeless = [e.model_copy(update={"correct": False, "score": 0.0}) for e in graded]
    assert training_verdict(hopeless).conclusion in ("simplify", "fix_first")
    assert finding(training_verdict(hopeless), "success").status == "alarm"


def test_solved_tasks_are_too_easy() -> None:
    found = training_verdict(replace(GOOD, rate=beta(99, 1), capped=0.0, tasks=100).episodes())
    assert found.conclusion == "too_easy"
    assert found.changes[0] == "harder tasks"


def test_penalties_on_solved_tasks_do_not_make_them_worth_training() -> None:
    solved = replace(GOOD, rate=beta(99, 1), capped=0.0, tasks=100).episodes()
    untidy = [
        e.model_copy(update={"reward": e.reward - (i % 3) / 10 if e.reward is not None else None})
        for i, e in enumerate(solved)
    ]
    assert training_verdict(untidy).conclusion == "too_easy"


def test_tasks_always_or_never_solved_are_not_called_easy_or_hard() -> None:
    apart = replace(GOOD, rate=lambda rng: float(rng.random() < 0.6), capped=0.0)
    found = training_verdict(apart.episodes())
    assert found.conclusion == "simplify"
    assert "tasks in between" in found.changes[0]
    assert any(caveat.startswith("tasks differ") for caveat in found.caveats)


def test_a_reward_that_never_varies_is_an_alarm_after_a_hundred_episodes() -> None:
    few = [episode(task, correct=False, reward=0.5) for task in range(25) for _ in range(2)]
    many = [episode(task, correct=False, reward=0.5) for task in range(50) for _ in range(2)]
    assert finding(training_verdict(few), "reward_varies").status == "unclear"
    assert finding(training_verdict(many), "reward_varies").status == "alarm"
    assert training_verdict(many).conclusion == "simplify"


def episode(
    task: int, *, correct: bool, reward: float = 0.0, before: bool | None = None
) -> BaseEpisode:
    return BaseEpisode(
        task_id=f"t{task}",
        reward=reward,
        correct=correct,
        completed=True,
        cut_off=False,
        correct_before=before,
    )


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        ([(1.0, 1.0), (0.7, 0.0), (0.4, 0.0)], 0),  # partial credit under a yes-or-no evaluation
        ([(1.0, 1.0), (0.7, 1.0), (0.7, 0.0), (0.9, 0.0)], 1),  # the solved are paid 0.85
        ([(0.9, 0.0), (1.3, 0.0)], 1),  # none solved: the top of the scale
        ([(0.7, 0.5), (0.5, 0.5), (0.2, 0.5)], 1),  # a graded evaluation: as it stands
        ([(1.3, 1.0), (0.1, 0.5)], 0),  # a bonus for what is solved
    ],
)
def test_a_reward_above_the_evaluation_is_counted(
    pairs: list[tuple[float, float]], count: int
) -> None:
    episodes = [
        episode(task, correct=score == 1.0, reward=reward).model_copy(update={"score": score})
        for task, (reward, score) in enumerate(pairs)
    ]
    found = reward_above_evaluation(episodes)
    assert found.numbers["count"] == count
    assert found.status == ("alarm" if count else "ok")


def test_what_is_accepted_decides_nothing_and_is_still_said() -> None:
    episodes = replace(GOOD, hacked=0.02).episodes()
    assert training_verdict(episodes).conclusion == "fix_first"
    found = training_verdict(episodes, accept=["reward_above_evaluation"])
    assert found.conclusion == "train"
    assert finding(found, "reward_above_evaluation").status == "alarm"
    assert any(caveat.startswith("accepted: ") for caveat in found.caveats)
    with pytest.raises(ConfigError, match="did you mean 'turn_cap'"):
        training_verdict(episodes, accept=["turn_caps"])
    with pytest.raises(ConfigError, match="unknown finding to accept 'success'"):
        training_verdict(episodes, accept=["success"])


# --- borderline, and too little ------------------------------------------------------------------


def test_too_few_episodes_say_how_many_more_and_that_many_would_do() -> None:
    run = replace(GOOD, tasks=8, rate=beta(8, 12))
    found = training_verdict(run.episodes())
    assert found.conclusion == "undecided"
    assert "64 scored episodes of the 100" in found.because[-1]
    assert found.more_tasks is not None
    enough = replace(run, tasks=8 + found.more_tasks)
    assert training_verdict(enough.episodes()).conclusion == "train"


def test_tasks_played_once_are_undecided_and_more_of_the_same_would_not_tell() -> None:
    found = training_verdict(replace(GOOD, samples=1, tasks=400, capped=0.0).episodes())
    assert found.conclusion == "undecided"
    assert found.more_tasks is None
    assert "every task was played once" in " ".join(found.because)


def test_a_share_near_its_limit_shows_the_interval_and_decides_nothing() -> None:
    # 12 % of 200 hit the cap: above 10 %, and 8 % is just as possible.
    episodes = replace(GOOD, tasks=100, samples=2, capped=0.0, rate=beta(5, 5)).episodes()
    capped = [
        e.model_copy(update={"unanswered_at_cap": i % 25 in (0, 8, 17), "completed": False})
        for i, e in enumerate(episodes)
    ]
    found = training_verdict(capped)
    seen = finding(found, "turn_cap")
    assert seen.status == "unclear"
    assert seen.numbers["low"] < 0.10 < seen.numbers["share"]
    assert found.conclusion == "undecided"
    assert f"{seen.said}: too few to tell" in found.because
    assert seen.more_tasks is not None


def test_a_limit_that_is_possible_and_not_likely_is_a_caveat() -> None:
    # None of 480, on 60 tasks: 6 % is possible, and nothing was seen.
    found = training_verdict(GOOD.episodes())
    assert finding(found, "token_limit").status == "unclear"
    assert found.conclusion == "train"
    assert any(caveat.startswith("token_limit") for caveat in found.caveats)


def test_evidence_against_needs_no_hundred_episodes() -> None:
    run = replace(GOOD, tasks=10, samples=3, malformed=1.0)
    assert training_verdict(run.episodes()).conclusion == "fix_first"


def test_wanting_more_informative_groups_is_the_users_choice() -> None:
    run = replace(GOOD, rate=beta(0.6, 1.4), tasks=200)
    assert training_verdict(run.episodes(), min_informative=0.4).conclusion == "train"
    assert training_verdict(run.episodes(), min_informative=0.95).conclusion == "simplify"


def test_larger_groups_are_informative_more_often() -> None:
    episodes = replace(GOOD, rate=beta(1, 9)).episodes()
    shares = [
        training_verdict(episodes, group_size=size).forecast.share  # type: ignore[union-attr]
        for size in (2, 8, 32)
    ]
    assert shares == sorted(shares)


# --- the others that are asked -------------------------------------------------------------------


def test_a_reference_that_solves_more_shows_what_there_is_to_gain() -> None:
    strong = replace(GOOD, rate=always(0.9), seed=1).episodes()
    found = finding(training_verdict(GOOD.episodes(), reference=strong), "ceiling")
    assert found.status == "ok"
    assert found.numbers["gap"] == pytest.approx(0.5, abs=0.1)
    assert found.numbers["low"] > 0


def test_tasks_that_nobody_solves_are_fixed_first() -> None:
    nobody = replace(GOOD, rate=always(0.0)).episodes()
    found = training_verdict(nobody, reference=nobody)
    assert found.conclusion == "fix_first"
    assert "no model has been seen to solve these tasks" in found.changes[0]


def test_a_weaker_reference_is_no_ceiling() -> None:
    weak = replace(GOOD, rate=always(0.1), seed=1).episodes()
    found = finding(training_verdict(GOOD.episodes(), reference=weak), "ceiling")
    assert found.status == "note"
    assert "no ceiling" in found.said


def test_a_reference_on_other_tasks_measures_nothing() -> None:
    other = replace(GOOD, family="other").episodes()
    assert finding(training_verdict(GOOD.episodes(), reference=other), "ceiling").status == (
        "not_measured"
    )


def health(*, constant: bool) -> HealthReport:
    criterion = CriterionHealth(
        accuracy=Proportion(count=18, n=20),
        kappa=0.8,
        mean_error=0.0,
        length_bias=None,
        spread=0.0,
        flips=Proportion(count=0, n=20),
        moved=Proportion(count=0, n=0),
        constant=constant,
    )
    return HealthReport(
        n_cases=20,
        repeats=1,
        criteria={"helpful": criterion},
        failed=Proportion(count=0, n=20),
        reasked=Proportion(count=0, n=20),
        median_latency_s=1.0,
        p95_latency_s=2.0,
    )


def test_a_judge_is_reported_with_its_gold_set_and_a_broken_one_is_fixed_first() -> None:
    fine = training_verdict(GOOD.episodes(), health=health(constant=False))
    assert fine.conclusion == "train"
    assert "helpful is right in 90%" in finding(fine, "judge").said
    for broken in (
        training_verdict(GOOD.episodes(), health=health(constant=True)),
        training_verdict(GOOD.episodes(), health=health(constant=False), faults=("kappa",)),
    ):
        assert broken.conclusion == "fix_first"
        assert "not good enough" in finding(broken, "judge").said


def test_judging_again_says_how_two_judgements_agree() -> None:
    episodes = [episode(t, correct=t < 10, before=t < 12) for t in range(40)]
    said = finding(training_verdict(episodes), "judge")
    assert said.numbers["agreement"] == pytest.approx(38 / 40)
    # Po = .95, both "solved" with .25 and .3: Pe = .075 + .525; kappa = .35/.4.
    assert "kappa 0.88" in said.said or "kappa 0.87" in said.said


def test_nothing_scored_is_an_error_and_masked_episodes_are_listed() -> None:
    with pytest.raises(DataError, match="none of 480 episodes has a score"):
        training_verdict(replace(GOOD, masked=1.0).episodes())
    some = training_verdict(replace(GOOD, masked=0.1).episodes())
    assert some.n_scored < some.n_episodes == 480
    assert "no score (judge" in finding(some, "unscored").said


def test_a_mix_names_the_kinds_that_are_solved_at_times_and_the_envs_own_parameters() -> None:
    hard = [
        each
        for family in ("a", "b", "c", "d", "e")
        for each in replace(GOOD, rate=always(0.0), family=family, capped=0.0).episodes()
    ]
    useful = replace(GOOD, rate=always(0.3), family="f", tasks=8, capped=0.0).episodes()
    spec = '{"id": "agentgym/WebShop-v0", "kwargs": {"difficulty": "hard"}}'
    found = training_verdict([*hard, *useful], env_spec=spec)
    assert found.conclusion == "simplify"
    assert any("env_kwargs.difficulty, which is hard now" in each for each in found.changes)
    assert any("f (" in each for each in found.changes)
    rows = {row.value: row for row in found.kinds}
    assert rows["a"].success.mean == 0
    assert rows["f"].informative > 0.7 > 0.1 > rows["a"].informative


# --- sentences that follow from the figures ------------------------------------------------------


def played(
    tasks: int, samples: int, *, correct: bool | None, reward: float = 0.0, **facts: object
) -> list[BaseEpisode]:
    return [
        episode(task, correct=True, reward=reward).model_copy(
            update={"correct": correct, "said": f"{task}/{sample}", **facts}
        )
        for task in range(tasks)
        for sample in range(samples)
    ]


def test_one_or_two_episodes_pass_no_limit() -> None:
    for tasks in (1, 2, 3):
        cut = played(1, 1, correct=True, reward=1.0, cut_off=True)
        cut += [e.model_copy(update={"task_id": f"other{t}"}) for t in range(tasks - 1)
                for e in played(1, 1, correct=True, reward=1.0)]  # fmt: skip
        found = training_verdict(cut)
        assert finding(found, "token_limit").status == "unclear"
        assert found.conclusion == "undecided"


def test_a_hundred_episodes_of_one_task_say_nothing_of_the_others() -> None:
    found = training_verdict(played(1, 128, correct=False))
    assert found.conclusion == "undecided"
    assert finding(found, "success").status == finding(found, "reward_varies").status == "unclear"
    assert "on 1 task solve" in finding(found, "success").said
    assert found.more_tasks is not None
    more = played(1 + found.more_tasks, 128, correct=False)
    assert training_verdict(more).conclusion == "simplify"


def test_a_reward_that_is_blind_to_success_is_mended_and_not_the_tasks() -> None:
    half = [
        e.model_copy(update={"correct": i % 2 == 0})
        for i, e in enumerate(played(50, 4, correct=True, reward=0.5))
    ]
    for episodes in (half, played(50, 4, correct=None, reward=0.5)):
        found = training_verdict(episodes)
        assert found.conclusion == "fix_first"
        assert found.changes[0] == "the reward: it is the same whatever the policy does"


def test_solved_tasks_are_never_to_be_made_easier() -> None:
    found = training_verdict(played(50, 4, correct=True, reward=1.0))
    assert found.conclusion == "too_easy"
    assert found.changes == ("harder tasks",)


def test_rewards_without_success_are_shown_and_more_of_them_would_not_tell() -> None:
    episodes = [
        e.model_copy(update={"reward": (i % 5) / 5})
        for i, e in enumerate(played(100, 8, correct=None))
    ]
    found = training_verdict(episodes)
    assert found.conclusion == "undecided"
    assert found.more_tasks is None
    assert "by reward, 100% (96% to 100%) of the groups of 8" in " ".join(found.because)
    assert "too few" not in " ".join(found.because)
    assert "--score" in found.changes[0]


def test_failed_episodes_that_are_paid_more_than_solved_ones_are_found_below_zero_too() -> None:
    episodes = [
        e.model_copy(update={"correct": solved, "score": float(solved), "reward": reward})
        for i, e in enumerate(played(50, 4, correct=True))
        for solved, reward in [((True, -0.5), (False, -0.1))[i % 2]]
    ]
    found = training_verdict(episodes)
    assert found.conclusion == "fix_first"
    assert "100 of 100 episodes that fail the external evaluation" in found.because[0]


def test_an_evaluation_that_nothing_fails_says_so() -> None:
    said = reward_above_evaluation(played(50, 4, correct=True, reward=1.0, score=1.0)).said
    assert said == "none of 200 episodes fails the external evaluation"


def test_rewards_that_differ_in_their_last_bits_are_the_same() -> None:
    episodes = [
        e.model_copy(update={"reward": (0.3, 0.1 + 0.2)[i % 2]})
        for i, e in enumerate(played(50, 4, correct=False))
    ]
    found = training_verdict(episodes)
    assert "1 different reward over 200 episodes" in finding(found, "reward_varies").said
    assert found.findings[-2].numbers["by_reward"] == 0


def test_tasks_that_only_the_policy_itself_solves_are_not_hopeless() -> None:
    strong = played(2, 1, correct=False)
    assert training_verdict(GOOD.episodes(), reference=strong).conclusion == "train"
    few = training_verdict(played(50, 4, correct=False), reference=strong)
    assert finding(few, "ceiling").status == "note"


def test_tasks_played_once_are_not_said_to_differ() -> None:
    once = [
        e.model_copy(update={"correct": i % 5 == 0, "reward": float(i % 5 == 0)})
        for i, e in enumerate(played(200, 1, correct=True))
    ]
    found = training_verdict(once)
    assert found.forecast is not None
    assert found.forecast.share < found.forecast.at_mean - 0.1
    assert not any(caveat.startswith("tasks differ") for caveat in found.caveats)


def test_what_is_unclear_without_an_interval_is_not_said_to_have_one() -> None:
    caveats = training_verdict(played(6, 1, correct=False)).caveats
    assert "reward_varies: too few for its rule; 94 more tasks would tell" in caveats
    assert "success: too few for its rule; 94 more tasks would tell" in caveats


def test_a_part_that_is_mostly_unscored_is_told_beside_the_answer() -> None:
    found = training_verdict(replace(GOOD, masked=0.5, tasks=100).episodes())
    assert found.conclusion == "train"
    assert any("episodes have no score (judge" in caveat for caveat in found.caveats)


def test_a_group_by_reward_says_of_how_many_tasks_it_is() -> None:
    episodes = [e for i, e in enumerate(GOOD.episodes()) if i % 8 < 4 or i >= 240]
    said = finding(training_verdict(episodes), "signal").said
    assert "groups of 4 that these episodes give are not all equal, and larger" in said
    fewer = [e for i, e in enumerate(GOOD.episodes()) if i % 8 < 2 or i < 320]
    said = finding(training_verdict(fewer), "signal").said
    assert "groups of 8 that these episodes give are not all equal (the 40 tasks" in said


def test_kinds_with_one_task_show_that_nearly_all_is_possible() -> None:
    episodes = [
        e.model_copy(update={"kinds": {"family": f"f{e.task_id}"}})
        for e in played(6, 1, correct=False)
    ]
    for row in training_verdict(episodes).kinds:
        assert row.informative_low < 0.1
        assert row.informative_high > 0.9
