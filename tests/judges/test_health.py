"""What a judge does on a gold set, as figures: each against a judge whose faults are known."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Score
from agentgym.judges.episodes import episode_from_messages
from agentgym.judges.gold import GoldCase, GoldSet
from agentgym.judges.health import (
    HealthCheck,
    Judgement,
    Thresholds,
    check_judge,
    health_report,
    length_of,
)
from agentgym.judges.rubric_judge import RubricJudge
from agentgym.metering import charge
from agentgym.testing.gullible import GullibleJudge
from agentgym.types import Task, Usage, Verdict


def gold_of(*values: float, lengths=None) -> GoldSet:
    """One case a value, named by its number."""
    cases = []
    for number, value in enumerate(values):
        words = "x" * (lengths[number] if lengths else 10)
        episode = episode_from_messages(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": words}],
            task=Task(task_id=f"g/{number}", reference=value),
        )
        case = GoldCase(
            case_id=str(number), episode=episode, expected={"quality": value}, correct=value == 1.0
        )
        cases.append(case)
    return GoldSet(cases=tuple(cases))


class By:
    """Gives each episode the value that a function of its task's label and number says."""

    inline = True

    def __init__(self, function):
        self.function = function

    async def score(self, episode):
        number = int(episode.task.task_id.removeprefix("g/"))
        value = self.function(episode.task.reference, number)
        if isinstance(value, Exception):
            raise value
        return Score(total=value, components={"quality": value}, correct=value == 1.0)


def checked(judge, gold, **options):
    return asyncio.run(check_judge(judge, gold, **options))


def test_a_perfect_judge():
    report = checked(By(lambda label, n: label), gold_of(0, 1, 0, 1, 1))
    quality, correct = report.criteria["quality"], report.criteria["correct"]
    assert (quality.accuracy.count, quality.accuracy.n) == (5, 5)
    assert (quality.kappa, quality.mean_error, quality.spread) == (1.0, 0.0, 0.0)
    assert quality.length_bias is None  # no error, so none that could go with length
    assert correct.kappa == 1.0
    assert not quality.constant
    assert report.faults(Thresholds(min_accuracy=1.0, min_kappa=1.0, max_spread=0.0)) == ()
    assert (report.n_cases, report.repeats, report.failed.n) == (5, 3, 15)


def test_figures_of_a_judge_with_known_faults():
    """Labels 0 0 1 1, judged 0 1 1 1: 3 of 4 right, error +1/4.

    Kappa: p_o = 3/4, p_e = (2·1 + 2·3)/16 = 1/2, so (3/4 - 1/2)/(1/2) = 0.5.
    """
    report = checked(By(lambda label, n: float(n > 0)), gold_of(0, 0, 1, 1), repeats=1)
    quality = report.criteria["quality"]
    assert quality.accuracy.share == 0.75
    assert quality.kappa == pytest.approx(0.5)
    assert quality.mean_error == 0.25
    assert quality.spread is None
    assert report.faults(Thresholds(min_accuracy=0.8, min_kappa=0.6)) == (
        "quality: accuracy is 0.750, below 0.8",
        "quality: kappa is 0.500, below 0.6",
        "correct: accuracy is 0.750, below 0.8",
        "correct: kappa is 0.500, below 0.6",
    )


def test_repeats_do_not_pass_for_more_cases():
    gold = gold_of(0, 0, 1, 1)
    once = checked(By(lambda label, n: float(n > 0)), gold, repeats=1)
    often = checked(By(lambda label, n: float(n > 0)), gold, repeats=50)
    assert often.criteria["quality"].accuracy.interval == once.criteria["quality"].accuracy.interval


def test_a_judge_that_always_says_the_same_is_called_broken():
    report = checked(By(lambda label, n: 1.0), gold_of(0, 1, 0, 1))
    assert report.criteria["quality"].constant
    assert report.faults(Thresholds()) == (
        "quality: every judgement is the same",
        "correct: every judgement is the same",
    )
    assert not checked(By(lambda label, n: 1.0), gold_of(1, 1)).criteria["quality"].constant


def test_a_judge_that_favours_length_is_found_out():
    lengths = [10, 30, 100, 300, 1000, 3000, 10_000, 30_000]
    gold = gold_of(*[0, 1] * 4, lengths=lengths)
    biased = checked(By(lambda label, n: label + 0.04 * n), gold)
    bias = biased.criteria["quality"].length_bias
    assert bias is not None
    assert bias.low > 0.1
    (fault,) = (f for f in biased.faults(Thresholds(max_length_bias=0.3)) if "quality" in f)
    assert fault.startswith("quality: length bias is 0.")
    # As large a correlation that may be chance is no fault.
    few = checked(By(lambda label, n: label + n % 2), gold_of(0, 1, 0, 1, lengths=lengths[:4]))
    chance = few.criteria["quality"].length_bias
    assert chance is not None
    assert not chance.is_significant
    assert not [f for f in few.faults(Thresholds(max_length_bias=0.0)) if "length" in f]


def test_spread_and_flips_of_a_judge_that_wavers_on_one_case():
    """Case 0 gets 0, 1, 0: squares 2/3 over 2 + 2 degrees of freedom: sqrt(1/6) = 0.408."""
    flips = itertools.cycle([0.0, 1.0, 0.0])
    judge = By(lambda label, n: next(flips) if n == 0 else label)
    report = checked(judge, gold_of(0, 1), concurrency=1)
    quality = report.criteria["quality"]
    assert quality.spread == pytest.approx((1 / 6) ** 0.5)
    assert (quality.flips.count, quality.flips.n) == (1, 2)
    assert quality.accuracy.count == pytest.approx(2 / 3 + 1)
    assert "quality: spread is 0.408, above 0.2" in report.faults(Thresholds(max_spread=0.2))


def test_failed_judgements_are_counted_and_in_no_other_figure():
    judge = By(lambda label, n: JudgeError("no JSON in it") if n == 0 else label)
    report = checked(judge, gold_of(0, 1, 0), repeats=2)
    assert (report.failed.count, report.failed.n) == (2, 6)
    assert report.reasons == {"no JSON in it": 2}
    assert report.criteria["quality"].accuracy.n == 2
    assert report.faults(Thresholds(max_failed=0.3)) == ("failed judgements is 0.333, above 0.3",)


def test_a_judge_that_never_answers_is_a_fault_without_any_threshold():
    report = checked(By(lambda label, n: JudgeError("down")), gold_of(0, 1))
    assert report.faults(Thresholds()) == ("no judgement succeeded",)
    assert report.criteria["quality"].kappa is None
    assert "quality: kappa can't be told; at least 0.5 is asked for" in report.faults(
        Thresholds(min_kappa=0.5)
    )


def test_judges_that_must_be_asked_again_are_counted():
    """A retry of the transport is no second question."""

    class Metered(By):
        async def score(self, episode):
            retries = int(episode.task.task_id == "g/1")
            charge("judge", Usage(retries=retries, calls=1 + retries))
            if episode.task.task_id == "g/0":
                charge("judge", Usage())
            return await super().score(episode)

    report = checked(Metered(lambda label, n: label), gold_of(0, 1, 0, 1), repeats=1)
    assert (report.reasked.count, report.reasked.n) == (1, 4)
    assert report.spent["judge"].calls == 6


def test_another_order_of_the_criteria_that_changes_values_is_told():
    gold = gold_of(0, 1, 0, 1)
    check = HealthCheck(
        By(lambda label, n: label),
        gold,
        repeats=2,
        reordered=By(lambda label, n: 1.0 - label if n < 3 else label),
    )
    report = asyncio.run(check.run())
    moved = report.criteria["quality"].moved
    assert (moved.count, moved.n) == (3, 4)
    assert report.criteria["quality"].accuracy.share == 1.0  # the other order is not mixed in
    assert (report.repeats, check.total) == (2, 12)


def test_latencies_by_the_clock_given():
    """Taking 1, 2, …, 20 s: the median is the 10th value, the 95th percentile the 19th."""
    ticks = iter(range(1000))
    durations = iter(range(1, 21))
    now = [0.0]

    def clock():
        if next(ticks) % 2:
            now[0] += next(durations)
        return now[0]

    check = HealthCheck(
        By(lambda label, n: label), gold_of(*[0, 1] * 10), repeats=1, concurrency=1, clock=clock
    )
    report = asyncio.run(check.run())
    assert (report.median_latency_s, report.p95_latency_s) == (10.0, 19.0)


def test_the_shipped_set_shows_up_a_judge_that_gives_nothing():
    """Every transcript of the set goes through a real `RubricJudge`."""
    client = GullibleJudge(echo="none")
    gold = GoldSet.shipped()
    report = checked(RubricJudge(client), gold, repeats=1)
    assert report.failed.count == 0
    assert report.spent["judge"].calls == len(gold)
    assert "task_solved: every judgement is the same" in report.faults(Thresholds())


def test_what_is_labelled_or_given_on_one_side_only_is_in_no_figure():
    gold = gold_of(0, 1)
    judgements = [
        Judgement(
            case_id=case.case_id,
            repeat=0,
            verdict=Verdict(reward=0.0, components={"quality": 0.0, "other": 1.0}),
            latency_s=0.1,
        )
        for case in gold.cases
    ]
    report = health_report(gold, judgements)
    assert set(report.criteria) == {"quality"}
    assert not [fault for fault in report.faults(Thresholds(min_kappa=0)) if "told" in fault]


def test_length_counts_calls_and_results():
    short, long = gold_of(0).episodes[0], gold_of(0, lengths=[500]).episodes[0]
    assert length_of(long) == length_of(short) + 490


@pytest.mark.parametrize("options", [{"repeats": 0}, {"concurrency": 0}, {"tolerance": -1.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="must be at least 1"):
        HealthCheck(By(float), gold_of(0, 1), **options)
