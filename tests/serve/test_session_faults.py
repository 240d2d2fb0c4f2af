"""A client that hangs up, or a session that is closed, in the middle of whatever it waits for."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import gymnasium
import httpx
import pytest
from session_stage import ME, Clock, StageEnv, call, register, served

from agentgym.judge import Score
from agentgym.remote.session_schema import CreateSession, CutEpisode, ResetEpisode, TakeTurn
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_thread import SessionThread
from agentgym.serve.sessions import Sessions

register()
WAITS = ("make", "reset", "step", "truncate", "judge")


class Slow(StageEnv):
    """Waits at a gate in one place, and says when it is there."""

    there, open = threading.Event(), threading.Event()
    inline = False

    def __init__(self, where):
        self.where = where
        if where == "make":
            Slow.there.set()
            assert Slow.open.wait(10)
        super().__init__(judge=self)

    async def _wait(self, where):
        if self.where == where:
            Slow.there.set()
            await asyncio.to_thread(Slow.open.wait, 10)

    async def start(self, task):
        await self._wait("reset")
        return await super().start(task)

    async def reply(self, message):
        await self._wait("step")
        return await super().reply(message)

    async def atruncate(self, reason):
        await self._wait("truncate")
        return await super().atruncate(reason)

    async def score(self, episode):
        await self._wait("judge")
        return Score(total=0.5)


gymnasium.register("stage/Slow-v0", Slow)


@pytest.fixture(autouse=True)
def _fresh():
    StageEnv.closed.clear()
    StageEnv.gone.clear()
    Slow.there.clear()
    Slow.open.clear()
    yield
    Slow.open.set()


async def come_to(sessions, where):
    """A session, and the request that waits at that place, made anew by each call of `ask`."""
    ask_for = CreateSession(env="stage/Slow-v0", env_kwargs={"where": where}, key="k")
    if where == "make":
        return None, lambda: sessions.create(ask_for, ME)
    session = await sessions.create(ask_for, ME)
    if where == "reset":
        return session, lambda: session.reset(ResetEpisode(episode=1))
    await session.reset(ResetEpisode(episode=1))
    if where == "truncate":
        return session, lambda: session.truncate(CutEpisode(reason="time"))
    return session, lambda: session.step(TakeTurn(turn=0, action="done"))


async def at_the_gate(request):
    task = asyncio.create_task(request)
    assert await asyncio.to_thread(Slow.there.wait, 10)
    assert not task.done()
    return task


@pytest.mark.parametrize("where", WAITS)
async def test_who_hangs_up_and_asks_again_gets_the_answer_of_the_first_time(where):
    sessions = Sessions()
    _, ask = await come_to(sessions, where)
    first = await at_the_gate(ask())
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    again = asyncio.create_task(ask())
    await asyncio.sleep(0)
    Slow.open.set()
    answer = await again
    if where in ("step", "judge"):
        assert answer.reward == 0.5
        assert answer.turn == 1
    if where == "truncate":
        assert answer.info["truncation_reason"] == "time"
    assert sessions.status().created == 1
    await sessions.aclose()


@pytest.mark.parametrize("where", WAITS)
async def test_closing_ends_whatever_is_waited_for_and_closes_the_env(where):
    sessions = Sessions(SessionLimits(close_timeout_s=5))
    _, ask = await come_to(sessions, where)
    waiting = await at_the_gate(ask())
    (session,) = sessions.of("me")
    closing = asyncio.create_task(sessions.close(session.session_id, "me"))
    await asyncio.sleep(0)
    assert len(sessions) == 0  # the slot is free at once
    with pytest.raises(ServiceFault) as caught:
        await waiting
    assert caught.value.status == 404
    Slow.open.set()
    await closing
    assert await asyncio.to_thread(StageEnv.gone.wait, 10)
    assert len(StageEnv.closed) == 1


async def test_a_closing_that_is_cancelled_closes_all_the_same():
    sessions = Sessions()
    session = await sessions.create(CreateSession(env="stage/Stage-v0"), ME)
    closing = asyncio.create_task(sessions.close(session.session_id, "me"))
    await asyncio.sleep(0)
    closing.cancel()
    await sessions.aclose()
    assert len(StageEnv.closed) == 1


async def test_a_close_that_raises_or_hangs_costs_only_its_own_session(caplog):
    sessions = Sessions(SessionLimits(close_timeout_s=0.05))
    rude = [await sessions.create(CreateSession(env="stage/Stage-v0"), ME) for _ in range(3)]
    release = threading.Event()

    def fail():
        raise RuntimeError("close() broke")

    rude[0].env.agent.close = fail
    rude[1].env.agent.close = release.wait
    await sessions.aclose()
    release.set()
    assert len(StageEnv.closed) == 1
    assert "close() broke" in caplog.text
    assert sessions.status().abandoned == 1


async def test_a_call_on_a_thread_carries_results_and_errors_and_outlives_a_cancellation():
    thread = SessionThread("test")
    assert await thread.run(lambda: 7) == 7
    with pytest.raises(RuntimeError, match="StopIteration"):
        await thread.run(lambda: next(iter(())))
    entered, gate, done = threading.Event(), threading.Event(), threading.Event()
    stuck = asyncio.create_task(thread.run(lambda: entered.set() or gate.wait()))
    assert await asyncio.to_thread(entered.wait, 10)
    stuck.cancel()
    await asyncio.wait({stuck})
    thread.stop(done.set)
    assert thread.working
    gate.set()
    assert await asyncio.to_thread(done.wait, 10)


async def test_two_in_a_row_of_the_same_turn_share_one_play():
    sessions = Sessions()
    session, ask = await come_to(sessions, "step")
    one = await at_the_gate(ask())
    two = asyncio.create_task(ask())
    await asyncio.sleep(0)
    Slow.open.set()
    assert await one == await two
    assert session.view().turn == 1
    await sessions.aclose()


async def test_an_act_waits_for_a_turn_whose_client_hung_up():
    sessions = Sessions()
    session = await sessions.create(CreateSession(env="stage/Stage-v0"), ME)
    await session.reset(ResetEpisode())
    first = asyncio.create_task(session.act(call("wait_at_gate", text="a")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert session.busy
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(session.act(call("note", text="b")))
    await asyncio.sleep(0)
    session.env.agent.gate.set()
    assert (await second).turn == 2
    await sessions.aclose()


CLIENT = """
import asyncio, sys
from agentgym.remote.http import ServiceClient

async def main(url):
    service = ServiceClient(url)

    async def play(number):
        ask = {"env": "agentgym/ToolWorld-v0", "reset": {"seed": number}}
        view = await service.ask("POST", "/sessions", body=ask)
        step = {"turn": 0, "action": "hello"}
        if number % 2:
            await service.ask("POST", f"/sessions/{view['session_id']}/step", body=step)

    await asyncio.gather(*map(play, range(200)))
    print("playing", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.e2e
def test_two_hundred_sessions_of_a_killed_client_are_closed_and_their_slots_free():
    """Case E14, with the service's own application and no waiting: the clock is the test's."""
    from agentgym.serve.app import create_app
    from agentgym.serve.config import ServiceConfig

    clock = Clock()
    app = create_app(ServiceConfig(sessions=SessionLimits(max_sessions=200)))
    sessions = app.state.service.sessions
    sessions._clock = clock
    with served(app) as url:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, url], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout.readline() == "playing\n"
        ask = {"env": "agentgym/ToolWorld-v0"}
        full = httpx.post(f"{url}/v1/sessions", json=ask)
        assert (full.status_code, full.json()["error"]["code"]) == (503, "no_room")
        assert int(full.headers["Retry-After"]) >= 1
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        clock.now += 10_000
        assert httpx.post(f"{url}/v1/sessions", json=ask).status_code == 201
        page = httpx.get(f"{url}/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(figures['agentgym_sessions{state="idle"}']) == 1
    assert float(figures['agentgym_sessions_ended_total{how="reaped"}']) == 200
    assert float(figures["agentgym_sessions_created_total"]) == 201
    assert float(figures["agentgym_sessions_refused_total"]) == 1
    assert float(figures["agentgym_sessions_abandoned_total"]) == 0
    assert len(sessions) == 0
