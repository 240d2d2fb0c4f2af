"""What an engine is doing: counted right, told at any time and from any thread, readable."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.client import Endpoint
from agentgym.clients import ScriptedClient
from agentgym.clients.balanced import BalancedClient
from agentgym.errors import EndpointError
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.rollout.combined import combined, history_of
from agentgym.rollout.local import LocalBackend
from agentgym.rollout.observer import Observer
from agentgym.rollout.progress import NoProgress
from agentgym.rollout.stage_figures import SeenStages
from agentgym.rollout.status import (
    EngineStatus,
    EpisodeCounts,
    EpisodeStatus,
    Histogram,
    LoopLag,
    Rates,
    StageStatus,
    Waiters,
    dollars_text,
    oldest,
    waits,
)
from agentgym.rollout.tally import Buckets, LagSamples, Sample, Tally, Window
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.testing.envs import CounterEnv
from agentgym.threads import abandoned, in_thread
from agentgym.trace import EarlierAttempt, Trace
from agentgym.types import Turn, Usage, Verdict

SUBMIT = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "submit", "arguments": "{}"}}],
}


def trace(reward: float | None = 1.0, **facts: Any) -> Trace:
    return Trace(
        trace_id="x",
        env_spec="{}",
        verdict=Verdict(reward=reward, masked=reward is None),
        started_at="2026-01-01T00:00:00+00:00",
        **facts,
    )


# --- a whole engine ------------------------------------------------------------------------------


async def test_status_in_the_middle_of_a_run_says_where_everybody_is(monkeypatch):
    monkeypatch.setattr("agentgym.rollout.observer.TICK_S", 0)
    release, settled = asyncio.Event(), asyncio.Event()

    class Settled(NoProgress):
        def tick(self, in_flight: Any) -> None:
            where = sorted((each.stage, each.waiting) for each in in_flight)
            if where == [("run", "policy")] * 2 + [("run", "slot")] * 3:
                settled.set()

    async def think(messages: Any) -> Any:
        await release.wait()
        return SUBMIT

    limits = Limits(concurrency=2, init_concurrency=3)
    client = ScriptedClient(think)
    engine = Engine(CounterEnv, client=client, limits=limits, progress=Settled())
    requests = [EpisodeRequest(task_id="counter/5", seed=k) for k in range(9)]
    async with asyncio.timeout(60), engine:
        run = asyncio.create_task(collected(engine, requests))
        await settled.wait()
        status = engine.status()
        release.set()
        await run
    assert status.runs == 1
    assert status.episodes == EpisodeCounts(requested=9)
    assert status.in_flight == 5
    assert [(g.stage, g.waiting, g.episodes) for g in status.waiting] == [
        ("run", "slot", 3),
        ("run", "policy", 2),
    ]
    init, run_stage, _ = status.stages
    assert (init.name, init.slots, init.active, init.entered) == ("init", 3, 0, 5)
    assert (run_stage.slots, run_stage.active, run_stage.waiting) == (2, 2, 3)
    assert status.admission is not None
    assert (status.admission.places, status.admission.taken) == (5, 5)
    assert status.admission.waiting == 1
    assert [episode.name for episode in status.oldest[:2]] == ["counter/5@0.0", "counter/5@1.0"]
    assert json.loads(status.model_dump_json())["in_flight"] == 5
    assert EngineStatus.model_validate_json(status.model_dump_json()) == status
    after = engine.status()
    assert (after.runs, after.in_flight, after.turns) == (0, 0, 9)
    assert (after.episodes.finished, after.episodes.scored) == (9, 9)
    assert after.histograms["turns"].counts[0] == 9
    assert after.elapsed_s == engine.status().elapsed_s  # no run goes on


async def collected(engine: Engine, requests: list[EpisodeRequest]) -> list[Trace]:
    return [trace async for trace in engine.run(requests)]


def test_counters_go_on_over_runs_and_event_loops():
    engine = Engine(CounterEnv, client=ScriptedClient([SUBMIT]))
    for _ in range(3):
        engine.run_blocking([EpisodeRequest(seed=k) for k in range(4)])
    status = engine.status()
    assert (status.episodes.requested, status.episodes.finished, status.turns) == (12, 12, 12)
    assert status.runs == 0
    engine.run_blocking(EpisodeRequest(seed=k) for k in range(2))  # nobody knows how many come
    assert engine.status().episodes.requested is None


def test_status_before_any_run_is_empty():
    status = Engine(CounterEnv, client=ScriptedClient([SUBMIT])).status()
    assert (status.runs, status.in_flight, status.stages, status.loop_lag) == (0, 0, (), None)
    assert status.text() == "0/0 episodes in 0 s · scored 0\nnone in flight\n0 turns, 0 tokens"


async def test_failures_are_counted_by_class_and_never_as_a_number():
    down = EndpointError("no connection", retryable=True)
    engine = Engine(CounterEnv, client=ScriptedClient([down]), retry=None)
    async with engine:
        await collected(engine, [EpisodeRequest(seed=k) for k in range(3)])
    counts = engine.status().episodes
    assert (counts.finished, counts.scored, counts.masked) == (3, 0, {"infra": 3})
    assert counts.mean_reward is None


async def test_any_thread_may_ask_while_episodes_come_and_go():
    engine = Engine(CounterEnv, client=ScriptedClient([SUBMIT]), limits=Limits(concurrency=50))
    over, errors = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            try:
                engine.status().text()
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    async with engine:
        await collected(engine, [EpisodeRequest(seed=k) for k in range(100)])
    over.set()
    thread.join()
    assert errors == []


async def test_replicas_are_told_where_the_client_has_several():
    endpoints = [Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m") for port in (1, 2)]
    client = BalancedClient(endpoints)
    client.pause("127.0.0.1:2")
    status = Observer(NoProgress(), client=client).status()
    await client.aclose()
    assert [(r["name"], r["state"]) for r in status.replicas] == [
        ("127.0.0.1:1", "ready"),
        ("127.0.0.1:2", "paused"),
    ]
    assert "replicas 1/2 ready, 0 to 0 requests in flight each; 127.0.0.1:2 paused" in status.text()


def test_a_client_whose_status_is_something_else_is_no_matter():
    class Mine:
        def status(self) -> str:
            return "fine"

    assert Observer(NoProgress(), client=Mine()).status().replicas == ()


async def test_threads_that_were_left_behind_are_counted_until_they_end():
    let_go, began, at_work = threading.Event(), threading.Event(), []

    def hang() -> None:
        at_work.append(threading.current_thread())
        began.set()
        let_go.wait(60)

    before = abandoned()
    task = asyncio.create_task(in_thread(hang))
    await asyncio.to_thread(began.wait)
    assert abandoned() == before
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert abandoned() == before + 1
    let_go.set()
    await asyncio.to_thread(at_work[0].join)
    assert abandoned() == before


# --- counting ------------------------------------------------------------------------------------


def test_tally_adds_up_episodes():
    tally = Tally()
    broken = EarlierAttempt(failure_class="infra", failed_stage="run", error="reset")
    usage = {"policy": Usage(prompt_tokens=10, completion_tokens=5), "judge": Usage(cost_usd=0.5)}
    tally.finish(trace(1.0, usage=usage, earlier=(broken,), truncation_reason="turns"))
    tally.finish(trace(0.0, usage=usage, stage_s={"init": 0.2, "run": 2.0}))
    tally.finish(trace(None, failure_class="judge"))
    assert tally.episodes() == EpisodeCounts(
        requested=0,
        finished=3,
        scored=2,
        masked={"judge": 1},
        truncated={"turns": 1},
        reruns=1,
        mean_reward=0.5,
    )
    assert tally.usage["policy"].prompt_tokens == 20
    assert tally.usage["judge"].cost_usd == 1.0
    histograms = tally.histograms()
    assert sum(histograms["run_s"].counts) == 1
    assert histograms["run_s"].total == 2.0
    assert histograms["episode_s"].total == pytest.approx(2.2)


def test_a_value_at_a_bound_is_in_the_bucket_below():
    buckets = Buckets([1, 2])
    for value in (0.5, 1, 1.5, 2, 99):
        buckets.add(value)
    assert buckets.histogram() == Histogram(bounds=(1.0, 2.0), counts=(2, 2, 1), total=104.0)


def test_long_episodes_fall_into_distinct_buckets():
    tally = Tally()
    message = {"role": "assistant", "content": ""}
    for count in (1, 5, 30, 100):
        tally.finish(trace(turns=tuple(Turn(index=k, message=message) for k in range(count))))
    assert sum(count > 0 for count in tally.histograms()["turns"].counts) == 4


def sample(at_s: float, tokens: int = 0, busy_s: float = 0.0) -> Sample:
    return Sample(at_s, tokens, turns=tokens // 10, finished=tokens // 100, busy_s={"run": busy_s})


def test_rates_are_those_of_the_last_minute():
    window = Window()
    for second in range(0, 200, 10):
        window.add(sample(second, tokens=100 * second if second < 100 else 10_000))
    assert window.rates(sample(200, tokens=13_000)) == Rates(
        window_s=60, tokens_per_s=50, turns_per_s=5, episodes_per_s=0.5
    )
    assert window.rates(sample(1000)) == Rates()  # nothing ran lately


def test_occupancy_is_the_share_of_slot_seconds_used():
    window = Window()
    window.add(sample(0, busy_s=0))
    assert window.occupancy("run", 4, sample(10, busy_s=30)) == 0.75
    assert window.occupancy("eval", 4, sample(10, busy_s=30)) is None
    assert window.occupancy("run", 4, sample(0)) is None


def test_loop_lag_counts_what_is_overdue_just_now():
    samples = LagSamples()
    for k in range(100):
        samples.add(k * 0.1, 0.001 * (k + 1))
    assert samples.lag() == LoopLag(p50_s=0.05, p99_s=0.099, max_s=0.1)
    assert samples.lag(overdue_s=7.0).max_s == 7.0
    samples.add(100.0, 0.002)
    assert samples.lag().max_s == 0.002  # older than a minute


def test_waits_are_grouped_and_the_longest_stands_for_its_group():
    episodes = [Whereabouts(f"t/{k}@0.0") for k in range(4)]
    for where in episodes[:3]:
        where.moves("run", "policy")
    episodes[1].since -= 100
    episodes[3].began -= 7
    groups = waits(episodes)
    assert [(g.stage, g.waiting, g.episodes, g.longest.name) for g in groups] == [
        ("run", "policy", 3, "t/1@0.0"),
        ("init", "slot", 1, "t/3@0.0"),
    ]
    assert [each.name for each in oldest(episodes, 2)] == ["t/3@0.0", "t/0@0.0"]


def test_stages_kept_elsewhere_are_told_from_where_the_episodes_are():
    """On a cluster the slots are on other machines; only whereabouts come back."""
    tally = Tally()
    tally.finish(trace(stage_s={"init": 1.0, "run": 6.0}))
    seen = SeenStages(Limits(concurrency=4), tally)
    episodes = [Whereabouts(f"t/{k}@0.0") for k in range(6)]
    for where in episodes[:2]:
        where.moves("run", "policy")
    episodes[2].moves("run", "env")
    episodes[3].moves("run", "slot")
    episodes[4].moves("eval", "siblings")  # which hold no slot
    seen.look(episodes, 100.0)
    seen.look(episodes, 110.0)
    init, run, evaluation = seen.stages
    assert (run.slots, run.active, run.waiting, run.entered, run.mean_s) == (4, 3, 1, 4, 6.0)
    assert run.busy_s == 30.0
    assert (init.active, init.waiting, init.entered) == (0, 1, 1)
    assert (evaluation.active, evaluation.mean_s) == (0, None)


async def test_an_engine_with_a_backend_of_its_own_still_has_stages():
    class Elsewhere:
        """Keeps its slots to itself."""

        def __init__(self, backend: LocalBackend) -> None:
            self.backend = backend
            self.in_flight = backend.in_flight
            self.batch = backend.batch
            self.aclose = backend.aclose

    client = ScriptedClient([SUBMIT])
    limits = Limits(concurrency=3)
    played = Engine(CounterEnv, client=client, limits=limits)
    backend = LocalBackend(played._source, played._setting)
    engine = Engine(CounterEnv, client=client, limits=limits, backend=Elsewhere(backend))
    async with engine:
        await collected(engine, [EpisodeRequest(seed=k) for k in range(4)])
        status = engine.status()
    assert [(s.name, s.slots, s.entered) for s in status.stages] == [
        ("init", 16, 4),
        ("run", 3, 4),
        ("eval", 64, 4),
    ]
    assert status.admission is None


async def test_each_event_loop_that_an_engine_runs_on_is_watched():
    observer, backend = Observer(NoProgress()), SimpleNamespace(in_flight=list)
    watching = [t for t in threading.enumerate() if t.name == "rollout-loop-watch"]

    def elsewhere() -> None:
        async def run() -> None:
            async with observer.watching(backend):
                entered.set()
                await asyncio.to_thread(leave.wait)

        asyncio.run(run())

    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)
    async with observer.watching(backend), observer.watching(backend):
        thread.start()
        await asyncio.to_thread(entered.wait)
        now = [t for t in threading.enumerate() if t.name == "rollout-loop-watch"]
        assert len(now) == len(watching) + 2
        assert observer.status().runs == 3
    assert observer.status().runs == 1
    leave.set()
    await asyncio.to_thread(thread.join)
    assert observer.status().runs == 0
    assert observer._loops == {}


def test_an_engine_on_two_event_loops_tells_of_both():
    """Each has slots of its own."""
    begun, go_on = threading.Barrier(3), threading.Event()

    async def think(messages: Any) -> Any:
        if not begun.broken:
            await asyncio.to_thread(begun.wait, 30)
        await asyncio.to_thread(go_on.wait, 30)
        return SUBMIT

    engine = Engine(CounterEnv, client=ScriptedClient(think), limits=Limits(concurrency=3))

    def play(seed: int) -> None:
        asyncio.run(collected(engine, [EpisodeRequest(seed=seed)]))

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    during = engine.status()
    go_on.set()
    for thread in threads:
        thread.join()
    assert (during.runs, during.in_flight) == (2, 2)
    run = during.stages[1]
    assert (run.slots, run.active, run.entered) == (6, 2, 2)
    assert during.admission is not None
    assert during.admission.taken == 2
    after = engine.status()
    assert (after.runs, after.in_flight, after.episodes.finished) == (0, 0, 2)


def test_occupancy_is_that_of_the_slots_there_are():
    window = Window()
    window.add(Sample(0.0, 0, 0, 0, {"run": 50.0}, "before"))
    window.add(Sample(10.0, 0, 0, 0, {"run": 0.0}, "now"))
    now = Sample(20.0, 40, 0, 0, {"run": 5.0}, "now")
    assert window.occupancy("run", 1, now) == 0.5
    assert window.rates(now).tokens_per_s == 2.0


# --- several engines -----------------------------------------------------------------------------


def waiting(count: int, waited_s: float) -> Waiters:
    longest = EpisodeStatus(
        name=f"{count}",
        stage="run",
        waiting="policy",
        waited_s=waited_s,
        age_s=waited_s,
        turn=0,
        attempt=0,
    )
    return Waiters(stage="run", waiting="policy", episodes=count, longest=longest)


def status(slots_id: str, *, scored: int = 1, waited_s: float = 1.0) -> EngineStatus:
    return EngineStatus(
        runs=1,
        elapsed_s=10,
        episodes=EpisodeCounts(
            requested=5, finished=scored + 1, scored=scored, masked={"env": 1}, mean_reward=0.5
        ),
        in_flight=3,
        waiting=(waiting(3, waited_s),),
        oldest=(waiting(3, waited_s).longest,),
        stages=(
            StageStatus(
                name="run", slots=4, active=2, waiting=1, entered=6, mean_s=3.0, occupancy=0.5
            ),
        ),
        slots_id=slots_id,
        turns=10,
        tokens=100,
        rates=Rates(window_s=60, tokens_per_s=5),
        usage={"policy": Usage(prompt_tokens=7)},
        loop_lag=LoopLag(p50_s=0.001, p99_s=waited_s, max_s=waited_s),
        histograms={"turns": Histogram(bounds=(1.0,), counts=(1, scored), total=3.0)},
    )


def test_engines_together_are_the_sum_of_them():
    both = combined([status("a", scored=1), status("b", scored=3, waited_s=9.0)])
    assert (both.runs, both.in_flight, both.turns, both.tokens) == (2, 6, 20, 200)
    assert both.episodes == EpisodeCounts(
        requested=10, finished=6, scored=4, masked={"env": 2}, mean_reward=0.5
    )
    assert [(g.episodes, g.longest.waited_s) for g in both.waiting] == [(6, 9.0)]
    (run,) = both.stages
    assert (run.slots, run.active, run.waiting, run.mean_s, run.occupancy) == (8, 4, 2, 3.0, 0.5)
    assert both.rates.tokens_per_s == 10
    assert both.usage["policy"].prompt_tokens == 14
    assert both.loop_lag == LoopLag(p50_s=0.001, p99_s=9.0, max_s=9.0)
    assert both.histograms["turns"].counts == (2, 4)


def test_slots_that_engines_share_count_once():
    (run,) = combined([status("a"), status("a")]).stages
    assert (run.slots, run.active) == (4, 2)


def test_history_is_what_was_counted_without_the_moment():
    past = history_of(status("a"))
    assert (past.turns, past.episodes.finished, past.histograms["turns"].total) == (10, 2, 3.0)
    assert (past.runs, past.in_flight, past.stages, past.waiting) == (0, 0, (), ())


# --- as text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0.0, "$0"), (4e-5, "<$0.0001"), (0.31, "$0.31"), (999.5, "$999.5"), (10000, "$10,000.00")],
)
def test_dollars_are_never_a_power_of_ten(usd, text):
    assert dollars_text(usd) == text


def test_text_is_a_few_lines():
    full = status("a").model_copy(
        update={
            "usage": {"policy": Usage(prompt_tokens=7000, completion_tokens=90, cost_usd=0.25)},
            "abandoned_threads": 2,
            "replicas": (
                {"name": "gpu1:8000", "state": "ready", "in_flight": 4},
                {"name": "gpu2:8000", "state": "ejected", "last_error": "connection refused"},
            ),
        }
    )
    episodes, where, stages, speed, usage, replicas, first = full.text().splitlines()
    assert episodes == "2/5 episodes in 10 s · scored 1 · masked 1 (env 1) · reward 0.500"
    assert where == "3 in flight, waiting: 3 for the policy (longest 1 s)"
    assert stages == "run 2/4 (50% used), 1 queued, 3 s each"
    assert speed.startswith("10 turns, 100 tokens · last 60 s: 5 tok/s, 0.0 turns/s, 0.00 ep")
    assert speed.endswith(" · loop lag p99 1000 ms, most 1000 ms · 2 abandoned threads")
    assert usage == "policy 7,000 in, 90 out, $0.25"
    assert replicas == (
        "replicas 1/2 ready, 4 to 4 requests in flight each; gpu2:8000 ejected (connection refused)"
    )
    assert first == "oldest: 3 for 1 s, turn 0"
