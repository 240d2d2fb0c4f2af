"""What holds for every plan: more never costs less, roles add up, nothing costs nothing."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentgym.client import Prices
from agentgym.cost.plan import plan_priced
from agentgym.cost.sensitivity import sensitivity
from agentgym.cost.turns import ConstantTurns, GeometricTurns, HistogramTurns
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, RoleLoad, Serving, Workload

pytestmark = pytest.mark.thorough

few = settings(max_examples=40)  # plans by the dozen for each

amounts = st.floats(0, 5_000)
shares = st.floats(0, 1)


@st.composite
def prices(draw):
    """Cached input never costs more than the rest, as with every provider."""
    full = draw(st.floats(0.01, 10))
    part = draw(st.none() | st.floats(0, 1))
    return Prices(
        input=full, cached=None if part is None else part * full, output=draw(st.floats(0, 20))
    )


@st.composite
def role_loads(draw):
    reads = draw(st.sampled_from(["own", "transcript", "prompts"]))
    during = {} if reads == "prompts" else {"calls_per_turn": draw(st.floats(0, 2))}
    if reads != "prompts":
        during["calls_per_reply"] = draw(st.floats(0, 2))
    return RoleLoad(
        prices=draw(prices()),
        calls_per_episode=draw(st.floats(0, 3)),
        **during,
        reads=reads,
        input_tokens=draw(amounts),
        output_tokens=draw(amounts),
        cache_hit=draw(shares),
        paid_twice=draw(st.floats(0, 0.5)),
    )


turn_counts = st.one_of(
    st.integers(1, 30).map(lambda turns: ConstantTurns(turns=turns)),
    st.builds(GeometricTurns, mean=st.floats(1, 10), max_turns=st.integers(1, 30)),
    st.dictionaries(st.integers(1, 30).map(float), st.floats(0.1, 9), min_size=1, max_size=5).map(
        lambda counts: HistogramTurns(counts=counts)
    ),
)


@st.composite
def workloads(draw):
    return Workload(
        groups=draw(st.integers(1, 64)),
        group_size=draw(st.integers(1, 16)),
        steps=draw(st.integers(1, 300)),
        turns=draw(turn_counts),
        tokens=EpisodeTokens(setup=draw(amounts), output=draw(amounts), reply=draw(amounts)),
        policy=PolicyLoad(
            prices=draw(prices()),
            cache_hit=draw(shares),
            shared_setup=draw(st.booleans()),
            paid_twice=draw(st.floats(0, 0.5)),
        ),
        roles=draw(st.dictionaries(st.sampled_from(["simulator", "judge"]), role_loads())),
        rerun_share=draw(st.floats(0, 0.5)),
        safety_factor=draw(st.floats(0.5, 2)),
    )


def total(workload):
    return plan_priced(workload).total_usd


def changed(workload, **fields):
    return workload.model_copy(update=fields)


@given(workloads())
def test_no_steps_cost_nothing(workload):
    plan = plan_priced(changed(workload, steps=0))
    assert plan.total_usd == 0
    assert plan.parts == ()


@few
@given(workloads())
def test_roles_add_up(workload):
    """A role costs the same whichever others there are, and the sum is the sum."""
    plan = plan_priced(workload)
    alone = total(changed(workload, roles={}))
    for role, load in workload.roles.items():
        alone += total(changed(workload, roles={role: load})) - total(changed(workload, roles={}))
    assert plan.total_usd == pytest.approx(alone)
    assert sum(plan.usd(one.role) for one in plan.roles) == pytest.approx(plan.total_usd)
    assert sum(part.usd for part in plan.parts) == pytest.approx(plan.total_usd)


@few
@given(workloads())
def test_a_cache_never_costs_more(workload):
    for one in plan_priced(workload).roles:
        volume = one.per_episode
        assert -1e-6 <= volume.cached_tokens <= volume.cacheable_tokens * (1 + 1e-9)
        assert volume.cacheable_tokens <= volume.input_tokens * (1 + 1e-9) + 1e-6
        without, best = one.usd_with_hits(0, 100), one.usd_with_hits(1, 100)
        as_planned = one.usd(100).total
        assert best <= as_planned * (1 + 1e-9) + 1e-12
        assert as_planned <= without * (1 + 1e-9) + 1e-12


@few
@given(workloads(), st.floats(1, 3))
def test_more_never_costs_less(workload, more):
    base = total(workload)
    tokens = workload.tokens
    larger = [
        changed(workload, steps=workload.steps + 1),
        changed(workload, groups=workload.groups + 1),
        changed(workload, rerun_share=workload.rerun_share + 0.1),
        changed(workload, safety_factor=workload.safety_factor * more),
        *(
            changed(workload, tokens=tokens.model_copy(update={name: value * more + 1}))
            for name, value in tokens
        ),
    ]
    for role, load in workload.roles.items():
        for name in ("calls_per_episode", "input_tokens", "output_tokens", "paid_twice"):
            up = load.model_copy(update={name: getattr(load, name) * more})
            larger.append(workload.with_role(role, up))
    for other in larger:
        assert total(other) >= base * (1 - 1e-9)


@given(workloads(), st.integers(2, 40))
def test_one_more_turn_never_costs_less(workload, turns):
    shorter = changed(workload, turns=ConstantTurns(turns=turns - 1))
    assert total(changed(workload, turns=ConstantTurns(turns=turns))) >= total(shorter) * (1 - 1e-9)


@given(workloads(), st.integers(2, 20), st.integers(1, 19))
def test_a_wider_spread_never_costs_less_at_the_same_mean(workload, mean, width):
    """Prompts are convex in the number of turns (without caching, where that shows)."""
    assume(width < mean)
    uncached = workload.policy.model_copy(update={"cache_hit": 0.0})
    workload = changed(workload, policy=uncached, roles={})
    spread = HistogramTurns(counts={float(mean - width): 1, float(mean + width): 1})
    flat = ConstantTurns(turns=mean)
    assert total(changed(workload, turns=spread)) >= total(changed(workload, turns=flat)) * (
        1 - 1e-9
    )


@given(workloads())
def test_calls_paid_twice_and_episodes_played_twice_multiply(workload):
    once = changed(
        workload,
        policy=workload.policy.model_copy(update={"paid_twice": 0.0}),
        rerun_share=0.0,
        roles={},
    )
    twice = changed(
        once, policy=once.policy.model_copy(update={"paid_twice": 0.25}), rerun_share=0.1
    )
    assert total(twice) == pytest.approx(total(once) * 1.25 * 1.1)


@few
@given(workloads())
def test_sensitivity_is_of_the_bill_and_in_order(workload):
    plan = plan_priced(workload)
    found = sensitivity(plan)
    tokens = sum(one.per_episode.input_tokens + one.per_episode.output_tokens for one in plan.roles)
    bill = plan.total_usd or tokens * workload.episodes  # tokens where no dollar is to be paid
    assert found.base == pytest.approx(bill)
    swings = [effect.swing for effect in found.effects]
    assert swings == sorted(swings, reverse=True)
    by_name = {effect.input: effect for effect in found.effects}
    if plan.total_usd:
        assert by_name["steps (or groups)"].elasticity == pytest.approx(1)
        for one in plan.roles:
            where = "policy" if one.role == "policy" else f"roles.{one.role}"
            hit = by_name.get(f"{where}.cache_hit")
            assert hit is None or hit.high <= hit.low * (1 + 1e-9)


@given(workloads(), st.floats(100, 1e5), st.floats(100, 1e4), st.integers(1, 64))
def test_gpu_hours_follow_from_tokens_per_second(workload, prefill, decode, gpus):
    serving = Serving(
        prefill_tokens_per_s=prefill, decode_tokens_per_s=decode, gpus=gpus, usd_per_gpu_hour=2
    )
    policy = PolicyLoad(cache_hit=workload.policy.cache_hit, serving=serving)
    plan = plan_priced(changed(workload, policy=policy))
    volume = plan.role("policy").per_episode.times(workload.episodes)
    seconds = (volume.input_tokens - volume.cached_tokens) / prefill
    seconds += volume.output_tokens / decode
    assert plan.gpu_hours == pytest.approx(seconds / 3600)
    assert plan.usd("policy") == pytest.approx(2 * plan.gpu_hours_held)
    assert plan.gpu_hours_held >= plan.gpu_hours * (1 - 1e-9)


def test_a_cap_s_elasticity_is_per_what_it_was_changed_by():
    """4 or 6 turns instead of 5: a fifth, where everything else moves by a tenth."""
    workload = Workload(
        groups=1,
        group_size=1,
        steps=1,
        turns=GeometricTurns(mean=1e6, max_turns=5),  # as good as always 5
        tokens=EpisodeTokens(setup=0, output=10, reply=0),
        policy=PolicyLoad(prices=Prices(input=0, output=1)),
    )
    found = {effect.input: effect for effect in sensitivity(plan_priced(workload)).effects}
    cap = found["turns.max_turns"]
    assert cap.changed == pytest.approx((-0.2, 0.2))
    assert cap.elasticity == pytest.approx(1, rel=1e-4)  # output is linear in turns


def test_one_turn_can_only_become_more():
    tokens = EpisodeTokens(setup=100, output=10, reply=10)
    policy = PolicyLoad(prices=Prices(input=1, output=0))
    workload = Workload(groups=1, group_size=1, steps=1, turns=1, tokens=tokens, policy=policy)
    found = {effect.input: effect for effect in sensitivity(plan_priced(workload)).effects}
    # 1.1 turns read 1.1 · 100 + 20 · 1.1 · 0.1 / 2 = 111.1 tokens.
    assert found["turns"].changed == pytest.approx((0, 0.1))
    assert found["turns"].elasticity == pytest.approx(1.11)


def test_gpus_and_episodes_at_once_move_an_hourly_bill():
    serving = Serving(
        prefill_tokens_per_s=1e5, decode_tokens_per_s=1e5, gpus=4, usd_per_gpu_hour=2, update_s=1
    )
    workload = Workload(
        groups=4,
        group_size=4,
        steps=1,
        turns=5,
        tokens=EpisodeTokens(setup=100, output=10, reply=10),
        policy=PolicyLoad(serving=serving, seconds_per_call=3),
        concurrency=4,
    )
    found = {effect.input: effect for effect in sensitivity(plan_priced(workload)).effects}
    assert found["policy.serving.gpus"].elasticity == pytest.approx(1)  # they wait for answers
    assert found["concurrency"].low > found["concurrency"].high
