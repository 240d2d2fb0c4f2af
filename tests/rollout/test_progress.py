"""Progress: the right figures, a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from agentgym.clients import ScriptedClient
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.rollout.progress import (
    LineProgress,
    LiveProgress,
    NoProgress,
    Progress,
    Tally,
    Ticking,
    progress_for,
)
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.types import Verdict


def trace(reward: float | None) -> Trace:
    masked = reward is None
    return Trace(
        trace_id="x",
        env_spec="{}",
        failure_class="judge" if masked else None,
        verdict=Verdict(reward=reward, masked=masked),
        started_at="2026-01-01T00:00:00+00:00",
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tally_says_it_all_in_one_line():
    clock = Clock()
    tally = Tally(clock)
    tally.total = 4
    tally.add_turn(30)
    tally.add_turn(10)
    for reward in (1.0, 0.5, None):
        tally.add(trace(reward))
    clock.now = 2.0
    assert tally.count() == "3/4"
    assert tally.text() == "2 turns · 20 tok/s · reward 0.750 · masked 1 (judge 1)"


def test_tally_of_nothing():
    tally = Tally(Clock())
    assert (tally.count(), tally.text()) == ("0", "0 turns · 0 tok/s · reward -")


def test_lines_come_at_most_every_so_often_and_at_the_end():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(3)
    for seconds in (1, 11, 12):
        clock.now = seconds
        progress.turn(5)
        progress.finish(trace(1.0))
    progress.end()
    lines = stream.getvalue().splitlines()
    assert [line.split(" episodes")[0] for line in lines] == ["[11 s] 2/3", "[12 s] 3/3"]


def test_lines_come_while_no_episode_is_over_and_say_when_nothing_happens():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(3)
    for seconds in range(1, 33):
        clock.now = seconds
        if seconds == 15:
            progress.turn(40)
        progress.tick(2)
    assert stream.getvalue().splitlines() == [
        "[10 s] 0/3 episodes, 2 in flight · 0 tokens · 0 turns · 0 tok/s · reward - · waiting",
        "[20 s] 0/3 episodes, 2 in flight · 40 tokens · 1 turns · 2 tok/s · reward -",
        "[30 s] 0/3 episodes, 2 in flight · 40 tokens · 1 turns · 1 tok/s · reward - · waiting",
    ]


def test_finished_episodes_and_ticks_share_the_time_between_two_lines():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(3)
    clock.now = 10
    progress.finish(trace(1.0))
    progress.tick(2)
    clock.now = 19
    progress.tick(2)
    assert len(stream.getvalue().splitlines()) == 1


def test_live_bar_draws_and_stops(monkeypatch, capsys):
    progress = LiveProgress()
    progress.begin(2)
    for _ in range(20):
        progress.turn(3)
    progress.finish(trace(1.0))
    progress.finish(trace(None))
    progress.tick(1)
    progress.end()
    progress.end()
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(("tty", "kind"), [(True, LiveProgress), (False, LineProgress)])
def test_choice_follows_the_terminal(monkeypatch, tty, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty, raising=False)
    assert isinstance(progress_for(True), kind)
    assert isinstance(progress_for(False), NoProgress)
    assert isinstance(progress_for(None), NoProgress)
    mine = LineProgress()
    assert progress_for(mine) is mine
    assert isinstance(progress_for(True), Progress)


async def test_engine_tells_its_progress_also_when_it_stops_early():
    events = []

    class Mine(NoProgress):
        def begin(self, total):
            events.append(("begin", total))

        def turn(self, tokens):
            events.append(("turn", tokens))

        def finish(self, trace):
            events.append(("finish", trace.reward))

        def end(self):
            events.append(("end",))

    submit = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "submit", "arguments": "{}"}}],
    }
    engine = Engine(CounterEnv, client=ScriptedClient([submit]), progress=Mine())
    async for _ in engine.run([EpisodeRequest(seed=0)]):
        pass
    assert events == [("begin", 1), ("turn", 0), ("finish", 0.0), ("end",)]
    events.clear()
    traces = engine.run([EpisodeRequest(seed=k) for k in range(9)])
    await anext(traces)
    await traces.aclose()
    assert events[-1] == ("end",)
    await engine.aclose()


async def test_engine_ticks_while_the_policy_thinks(monkeypatch):
    monkeypatch.setattr("agentgym.rollout.engine.TICK_S", 0)
    ticked = asyncio.Event()
    seen = []

    class Mine(NoProgress):
        def tick(self, in_flight):
            seen.append(in_flight)
            ticked.set()

    async def think(messages):
        ticked.clear()
        await ticked.wait()
        return "no call"

    assert isinstance(Mine(), Ticking)
    engine = Engine(CounterEnv, client=ScriptedClient(think), progress=Mine())
    async with asyncio.timeout(60), engine:
        traces = [t async for t in engine.run([EpisodeRequest(seed=k) for k in range(3)])]
    assert len(traces) == 3
    assert max(seen) == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}
