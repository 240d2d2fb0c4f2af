"""What sessions use is on their client's account, and bounded by its quota."""

from __future__ import annotations

import asyncio

import gymnasium
import pytest
from session_stage import ME, StageEnv, ThreadedStage, call, refused

from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.remote.session_schema import CreateSession, CutEpisode, ResetEpisode, TakeTurn
from agentgym.serve.access import Caller, Quota
from agentgym.serve.accounts import Accounts
from agentgym.serve.sessions import Sessions
from agentgym.serve.store import Store
from agentgym.serve.store_records import Spending, StoreFull
from agentgym.types import Usage


class Paid(StageEnv):
    """Every turn asks a simulator, and the end a judge."""

    inline = False

    def __init__(self):
        super().__init__(judge=self)

    def note(self, text: str) -> str:
        """Ask the simulator."""
        charge("simulator", Usage(prompt_tokens=30, completion_tokens=10, cost_usd=0.5))
        if text == "crash":
            raise RuntimeError("broken")
        return text

    async def score(self, episode):
        charge("judge", Usage(prompt_tokens=5, completion_tokens=2))
        return Score(total=1.0)


gymnasium.register("stage/Paid-v0", Paid)
gymnasium.register("stage/ThreadedPaid-v0", lambda: ThreadedStage(Paid()))
PAID = CreateSession(env="stage/Paid-v0")


@pytest.fixture
def store():
    made = Store(None)
    yield made
    made.close()


@pytest.fixture
async def sessions(store):
    made = Sessions(accounts=Accounts(store))
    yield made
    await made.aclose()


def note(turn, text="x"):
    return TakeTurn(turn=turn, action=call("note", text=text))


async def playing(sessions, caller=ME, env="stage/Paid-v0"):
    session = await sessions.create(CreateSession(env=env), caller)
    await session.reset(ResetEpisode(seed=1))
    return session


@pytest.mark.parametrize("env", ["stage/Paid-v0", "stage/ThreadedPaid-v0"])
async def test_a_session_pays_for_its_episodes_its_simulator_and_its_judge(sessions, store, env):
    session = await playing(sessions, env=env)
    await session.step(note(0))
    await session.step(note(1))
    await session.step(note(1))  # sent again: not played, not paid
    await session.truncate(CutEpisode(reason="time"))
    assert store.spent("me") == Spending(episodes=1, tokens=87, usd=1.0)
    assert store.spent("you") == Spending()


async def test_what_failed_is_paid_too(sessions, store):
    session = await playing(sessions)
    assert (await session.step(note(0, "crash"))).masked
    assert store.spent("me").tokens == 40


async def test_a_reset_that_is_refused_is_no_episode(sessions, store):
    session = await sessions.create(PAID, ME)
    await refused(session.reset(ResetEpisode(options={"max_turns": 0})))
    assert store.spent("me").episodes == 0


async def test_a_day_has_no_more_episodes_than_the_quota_whoever_asks_at_once(sessions, store):
    caller = Caller("small", Quota(episodes_per_day=3))
    opened = [await sessions.create(PAID, caller) for _ in range(6)]
    answers = await asyncio.gather(
        *(session.reset(ResetEpisode()) for session in opened), return_exceptions=True
    )
    codes = [getattr(answer, "code", "begun") for answer in answers]
    assert sorted(codes) == ["begun"] * 3 + ["quota_used_up"] * 3
    assert store.spent("small").episodes == 3


@pytest.mark.parametrize("quota", [{"tokens_per_day": 50}, {"usd_per_day": 0.6}])
async def test_a_quota_that_is_used_up_ends_the_turns_and_masks_nothing(sessions, quota):
    session = await playing(sessions, Caller("small", Quota(**quota)))
    await session.step(note(0))
    await session.step(note(1))
    fault = await refused(session.step(note(2)))
    assert (fault.status, fault.code) == (429, "quota_used_up")
    assert fault.retry_after_s > 0
    assert session.state == "running"
    assert (await session.step(note(1))).turn == 2  # what was paid for can be asked for again
    assert (await refused(session.reset(ResetEpisode()))).code == "quota_used_up"
    assert (await refused(sessions.create(PAID, Caller("small", Quota(**quota))))).status == 429
    assert (await playing(sessions)).state == "running"  # another client's


async def test_what_a_full_store_could_not_take_is_written_later(sessions, store, monkeypatch):
    def full(store, spendings):
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "charge", full)
        session = await playing(sessions)
        await session.step(note(0))
    assert store.spent("me") == Spending()
    await session.step(note(1))
    assert store.spent("me") == Spending(episodes=1, tokens=80, usd=1.0)
