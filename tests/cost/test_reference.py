"""The reference run, figure by figure, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from agentgym.cost.plan import make_plan, other_reading
from agentgym.cost.reading import prompt_tokens, transcript
from agentgym.cost.turns import expected
from agentgym.cost.workload import Workload
from agentgym.cost.workload_file import REFERENCE, read_workload
from agentgym.price_book import PriceBook


@pytest.fixture
def book():
    return PriceBook.load()


@pytest.fixture
def plan(book):
    return make_plan(read_workload(REFERENCE), book)


@pytest.fixture
def popular(plan):
    """The same, with the judge charged for the sum of the policy's prompts."""
    return other_reading(plan, "judge")


def test_episodes(plan):
    assert plan.workload.episodes_per_step == 1_024
    assert plan.workload.episodes == 512_000


def test_prompts_grow_by_turn(plan):
    assert [row.prompt for row in plan.turn_rows] == [2000, 2800, 3600, 4400, 5200]
    assert [row.read_so_far for row in plan.turn_rows][-1] == 18_000
    assert [row.prompt - row.repeated for row in plan.turn_rows] == [2000, 800, 800, 800, 800]


def test_policy_tokens_per_episode_step_and_run(plan):
    per_episode = plan.role("policy").per_episode
    assert per_episode.input_tokens == 18_000
    assert per_episode.times(1_024).input_tokens == 18_432_000
    assert per_episode.times(512_000).input_tokens == 9_216_000_000
    assert per_episode.times(1_024).output_tokens == 2_048_000  # trainable
    assert per_episode.times(1_024).calls == 1_024 * 5


def test_policy_s_best_hit_rate(plan):
    assert plan.role("policy").best_hit_rate == pytest.approx(1 - 5_200 / 18_000)
    assert f"{plan.role('policy').best_hit_rate:.0%}" == "71%"


def test_calls_of_simulator_and_judge(plan):
    simulator = plan.role("simulator").per_episode.times(512_000)
    judge = plan.role("judge").per_episode.times(512_000)
    assert (simulator.calls, judge.calls) == (2_048_000, 512_000)
    assert (simulator.input_tokens / simulator.calls, simulator.output_tokens) == (
        1_500,
        2_048_000 * 400,
    )
    assert judge.output_tokens == 512_000 * 128


def test_simulator_bill(plan):
    bill = plan.role("simulator").usd(512_000)
    assert bill.input == pytest.approx(184.32)
    assert bill.output == pytest.approx(327.68)
    assert bill.total == pytest.approx(512.00)
    assert bill.output / bill.total == pytest.approx(0.640)


def test_simulator_input_if_every_token_were_cached(plan):
    cached = plan.role("simulator").per_episode.with_hits(1.0).times(512_000)
    assert cached.usd(plan.role("simulator").prices).input == pytest.approx(30.72)


def test_judge_charged_for_prompts(popular):
    bill = popular.role("judge").usd(512_000)
    assert popular.role("judge").per_episode.input_tokens == 18_000
    assert bill.input == pytest.approx(737.28)
    assert round(bill.output, 2) == 11.80
    assert round(bill.total, 2) == 749.08
    assert round(bill.input / bill.total, 3) == 0.984


def test_popular_sum(popular):
    assert round(popular.total_usd, 2) == 1_261.08
    priced = [popular.role(name).per_episode for name in ("simulator", "judge")]
    tokens = 512_000 * sum(one.input_tokens + one.output_tokens for one in priced)
    assert round(tokens / 1e9, 2) == 13.17


def test_judge_charged_for_the_transcript(plan):
    tokens = plan.workload.tokens
    assert transcript(tokens, 5) == 2_000 + 5 * 400 + 4 * 400 == 5_600
    bill = plan.role("judge").usd(512_000)
    assert plan.role("judge").per_episode.input_tokens == 5_600
    assert round(bill.input, 2) == 229.38
    assert round(plan.total_usd) == 753


def test_what_dominates(plan, popular):
    assert [(part.role, part.what) for part in plan.parts][:2] == [
        ("simulator", "output"),
        ("judge", "input"),
    ]
    assert (popular.parts[0].role, popular.parts[0].what) == ("judge", "input")
    assert sum(part.usd for part in plan.parts) == pytest.approx(plan.total_usd)


def test_policy_without_a_price_is_named_and_not_free(plan):
    # Case I05: unknown is not $0.
    assert plan.unpriced == ("policy",)
    assert plan.usd("policy") is None


def test_a_random_number_of_turns_needs_its_second_moment(book):
    """Two turns or eight, five on average: by hand, and by E[T] and E[T²]."""
    tables = read_workload(REFERENCE).model_dump()
    tables["turns"] = {"kind": "histogram", "counts": {2: 50, 8: 50}}
    workload = Workload.model_validate(tables)
    plan = make_plan(workload, book)
    two = 2_000 + 2_800
    eight = sum(prompt_tokens(workload.tokens, turn) for turn in range(8))
    assert eight == 8 * 2_000 + 800 * 28
    assert plan.role("policy").per_episode.input_tokens == (two + eight) / 2 == 21_600
    outcomes = workload.turns.outcomes
    first = expected(outcomes, lambda turns: turns)
    second = expected(outcomes, lambda turns: turns**2)
    assert first * 2_000 + 800 * (second - first) / 2 == 21_600
    assert plan.role("judge").per_episode.input_tokens == 5_600  # linear: the mean is enough


def test_simulator_that_hears_the_conversation(book):
    """A user simulator that reads the conversation at each of its four replies."""
    tables = read_workload(REFERENCE).model_dump()
    tables["roles"]["simulator"] |= {"reads": "transcript", "input_tokens": 100}
    volume = make_plan(Workload.model_validate(tables), book).role("simulator").per_episode
    heard = [2_400, 3_200, 4_000, 4_800]  # setup, and each output so far with the replies between
    assert volume.input_tokens == sum(heard) + 4 * 100
    assert volume.cacheable_tokens == sum(heard[:-1]) + 4 * 100
