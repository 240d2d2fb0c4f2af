"""A workload measured from episodes plans what they were, and predicts what others will be."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import Prices
from agentgym.cost.bills import EpisodeBill, ModelFacts
from agentgym.cost.calibrate import calibrate
from agentgym.cost.plan import plan_priced
from agentgym.cost.predict import predict
from agentgym.cost.sample import first, sample_of
from agentgym.errors import ConfigError
from agentgym.types import Usage

PRICES = Prices(input=1.0, cached=0.1, output=4.0)
FACTS = {role: ModelFacts("m", PRICES) for role in ("policy", "judge", "simulator")}


def used(prompt: float, output: float, calls: int = 1, cached: float = 0) -> Usage:
    usage = Usage(
        prompt_tokens=round(prompt), completion_tokens=round(output), calls=calls,
        cached_tokens=round(cached),
    )  # fmt: skip
    return usage.model_copy(update={"cost_usd": PRICES.cost_usd(usage)})


def episode(task: str, turns: int, *, setup: int = 2000, out: int = 400, reply: int = 400,
            hit: float = 0.0, **fields: Any) -> EpisodeBill:  # fmt: skip
    """An episode of the reference run: a judge reads the transcript, a user each turn's record."""
    grow = out + reply
    calls = [
        used(setup + t * grow, out, cached=hit * (setup + (t - 1) * grow) if t else 0)
        for t in range(turns)
    ]
    transcript = setup + turns * out + (turns - 1) * reply
    usage = {"policy": sum(calls, Usage(calls=0)), "judge": used(300 + transcript, 128)}
    if turns > 1:
        usage["simulator"] = used(1500 * (turns - 1), 400 * (turns - 1), calls=turns - 1)
    return EpisodeBill(
        usage, counts=True, task=task, played=True, turns=tuple(calls), models=FACTS, **fields
    )


def measured(bills: list[EpisodeBill], **size: int):
    size = {"groups": len(bills), "group_size": 1, "steps": 1, **size}
    return calibrate(sample_of(bills), **size)


def test_the_reference_episode_is_read_back_as_it_was():
    workload = measured([episode(str(n), turns) for n, turns in enumerate([3, 5, 5, 7])])
    assert workload.turns.outcomes == {3: 0.25, 5: 0.5, 7: 0.25}
    tokens = workload.tokens
    assert (tokens.setup, tokens.output, tokens.reply) == pytest.approx((2000, 400, 400))
    judge, simulator = workload.roles["judge"], workload.roles["simulator"]
    assert (judge.reads, judge.calls_per_episode) == ("transcript", 1)
    assert (judge.input_tokens, judge.output_tokens) == pytest.approx((300, 128))
    assert (simulator.reads, simulator.calls_per_reply) == ("own", 1)
    assert (simulator.input_tokens, simulator.output_tokens) == pytest.approx((1500, 400))
    assert (workload.policy.prices, workload.rerun_share) == (PRICES, 0.0)


def test_cached_share_and_repeated_calls_are_measured():
    bills = [episode(str(n), 4, hit=0.5) for n in range(3)]
    assert measured(bills).policy.cache_hit == pytest.approx(0.5)
    turns = list(bills[0].turns)
    turns[1] = turns[1] + turns[1]  # one of twelve calls was made twice
    usage = {**bills[0].usage, "policy": sum(turns, Usage(calls=0))}
    bills[0] = EpisodeBill(
        usage, counts=True, task="0", played=True, turns=tuple(turns), models=FACTS
    )
    workload = measured(bills)
    assert workload.policy.paid_twice == pytest.approx(1 / 12)
    assert workload.tokens.setup == pytest.approx(2000)  # a prompt counts once for its length


turn_counts = st.lists(st.integers(1, 12), min_size=2, max_size=12)


@given(turn_counts, st.integers(0, 3000), st.integers(1, 500), st.integers(0, 500))
def test_planned_for_as_many_the_tokens_are_those_that_were_measured(counts, setup, out, reply):
    bills = [
        episode(str(n), turns, setup=setup, out=out, reply=reply) for n, turns in enumerate(counts)
    ]
    plan = plan_priced(measured(bills))
    for role in plan.roles:
        spent = sum((b.usage[role.role] for b in bills if role.role in b.usage), Usage(calls=0))
        volume = role.per_episode.times(len(bills))
        assert volume.input_tokens == pytest.approx(spent.prompt_tokens, rel=1e-6, abs=1e-6)
        assert volume.output_tokens == pytest.approx(spent.completion_tokens, rel=1e-6, abs=1e-6)
        assert plan.usd(role.role) == pytest.approx(spent.cost_usd or 0.0, rel=1e-6, abs=1e-9)


def test_what_broke_is_in_the_plan_and_the_prediction():
    """Nine whole episodes, and one whose attempts took more than one does."""
    whole = [episode(str(n), 4) for n in range(9)]
    broken = EpisodeBill(
        {"policy": used(27000, 1000)}, counts=True, task="9", played=False, models=FACTS
    )
    bills = [*whole, broken, EpisodeBill({"policy": used(3000, 200)}, counts=False, models=FACTS)]
    spent = math.fsum(usage.cost_usd for bill in bills for usage in bill.usage.values())
    found = {one.role: one for one in predict(sample_of(bills), 10)}
    assert found["all"].mean == pytest.approx(spent)
    tokens = sum(u.prompt_tokens + u.completion_tokens for b in bills for u in b.usage.values())
    plan = plan_priced(measured(bills, groups=10))
    planned = sum(
        (one.per_episode.input_tokens + one.per_episode.output_tokens) * 10 for one in plan.roles
    )
    assert planned == pytest.approx(tokens)


def test_intervals_hold_as_often_as_they_say():
    """Of samples of 12 episodes, 95 in 100 should have the bill of 200 more in the interval.

    Bills grow with turns², so they are skewed, and Student's t then covers a little less: 89 here.
    """
    rng = random.Random(7)
    by_turns = {turns: episode("", turns) for turns in range(1, 21)}

    def draw(count: int) -> list[EpisodeBill]:
        names = [(str(rng.random()), min(20, 1 + int(rng.expovariate(0.3)))) for _ in range(count)]
        return [replace(by_turns[turns], task=task) for task, turns in names]

    held = 0
    for _ in range(400):
        truth = math.fsum(usage.cost_usd for bill in draw(200) for usage in bill.usage.values())
        total = predict(sample_of(draw(12)), 200)[-1]
        assert total.role == "all"
        held += total.low <= truth <= total.high
    assert 0.85 <= held / 400 <= 0.99


def test_one_task_says_nothing_of_the_spread():
    found = predict(sample_of([episode("same", 3), episode("same", 5)]), 10)
    assert {one.high for one in found} == {math.inf}
    values = [one.model_dump(mode="json") for one in found]
    assert {one["high"] for one in values} == {None}
    json.dumps(values, allow_nan=False)


def test_without_prices_tokens_are_predicted():
    bill = episode("a", 3)
    unpriced = {r: u.model_copy(update={"cost_usd": None}) for r, u in bill.usage.items()}
    bills = [
        EpisodeBill(unpriced, counts=True, task=t, played=True, turns=bill.turns) for t in "ab"
    ]
    found = predict(sample_of(bills), 4)
    assert {one.unit for one in found} == {"tokens"}
    assert [one.role for one in found] == [
        "policy",
        "judge",
        "simulator",
    ]  # no sum of unlike things


def test_nothing_to_measure_is_said():
    with pytest.raises(ConfigError, match="no episode got to a turn"):
        calibrate(sample_of([]), groups=1, group_size=1, steps=1)
    silent = EpisodeBill(
        {"policy": Usage(calls=0)}, counts=True, task="a", played=True, turns=(None, None)
    )
    with pytest.raises(ConfigError, match="no episode has the tokens of its turns"):
        calibrate(sample_of([silent]), groups=1, group_size=1, steps=1)


def test_only_the_first_episodes():
    bills = [episode("a", 2), EpisodeBill({}, counts=False), episode("b", 2), episode("c", 2)]
    assert [bill.task for bill in first(bills, 2)] == ["a", "", "b"]
