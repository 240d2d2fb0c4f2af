"""Time of a training step, worked out by hand."""

from __future__ import annotations

import pytest

from agentgym.cost.plan import plan_priced
from agentgym.cost.workload import Workload

RUN = {
    "groups": 2,
    "group_size": 4,
    "steps": 10,
    "turns": 5,
    "tokens": {"setup": 2000, "output": 400, "reply": 400},
}
SERVING = {"prefill_tokens_per_s": 9_000, "decode_tokens_per_s": 1_000}


def step_of(policy, **fields):
    return plan_priced(Workload.model_validate({**RUN, "policy": policy, **fields})).step


def test_nothing_given_is_unknown_and_not_zero():
    plan = plan_priced(Workload.model_validate(RUN))
    assert (plan.step, plan.wall_clock_s, plan.gpu_hours) == (None, None, None)


def test_gpus_bound_the_step():
    # 8 episodes of 18,000 prompt tokens (2 s each) and 2,000 sampled ones (2 s), on 4 GPUs.
    step = step_of({"serving": {**SERVING, "gpus": 4, "update_s": 30}})
    assert step.sampling_s == 8 * (2 + 2) / 4
    assert step.prefill_share == 0.5
    assert (step.total_s, step.bound_by) == (8 + 30, "GPUs")


def test_a_prefix_cache_saves_prefill():
    step = step_of({"cache_hit": 1, "serving": SERVING})
    assert step.sampling_s == pytest.approx(8 * (5_200 / 9_000 + 2))


def test_answers_bound_the_step():
    simulator = {"calls_per_reply": 1, "seconds_per_call": 2}
    judge = {"calls_per_episode": 1, "seconds_per_call": 7}
    step = step_of(
        {"seconds_per_call": 3},
        roles={"simulator": simulator, "judge": judge},
        concurrency=2,
    )
    per_episode = 5 * 3 + 4 * 2
    assert step.waiting_s == 8 * per_episode / 2
    assert step.slowest_s == per_episode
    assert step.bound_by == "answers"
    assert step.total_s == 8 * per_episode / 2 + 7  # the judge overlaps but for the last verdict


def test_the_slowest_episode_bounds_a_step_with_room_for_all():
    turns = {"kind": "histogram", "counts": {1: 7, 9: 1}}
    step = step_of({"seconds_per_call": 1}, turns=turns)
    any_long = 1 - (7 / 8) ** 8
    assert step.waiting_s == pytest.approx(2)  # the mean of all, since all play at once
    assert step.slowest_s == pytest.approx(any_long * 9 + (1 - any_long) * 1)
    assert step.bound_by == "slowest episode"


def test_roles_without_seconds_are_named():
    step = step_of({"seconds_per_call": 1}, roles={"simulator": {"calls_per_reply": 1}})
    assert step.unknown == ("simulator",)


def test_gpus_held_idle_are_paid():
    serving = {**SERVING, "gpus": 4, "update_s": 30, "usd_per_gpu_hour": 3.6}
    plan = plan_priced(Workload.model_validate({**RUN, "policy": {"serving": serving}}))
    assert plan.gpu_hours == pytest.approx(10 * 8 * 4 / 3600)
    assert plan.gpu_hours_held == pytest.approx(10 * 38 * 4 / 3600)
    assert plan.usd("policy") == pytest.approx(10 * 38 * 4 * 0.001)
    assert plan.unpriced == ()
    assert [(part.role, part.what) for part in plan.parts] == [("policy", "GPUs")]
