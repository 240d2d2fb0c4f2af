"""Environments that break every rule: each costs its own episode, never the batch."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from rolling import (
    ADD,
    SUBMIT,
    Hooked,
    Maker,
    RankingJudge,
    groups,
    read,
    settle,
    singles,
    submits,
)

from agentgym.clients import ScriptedClient
from agentgym.rollout import Engine, Limits, Retry
from agentgym.testing.envs import CounterEnv


class Once:
    """Whether something has happened yet; the first to ask makes it happen."""

    def __init__(self) -> None:
        self.over = False

    def __call__(self) -> bool:
        first, self.over = not self.over, True
        return first


def breaking(method: str, result: Any) -> Any:
    """Makes counters of which the first to come to `method` returns or raises what it must not."""
    once = Once()

    class Broken(CounterEnv):
        async def areset(self, **kwargs: Any) -> Any:
            told = await super().areset(**kwargs)
            return result(told) if method == "reset" and once() else told

        async def astep(self, action: Any) -> Any:
            if method == "step" and once():
                return result(await super().astep(action))
            if method == "instead of step" and once():
                return result(None)
            return await super().astep(action)

    return Broken


def raises(error: BaseException) -> Any:
    def result(_: Any) -> Any:
        raise error

    return result


@pytest.mark.parametrize(
    ("method", "result", "told"),
    [
        ("reset", lambda told: None, "reset() must return (messages, info), got None"),
        ("reset", lambda told: "hi", "reset() must return (messages, info), got 'hi'"),
        ("reset", lambda told: (None, told[1]), "list or tuple of messages first, got None"),
        ("reset", lambda told: ("text", told[1]), "does a wrapper make something else"),
        ("reset", lambda told: (told[0], None), "info as a dict, got None"),
        ("step", lambda told: None, "step() must return (messages, reward, terminated"),
        ("step", lambda told: (None, *told[1:]), "list or tuple of messages first, got None"),
        ("step", lambda told: (*told[:4], None), "info as a dict, got None"),
        ("instead of step", lambda _: ((), 0.0, False, False, {}), "did not record the action"),
    ],
)
async def test_env_that_returns_nonsense_fails_its_episode(method, result, told):
    client = ScriptedClient([ADD, SUBMIT])
    traces = await read(Engine(breaking(method, result), client=client), singles(3))
    failed = [trace for trace in traces if not trace.scored]
    assert [(t.failure_class, t.failed_stage) for t in failed] == [
        ("env", "init" if method == "reset" else "run")
    ]
    assert told in failed[0].error


@pytest.mark.parametrize("error", [GeneratorExit("x"), StopIteration(1), StopAsyncIteration(2)])
@pytest.mark.parametrize("method", ["reset", "instead of step", "policy", "close"])
async def test_end_of_a_generator_is_an_error_like_others(method, error):
    once = Once()

    class Closing(CounterEnv):
        def close(self) -> None:
            if method == "close":
                raise error

    async def policy(messages: Any) -> Any:
        if method == "policy" and once():
            raise error
        return SUBMIT

    env = Closing if method in ("policy", "close") else breaking(method, raises(error))
    engine = Engine(env, client=ScriptedClient(policy))
    async with engine:
        traces = await read(engine, singles(3))
    expected = {"policy": ["infra"], "close": []}.get(method, ["env"])
    assert [trace.failure_class for trace in traces if not trace.scored] == expected


async def test_env_whose_remains_no_record_can_hold_fails_its_episode():
    once = Once()

    class Env(CounterEnv):
        async def start(self, task: Any) -> Any:
            opening = await super().start(task)
            return ({"role": "user", "content": "hello", 5: 3},) if once() else opening

    traces = await read(Engine(Env, client=submits()), singles(3))
    assert [trace.failure_class for trace in traces if not trace.scored] == ["env"]


async def test_member_of_a_group_that_fails_after_the_judgement_is_not_replaced():
    """Its siblings are judged: nobody would judge the replacement."""
    once = Once()

    class Env(Hooked):
        broken = False

        async def start(self, task: Any) -> Any:
            self.broken = once()
            return await super().start(task)

        def extra_info(self) -> dict[str, Any]:
            return {"tools": [{5: "no trace can hold this"}]} if self.broken else {}

    retry = Retry(pause_s=0, env=0, min_group_size=3)
    engine = Engine(lambda: Env(judge=RankingJudge()), client=submits(), retry=retry)
    traces = await read(engine, groups(1, 3))
    assert sorted((trace.sample, trace.scored) for trace in traces) == [
        (0, False),
        (1, True),
        (2, True),
    ]


async def test_waiting_for_the_first_env_is_nobodys_time():
    """The others of a slow kind are made when the first is; their clocks start then."""
    made = 0
    lock = threading.Lock()
    later = threading.Barrier(3, timeout=30)

    def make() -> CounterEnv:
        nonlocal made
        with lock:
            made += 1
            first = made == 1
        if first:
            threading.Event().wait(0.4)
        else:
            later.wait()  # side by side
        return CounterEnv()

    limits = Limits(init_timeout_s=0.6, init_concurrency=4)
    pool_time = Engine(make, client=submits(), limits=limits)
    traces = await read(pool_time, singles(4))
    assert all(trace.scored for trace in traces)


async def test_env_still_being_made_for_a_cancelled_episode_is_closed_with_the_engine():
    making, let_go = threading.Event(), threading.Event()
    maker = Maker()

    def make() -> Hooked:
        making.set()
        let_go.wait(30)
        return maker()

    engine = Engine(make, client=submits())
    reading = asyncio.create_task(read(engine, singles(1)))
    await asyncio.to_thread(making.wait, 30)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    closing = asyncio.create_task(engine.aclose())
    await settle()
    assert not closing.done()
    let_go.set()
    await closing
    assert maker.made
    assert maker.all_closed


def test_env_that_is_ready_after_its_loop_was_closed_is_closed():
    making, let_go, closed = threading.Event(), threading.Event(), threading.Event()

    class Env(CounterEnv):
        def __init__(self) -> None:
            making.set()
            let_go.wait(30)
            super().__init__()

        def close(self) -> None:
            closed.set()

    async def give_up() -> None:
        engine = Engine(Env, client=submits())
        reading = asyncio.create_task(read(engine, singles(1)))
        await asyncio.to_thread(making.wait, 30)
        reading.cancel()

    asyncio.run(give_up())
    let_go.set()
    assert closed.wait(30)


def test_engine_closes_what_it_kept_on_event_loops_that_are_gone():
    maker = Maker()
    engine = Engine(maker, client=submits())
    asyncio.run(read(engine, singles(1)))
    gc.collect()
    asyncio.run(read(engine, singles(1)))
    assert [env.closed for env in maker.made] == [True, False]
    engine.close()
    assert maker.all_closed


async def test_first_env_that_is_never_ready_holds_up_nobody_else():
    let_go = threading.Event()
    once = Once()

    def make() -> CounterEnv:
        if once():
            let_go.wait(30)
        return CounterEnv()

    limits = Limits(init_timeout_s=0.1, init_concurrency=4)
    traces = await read(Engine(make, client=submits(), limits=limits), singles(4))
    let_go.set()
    assert [trace.failed_stage for trace in traces if not trace.scored] == ["init"]
