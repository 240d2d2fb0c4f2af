"""The registry: who gets a session, who may use it, and when it is taken back."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest
from session_stage import (
    AFFINE,
    ME,
    STAGE,
    YOU,
    Clock,
    StageEnv,
    asked,
    call,
    fresh_stage,
    playing,
    quota,
    refused,
    register,
    with_limits,
)

from agentgym.client import Endpoint
from agentgym.remote.session_schema import CreateSession, ResetEpisode, TakeTurn
from agentgym.roles import Roles
from agentgym.serve.allowed import Allowed
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.sessions import Sessions
from agentgym.simulators.user import HostedUser

register()


@pytest.fixture(autouse=True)
def _fresh():
    yield from fresh_stage()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def sessions(clock):
    made = Sessions(SessionLimits(max_sessions=4, idle_ttl_s=60), clock=clock)
    yield made
    await made.aclose()


async def test_a_service_that_drains_begins_nothing_and_lets_a_turn_in_progress_finish(sessions):
    session = await playing(sessions)
    turn = asyncio.create_task(
        session.step(TakeTurn(turn=0, action=call("wait_at_gate", text="last")))
    )
    await asked(session)
    sessions.begin_no_more()
    settled = asyncio.create_task(sessions.settled())
    other = await refused(sessions.create(STAGE, ME))
    assert (other.code, other.status, other.retry_after_s is not None) == ("draining", 503, True)
    assert not settled.done()
    StageEnv.made[0].gate.set()
    assert (await turn).turn == 1
    await settled
    assert (await refused(session.reset(ResetEpisode()))).code == "draining"
    assert (await session.step(TakeTurn(turn=1, action=call("note", text="on")))).turn == 2


# --- slots --------------------------------------------------------------------------------------


async def test_ids_have_at_least_128_random_bits_and_differ(sessions):
    ids = {(await sessions.create(STAGE, ME)).session_id for _ in range(4)}
    assert len(ids) == 4
    assert all(len(one) * 6 >= 128 for one in ids)  # URL-safe base64


async def test_a_full_service_says_503_and_when_to_come_again(sessions):
    for _ in range(4):
        await sessions.create(STAGE, ME)
    fault = await refused(sessions.create(STAGE, YOU))
    assert (fault.status, fault.code) == (503, "no_room")
    assert fault.retry_after_s > 0
    assert sessions.status().refused == 1


async def test_a_caller_with_enough_sessions_is_refused_with_429_and_others_are_not(sessions):
    small = quota(2)
    for _ in range(2):
        await sessions.create(STAGE, small)
    fault = await refused(sessions.create(STAGE, small))
    assert (fault.status, fault.code) == (429, "too_many_sessions")
    await sessions.create(STAGE, ME)


async def test_closing_frees_the_slot_and_closes_the_env(sessions):
    opened = [await sessions.create(STAGE, ME) for _ in range(4)]
    await sessions.close(opened[0].session_id, "me")
    await sessions.create(STAGE, ME)
    assert len(StageEnv.closed) == 1
    assert sessions.status().closed == 1


async def test_an_env_that_cannot_be_made_takes_no_slot(sessions):
    for ask in (
        CreateSession(env="stage/None-v0"),
        CreateSession(env="stage/Stage-v0", env_kwargs={"nonsense": 1}),
    ):
        fault = await refused(sessions.create(ask, ME))
        assert (fault.status, fault.code) == (422, "bad_env")
    assert len(sessions) == 0
    assert sessions.status().created == 0


async def test_only_what_is_allowed_is_made():
    sessions = Sessions(allowed=Allowed(envs=("stage/Stage-v0",)))
    fault = await refused(sessions.create(AFFINE, ME))
    assert fault.status == 404
    fault = await refused(sessions.create(CreateSession(env="os:x/y-v0"), ME))
    assert fault.status == 403
    await sessions.create(STAGE, ME)
    assert len(sessions) == 1
    await sessions.aclose()


async def test_envs_that_ask_models_get_the_services_own(monkeypatch):
    monkeypatch.setenv("DESK_KEY", "a-key-of-the-desk")
    simulator = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="DESK_KEY")
    sessions = Sessions(allowed=Allowed(), roles=Roles(simulator=simulator))
    session = await sessions.create(CreateSession(env="agentgym/SupportDesk-v0"), ME)
    assert isinstance(session.env.agent.simulator, HostedUser)
    shop = await sessions.create(CreateSession(env="agentgym/WebShop-v0"), ME)  # has no use for it
    assert shop.env is not None
    monkeypatch.delenv("DESK_KEY")
    ask = CreateSession(env="agentgym/SupportDesk-v0")
    assert "DESK_KEY" in (await refused(sessions.create(ask, ME))).message
    await sessions.aclose()


async def test_the_same_key_gives_the_same_session_to_its_caller_alone(sessions):
    ask = CreateSession(env="stage/Stage-v0", key="worker-1")
    first, again = await asyncio.gather(sessions.create(ask, ME), sessions.create(ask, ME))
    assert first is again
    assert len(StageEnv.made) == 1
    assert await sessions.create(ask, YOU) is not first
    other = CreateSession(env="stage/Quiz-v0", key="worker-1")
    assert (await refused(sessions.create(other, ME))).code == "key_taken"
    await sessions.close(first.session_id, "me")
    assert await sessions.create(ask, ME) is not first


# --- whose --------------------------------------------------------------------------------------


async def test_another_callers_session_looks_like_none_at_all(sessions):
    """Case J13: 404, not 403, which would say that the id exists."""
    session = await sessions.create(STAGE, ME)
    faults = []
    for session_id in (session.session_id, "A" * 32):
        with pytest.raises(ServiceFault) as caught:
            sessions.find(session_id, "you")
        faults.append((caught.value.status, caught.value.code, caught.value.message))
    assert faults[0] == faults[1]
    assert faults[0][0] == 404
    assert [s.session_id for s in sessions.of("me")] == [session.session_id]
    assert sessions.of("you") == []


async def test_unknown_ids_allocate_nothing(sessions):
    """Case J13."""

    def ask(count):
        for number in range(count):
            with pytest.raises(ServiceFault):
                sessions.find(f"random-{number}", "me")

    ask(100)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    ask(10_000)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 64 << 10
    assert len(sessions) == 0


# --- leases -------------------------------------------------------------------------------------


async def test_sessions_without_a_sign_of_life_are_closed_and_their_slots_are_free(sessions, clock):
    """Case E14."""
    for _ in range(4):
        await playing(sessions)
    clock.now += 61
    session = await sessions.create(STAGE, YOU)  # nobody has to wait for the reaper
    assert len(StageEnv.closed) == 4
    status = sessions.status()
    assert (status.reaped, status.idle, status.active) == (4, 1, 0)
    assert sessions.find(session.session_id, "you") is session


async def test_a_sign_of_life_renews_the_lease(sessions, clock):
    kept, left = await playing(sessions), await playing(sessions)
    clock.now += 40
    assert kept.touch() == 60
    clock.now += 40
    assert await sessions.reap() == 1
    assert sessions.of("me") == [kept]
    assert left.idle_s == 80


async def test_a_session_at_work_is_not_idle(sessions, clock):
    session = await playing(sessions)
    step = asyncio.create_task(
        session.step(TakeTurn(turn=0, action=call("wait_at_gate", text="a")))
    )
    await asked(session)
    clock.now += 500
    assert await sessions.reap() == 0
    assert sessions.status().active == 1
    session.env.agent.gate.set()
    await step
    assert await sessions.reap() == 0  # the lease runs from the answer on


async def test_an_env_that_lets_nobody_stop_it_does_not_keep_its_slot(clock):
    sessions = with_limits(clock, step_timeout_s=0.02, close_timeout_s=0.02)
    session = await playing(sessions)
    gate = session.env.agent.gate
    step = asyncio.create_task(session.step(TakeTurn(turn=0, action=call("cling"))))
    await asked(session)
    clock.now += 10_000
    assert await sessions.reap() == 1
    assert sessions.status().abandoned == 1
    assert len(sessions) == 0
    gate.set()
    await asyncio.wait({step})
    step.exception()


async def test_the_reaper_runs_by_itself_and_everything_is_closed_at_the_end(clock):
    sessions = with_limits(clock, idle_ttl_s=0.1)  # so it looks around soon
    async with sessions.running():
        await playing(sessions)
        clock.now += 1
        assert await asyncio.to_thread(StageEnv.gone.wait, 10)
        assert len(sessions) == 0
        await playing(sessions)
    assert len(sessions) == 0
    assert len(StageEnv.closed) == 2
    assert (await refused(sessions.create(STAGE, ME))).code == "draining"


async def test_closing_in_the_middle_of_a_turn_tells_whoever_waits(sessions):
    session = await playing(sessions)
    step = asyncio.create_task(session.step(TakeTurn(turn=0, action=call("hang"))))
    await asked(session)
    await sessions.close(session.session_id, "me")
    assert (await refused(step)).code == "no_such_session"
    assert len(StageEnv.closed) == 1
