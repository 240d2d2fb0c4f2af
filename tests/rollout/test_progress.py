"""Progress: the right figures, a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from typing import Any

import pytest

from agentgym.clients import ScriptedClient
from agentgym.rollout import Engine, Enough, EpisodeRequest
from agentgym.rollout.figures import Figures
from agentgym.rollout.progress import (
    LineProgress,
    LiveProgress,
    NoProgress,
    Progress,
    Ticking,
    progress_for,
)
from agentgym.rollout.whereabouts import Waiting, Whereabouts
from agentgym.testing.envs import CounterEnv
from agentgym.trace import EarlierAttempt, Stage, Trace
from agentgym.types import Usage, Verdict


def trace(reward: float | None, **facts: Any) -> Trace:
    masked = reward is None
    return Trace(
        trace_id="x",
        env_spec="{}",
        failure_class="judge" if masked else None,
        verdict=Verdict(reward=reward, masked=masked),
        started_at="2026-01-01T00:00:00+00:00",
        **facts,
    )


def waiting(stage: Stage, what: Waiting, count: int = 1, since: float = 0.0) -> list[Whereabouts]:
    found = []
    for k in range(count):
        where = Whereabouts(f"t/{k}@0.0")
        where.stage, where.waiting, where.since = stage, what, since
        found.append(where)
    return found


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_figures_say_it_all_in_one_line():
    clock = Clock()
    figures = Figures(4, clock)
    figures.add_turn(30)
    figures.add_turn(10)
    for reward in (1.0, 0.5, None):
        figures.add(trace(reward))
    clock.now = 2.0
    assert figures.count() == "3/4"
    assert figures.text() == "2 turns · 20 tok/s · reward 0.750 · masked 1 (judge 1)"


def test_figures_of_nothing():
    figures = Figures(None, Clock())
    assert (figures.count(), figures.text()) == ("0", "0 turns · 0 tok/s · reward -")


def test_figures_name_reruns_and_the_dollars_of_each_priced_role():
    figures = Figures(None, Clock())
    broken = EarlierAttempt(failure_class="infra", failed_stage="run", error="reset by peer")
    usage = {"policy": Usage(cost_usd=0.25), "judge": Usage(cost_usd=0.5), "simulator": Usage()}
    figures.add(trace(1.0, earlier=(broken, broken), usage=usage))
    figures.add(trace(1.0, usage=usage))
    assert figures.text().endswith("reward 1.000 · played again 2 · policy $0.5, judge $1")


def test_figures_name_queues_that_are_not_empty():
    figures = Figures(None, Clock())
    figures.look(waiting("run", "slot", 12) + waiting("eval", "slot", 3) + waiting("run", "policy"))
    assert figures.text().endswith(" · queued: run 12, eval 3")
    figures.look(waiting("run", "policy"))
    assert "queued" not in figures.text()


def test_tokens_per_second_are_those_of_the_last_minute():
    clock = Clock()
    figures = Figures(None, clock)
    for second in range(121):
        clock.now = float(second)
        figures.add_turn(100 if second < 60 else 10)
        figures.look(())
    assert "· 10 tok/s" in figures.text()


def test_tokens_per_second_of_a_run_without_a_tick_are_those_since_its_start():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, clock=clock)
    progress.begin(1)
    progress.turn(30)
    clock.now += 0.5
    progress.end()
    assert "60 tok/s" in stream.getvalue()


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


def test_lines_come_while_no_episode_is_over_and_say_on_what_they_wait():
    """A run whose endpoint is down must not look like one that thinks (case E19)."""
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(3)
    in_flight = waiting("run", "policy", 2, since=time.monotonic()) + waiting("init", "env")
    for seconds in range(1, 33):
        clock.now = seconds
        if seconds == 15:
            progress.turn(40)
        progress.tick(in_flight)
    ahead = "0/3 episodes, 3 in flight (2 wait for the policy)"
    stuck = " · waiting for the policy, the longest for 0 s"
    assert stream.getvalue().splitlines() == [
        f"[10 s] {ahead} · 0 tokens · 0 turns · 0 tok/s · reward -{stuck}",
        f"[20 s] {ahead} · 40 tokens · 1 turns · 2 tok/s · reward -",
        f"[30 s] {ahead} · 40 tokens · 1 turns · 1 tok/s · reward -{stuck}",
    ]


def test_a_line_while_nothing_is_in_flight():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(None)
    clock.now = 10
    progress.tick([])
    assert stream.getvalue() == (
        "[10 s] 0 episodes, 0 in flight · 0 tokens · 0 turns · 0 tok/s · reward - · "
        "waiting for a request, or for the traces to be taken\n"
    )


def test_finished_episodes_and_ticks_share_the_time_between_two_lines():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=10, clock=clock)
    progress.begin(3)
    clock.now = 10
    progress.finish(trace(1.0))
    progress.tick(waiting("run", "env"))
    clock.now = 19
    progress.tick(waiting("run", "env"))
    assert len(stream.getvalue().splitlines()) == 1


def test_live_bar_draws_and_stops(monkeypatch, capsys):
    progress = LiveProgress()
    progress.begin(2)
    for _ in range(20):
        progress.turn(3)
    progress.finish(trace(1.0))
    progress.finish(trace(None))
    progress.tick(waiting("run", "policy"))
    progress.end()
    progress.end()
    assert "2/2" in capsys.readouterr().err


def test_bar_of_a_second_run_at_the_same_time_takes_the_place_of_the_first(capsys):
    before = set(threading.enumerate())
    progress = LiveProgress()
    progress.begin(2)
    progress.begin(3)
    progress.end()
    progress.end()
    redrawing = [thread for thread in threading.enumerate() if thread not in before]
    for thread in redrawing:
        thread.join(10)
    assert not any(thread.is_alive() for thread in redrawing)
    assert "0/3" in capsys.readouterr().err


def test_a_narrow_terminal_shows_the_bar_and_below_it_the_figures(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    progress = LiveProgress()
    progress.begin(2)
    progress.finish(trace(1.0, usage={"policy": Usage(cost_usd=0.5)}))
    progress.finish(trace(None))
    progress.end()
    progress.turn(3)  # of an episode that goes on beside the next run
    *_, bar, figures, more = capsys.readouterr().err.rstrip().splitlines()
    assert bar.startswith("episodes ━")
    assert "2/2" in bar
    assert figures.split(" · ")[2] == "reward 1.000"
    assert "policy $0.5" in figures + more


@pytest.mark.parametrize(("tty", "kind"), [(True, LiveProgress), (False, LineProgress)])
def test_choice_follows_the_terminal(monkeypatch, tty, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty, raising=False)
    assert isinstance(progress_for(True), kind)
    assert isinstance(progress_for(False), NoProgress)
    assert isinstance(progress_for(None), NoProgress)
    mine = LineProgress()
    assert progress_for(mine) is mine
    assert isinstance(progress_for(True), Progress)


def test_without_a_standard_error_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert isinstance(progress_for(True), NoProgress)


async def test_a_pipe_whose_reader_is_gone_costs_the_progress_and_no_episode(caplog):
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    progress = LineProgress(Gone(), every_s=0)
    engine = Engine(CounterEnv, client=ScriptedClient(["no call"]), progress=progress)
    traces = [trace async for trace in engine.run([EpisodeRequest(seed=k) for k in range(5)])]
    assert len(traces) == 5
    (warning,) = [r.getMessage() for r in caplog.records if "progress" in r.getMessage()]
    assert warning == "the progress is shown no longer: [Errno 32] Broken pipe"


async def test_episodes_carried_over_are_among_those_to_come():
    totals = []

    class Mine(NoProgress):
        def begin(self, total):
            totals.append(total)

    asked, go_on = 0, asyncio.Event()

    async def think(messages):
        nonlocal asked
        asked += 1
        if asked > 2:
            await go_on.wait()
        return "no call"

    engine = Engine(lambda: CounterEnv(max_turns=1), client=ScriptedClient(think), progress=Mine())
    requests = [EpisodeRequest(seed=k) for k in range(5)]
    async with engine:
        carries = Enough(episodes=2, unfinished="carry")
        first = [trace async for trace in engine.run(requests, enough=carries)]
        go_on.set()
        second = [trace async for trace in engine.run(requests[:1])]
        assert engine.status().episodes.requested == 6
    assert (len(first), len(second)) == (2, 4)
    assert totals == [5, 4]


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
    monkeypatch.setattr("agentgym.rollout.observer.TICK_S", 0)
    ticked = asyncio.Event()
    seen = []

    class Mine(NoProgress):
        def tick(self, in_flight):
            seen.append(len(in_flight))
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
