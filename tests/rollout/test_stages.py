"""Stages: nobody waits for a slower stage than their own, and no queue grows without end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from gymnasium.wrappers import RecordEpisodeStatistics
from rolling import (
    SUBMIT,
    Deaf,
    Judge,
    Maker,
    RankingJudge,
    call,
    groups,
    never,
    read,
    settle,
    singles,
    submits,
    until,
)

import agentgym.rollout.leash as leash
from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError
from agentgym.rollout import Engine, Limits, Stages
from agentgym.rollout.outbox import Outbox
from agentgym.rollout.stages import Admission, StageSlots
from agentgym.testing.envs import CounterEnv, SlowCounterEnv
from agentgym.threads import Threads
from agentgym.trace import Trace
from agentgym.wrappers import TurnCap

# --- slots ------------------------------------------------------------------------------------


async def test_slots_count_who_waits_and_who_is_inside():
    stage = StageSlots("run", slots=1)
    held: dict[str, float] = {}
    first = stage.slot(held)
    await first.__aenter__()
    second = asyncio.create_task(stage.slot(held).__aenter__())
    await settle()
    assert (stage.active, stage.waiting, stage.entered, second.done()) == (1, 1, 1, False)
    first.give_back()
    first.give_back()  # by whoever is first; the second time changes nothing
    await second
    assert (stage.active, stage.waiting, stage.entered) == (1, 0, 2)
    assert stage.busy_s >= held["run"] > 0


async def test_cancelled_waiter_gives_up_its_place_in_the_line():
    stage = StageSlots("run", slots=1)
    held: dict[str, float] = {}
    async with stage.slot(held):
        waiting = [asyncio.create_task(stage.slot(held).__aenter__()) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        await settle()
        assert stage.waiting == 2
    await settle()
    assert waiting[1].done()
    assert not waiting[2].done()
    waiting[2].cancel()


async def test_full_stage_admits_nobody_until_somebody_is_served():
    last = StageSlots("eval", slots=1, backlog=2)
    admission = Admission(10, last)
    held: dict[str, float] = {}
    holder = last.slot(held)
    await holder.__aenter__()
    waiting = [asyncio.create_task(last.slot(held).__aenter__()) for _ in range(2)]
    await settle()
    assert last.is_full
    admitted = asyncio.create_task(admission.acquire())
    cancelled = asyncio.create_task(admission.acquire())
    await settle()
    assert admission.taken == 0
    cancelled.cancel()
    holder.give_back()
    await admitted
    assert (admission.taken, admission.waiting) == (1, 0)
    for task in waiting:
        task.cancel()


async def test_stage_that_fills_up_while_waiting_for_a_place_still_admits_nobody():
    last = StageSlots("eval", slots=1, backlog=1)
    admission = Admission(1, last)
    await admission.acquire()
    second = asyncio.create_task(admission.acquire())
    await settle()
    held: dict[str, float] = {}
    holder = last.slot(held)
    await holder.__aenter__()
    waiting = asyncio.create_task(last.slot(held).__aenter__())
    await settle()
    admission.release()
    await settle()
    assert not second.done()
    assert admission.taken == 0
    holder.give_back()
    await second
    await waiting


# --- back-pressure ----------------------------------------------------------------------------


async def test_slow_judge_bounds_how_many_unjudged_episodes_pile_up():
    release = asyncio.Event()
    limits = Limits(concurrency=2, init_concurrency=1, eval_concurrency=1, backlog=4)
    maker = Maker(judge=Judge(lambda _: release.wait()))
    client = submits()
    engine = Engine(maker, client=client, limits=limits)
    reading = asyncio.create_task(read(engine, singles(200)))
    await until(lambda: client.calls >= 5)
    # One in the judge, four that may wait, and the three that had begun when the fourth came.
    assert 5 <= client.calls <= 1 + 4 + 3
    release.set()
    traces = await reading
    assert len({trace.seed for trace in traces}) == 200
    await engine.aclose()


async def test_full_judge_never_holds_up_an_episode_in_the_middle():
    """Those that have begun play on to their ends, whatever waits for EVAL."""
    release = asyncio.Event()
    limits = Limits(concurrency=4, init_concurrency=4, eval_concurrency=1, backlog=1)
    client = ScriptedClient([call("add", amount=1)] * 5 + [SUBMIT])
    engine = Engine(Maker(judge=Judge(lambda _: release.wait())), client=client, limits=limits)
    reading = asyncio.create_task(read(engine, singles(40)))

    def busy() -> int:
        return sum(stage.active for stage in engine.status().stages if stage.name != "eval")

    await until(lambda: client.calls >= 12 and not busy())
    assert client.calls % 6 == 0
    release.set()
    assert len(await reading) == 40
    await engine.aclose()


@pytest.mark.parametrize("order", ["adjacent", "rounds"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_bounded_queues_and_groups_never_wait_for_each_other(order, concurrency):
    judge = RankingJudge()
    limits = Limits(concurrency=concurrency, init_concurrency=1, eval_concurrency=1, backlog=1)
    requests = groups(12, 4)
    if order == "rounds":
        requests.sort(key=lambda request: request.sample)
    engine = Engine(Maker(judge=judge), client=submits(), limits=limits)
    async with asyncio.timeout(20):
        traces = await read(engine, requests)
    assert len(traces) == 48
    assert sorted(map(len, judge.groups)) == [4] * 12
    await engine.aclose()


async def test_slow_reader_holds_up_what_has_not_begun_and_loses_nothing():
    limits = Limits(concurrency=2, init_concurrency=1, backlog=5)
    client = submits()
    engine = Engine(CounterEnv, client=client, limits=limits)
    seen: list[Trace] = []
    most = 0
    async for trace in engine.run(singles(100)):
        seen.append(trace)
        await settle(200)
        most = max(most, client.calls - len(seen))
    assert 5 <= most <= 5 + 2 + 1
    assert sorted(trace.seed or 0 for trace in seen) == list(range(100))
    await engine.aclose()


async def test_outbox_gives_everything_in_order_and_then_ends():
    outbox = Outbox(room=2)
    taken: list[Any] = []

    async def reader() -> None:
        while (trace := await outbox.take()) is not None:
            taken.append(trace)

    reading = asyncio.create_task(reader())
    await settle()
    for number in range(1, 6):
        outbox.put([number])  # type: ignore[list-item]  # anything will do
        await settle(number)
    outbox.put([6, 7])  # type: ignore[list-item]
    outbox.close()
    await reading
    assert taken == [1, 2, 3, 4, 5, 6, 7]
    assert len(outbox) == 0
    await asyncio.wait_for(outbox.room(), 5)


async def test_judging_goes_on_while_others_roll_out():
    judged, rolling = asyncio.Event(), asyncio.Event()

    async def judge(_: Any) -> None:
        await rolling.wait()
        judged.set()

    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/2":
            rolling.set()
            await judged.wait()  # the first one's verdict, in the middle of the second one's turn
        return SUBMIT

    limits = Limits(concurrency=1, init_concurrency=1)
    engine = Engine(Maker(judge=Judge(judge)), client=ScriptedClient(policy), limits=limits)
    requests = [r.model_copy(update={"group": None}) for r in groups(2, 1)]
    async with asyncio.timeout(20):
        assert len(await read(engine, requests)) == 2
    await engine.aclose()


async def test_fan_out_of_a_judge_keeps_to_its_own_limit():
    """E22: UKGovernmentBEIS/inspect_ai#4246."""
    now = most = 0

    async def judge(_: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await settle(20)
        now -= 1

    limits = Limits(concurrency=64, eval_concurrency=8, backlog=1000)
    engine = Engine(Maker(judge=Judge(judge)), client=submits(), limits=limits)
    assert len(await read(engine, singles(300))) == 300
    assert most == 8
    await engine.aclose()


# --- several engines --------------------------------------------------------------------------


async def test_engines_on_several_loops_cannot_share_slots():
    """Who waits on one loop is never told what another frees."""
    entered = asyncio.Event()

    async def policy(messages: Any) -> Any:
        entered.set()
        await never()

    stages = Stages(Limits())
    here = Engine(CounterEnv, client=ScriptedClient(policy), stages=stages)
    reading = asyncio.create_task(read(here, singles(1)))
    await entered.wait()
    there = Engine(CounterEnv, client=submits(), stages=stages)
    with pytest.raises(ConfigError, match="another event loop"):
        await asyncio.to_thread(there.run_blocking, singles(1))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len(await asyncio.to_thread(there.run_blocking, singles(1))) == 1, "one after the other"


async def test_engines_that_share_stages_share_their_slots():
    now = most = 0

    async def policy(_: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await settle(5)
        now -= 1
        return SUBMIT

    limits = Limits(concurrency=3, init_concurrency=2)
    stages = Stages(limits)
    engines = [
        Engine(CounterEnv, client=ScriptedClient(policy), limits=limits, stages=stages)
        for _ in range(3)
    ]
    runs = await asyncio.gather(*(read(engine, singles(20)) for engine in engines))
    assert [len(traces) for traces in runs] == [20] * 3
    assert most == 3
    for engine in engines:
        await engine.aclose()


# --- what won't stop --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["start", "step", "policy", "judge", "release"])
async def test_what_swallows_its_cancellation_is_left_behind_and_holds_no_slot(where, caplog):
    deaf = Deaf()
    first = asyncio.Event()

    async def once(*args: Any) -> None:
        if not first.is_set():
            first.set()
            await deaf()

    class Client(ScriptedClient):
        async def release(self, session: str) -> None:
            if where == "release":
                await once()

    async def policy(_: Any) -> Any:
        if where == "policy":
            await once()
        return SUBMIT

    parameters: dict[str, Any] = {where: once} if where in ("start", "step") else {}
    maker = Maker(judge=Judge(once if where == "judge" else None), **parameters)
    short = {f"{stage}_timeout_s": 0.05 for stage in ("init", "turn", "eval", "cleanup")}
    limits = Limits(concurrency=1, init_concurrency=1, eval_concurrency=1, **short)
    engine = Engine(maker, client=Client(policy), limits=limits)
    async with asyncio.timeout(20):
        reading = asyncio.create_task(read(engine, singles(5)))
        if where == "release":
            await deaf.entered.wait()
            deaf.let_go.set()
        traces = await reading
    failed = [trace for trace in traces if not trace.scored]
    if where == "release":
        assert (len(traces), failed) == (5, [])
    else:
        expected = ("judge", "eval") if where == "judge" else ("infra", "run")
        expected = ("infra", "init") if where == "start" else expected
        assert [(t.failure_class, t.failed_stage) for t in failed] == [expected]
        assert "did not stop" in (failed[0].error or "")
        assert "left behind" in caplog.text
        assert leash.strays() == 1
        assert all(stage.active == 0 for stage in engine.status().stages)
        deaf.let_go.set()
        await settle()
        assert leash.strays() == 0
    await engine.aclose()
    assert maker.all_closed


async def test_batch_that_is_stopped_does_not_wait_for_what_won_t_stop():
    deaf = Deaf()
    maker = Maker(step=deaf)
    engine = Engine(maker, client=submits(), limits=Limits(cleanup_timeout_s=0.05))
    reading = asyncio.create_task(read(engine, singles(3)))
    await deaf.entered.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert deaf.told >= 3
    assert maker.all_closed
    deaf.let_go.set()
    await settle()
    assert leash.strays() == 0
    await engine.aclose()


async def test_step_that_swallows_a_deadline_and_returns_is_a_step_like_others():
    async def stubborn(_: Any) -> None:
        try:
            await never()
        except asyncio.CancelledError:
            return

    engine = Engine(Maker(step=stubborn), client=submits(), limits=Limits(turn_timeout_s=0.05))
    (trace,) = await read(engine, singles(1))
    assert trace.scored
    await engine.aclose()


# --- threads ----------------------------------------------------------------------------------


def plain(env: CounterEnv) -> Any:
    """Behind a wrapper without async methods, so that the env runs in threads."""
    return RecordEpisodeStatistics(env)


async def test_plain_environments_run_in_so_many_threads_and_no_more():
    """E04: the loop stays free, and there is a ceiling."""
    lock = threading.Lock()
    meet = threading.Barrier(4, timeout=30)
    now = most = steps = 0

    class Env(CounterEnv):
        def step(self, action: Any) -> Any:
            nonlocal now, most, steps
            with lock:
                steps += 1
                now += 1
                most = max(most, now)
                is_early = steps <= 8
            if is_early:
                meet.wait()  # four at once, or never
            try:
                return super().step(action)
            finally:
                with lock:
                    now -= 1

    limits = Limits(concurrency=32, max_threads=4)
    engine = Engine(lambda: plain(Env()), client=submits(), limits=limits)
    ticks = 0

    async def heartbeat() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    beat = asyncio.create_task(heartbeat())
    traces = await read(engine, singles(40))
    beat.cancel()
    assert all(trace.scored for trace in traces)
    assert most == 4
    assert ticks > 10
    await engine.aclose()


async def test_calls_from_inside_a_thread_need_no_second_place():
    """An env in a thread whose tools go to threads, too: with one place, that would never end."""
    slow = call("add_slowly", amount=1, milliseconds=1)
    engine = Engine(
        lambda: plain(SlowCounterEnv()),
        client=ScriptedClient([slow, SUBMIT]),
        limits=Limits(max_threads=1),
    )
    async with asyncio.timeout(20):
        traces = await read(engine, singles(6))
    assert all(trace.scored for trace in traces)
    await engine.aclose()


async def test_stuck_threads_are_replaced_up_to_a_bound_and_then_a_clear_error():
    """E05: open-jarvis/OpenJarvis#749."""
    release = threading.Event()

    class Env(CounterEnv):
        def step(self, action: Any) -> Any:
            release.wait(60)
            return super().step(action)

    limits = Limits(
        concurrency=8, max_threads=6, turn_timeout_s=0.05, min_failures=50, cleanup_timeout_s=5
    )
    engine = Engine(lambda: plain(Env()), client=submits(), limits=limits)
    async with asyncio.timeout(30):
        traces = await read(engine, singles(20))
    release.set()
    stuck = [t for t in traces if "turn_timeout_s passed" in (t.error or "")]
    refused = [t for t in traces if "blocking calls that were given up" in (t.error or "")]
    assert len(stuck) >= 6
    assert len(refused) >= 1
    assert [trace.error for trace in traces if trace not in stuck + refused] == []
    await engine.aclose()


async def test_place_of_a_cancelled_waiter_goes_to_the_next_one():
    threads = Threads(1)
    gate = threading.Event()
    first = asyncio.create_task(threads.run(lambda: gate.wait(30)))
    await settle()
    waiting = [asyncio.create_task(threads.run(lambda n=n: n)) for n in range(3)]
    await settle()
    assert (threads.running, threads.waiting) == (1, 3)
    waiting[0].cancel()
    gate.set()
    assert await first
    assert await asyncio.gather(*waiting[1:]) == [1, 2]
    assert (threads.running, threads.waiting, threads.abandoned) == (0, 0, 0)


@pytest.mark.parametrize("outermost", ["AgentWrapper", "gymnasium"])
async def test_agent_wrapper_around_a_made_env_needs_no_thread(outermost):
    import gymnasium

    from agentgym.rollout.pool import EnvHandle

    gymnasium.register("agentgym_tests/Made-v0", entry_point="agentgym.testing.envs:CounterEnv")
    try:
        made = gymnasium.make("agentgym_tests/Made-v0")
        env: Any = TurnCap(made, 2) if outermost == "AgentWrapper" else made
        handle = EnvHandle(env)
        assert handle.is_async
        (_, info) = await handle.reset(seed=1, options={"judging": "deferred"})
        assert info["task_id"]
        await handle.step(call("add", amount=1))
        _, over, info = await handle.step(call("add", amount=1))
        assert over is (outermost == "AgentWrapper")
        assert not EnvHandle(TurnCap(RecordEpisodeStatistics(CounterEnv()), 2)).is_async
    finally:
        del gymnasium.registry["agentgym_tests/Made-v0"]


def test_limits_are_told_in_one_line():
    line = Limits(concurrency=7, max_turns=9).describe()
    assert line.startswith("7 episodes at once")
    assert "9 turns" in line
    assert "\n" not in line
