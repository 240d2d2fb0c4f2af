"""Whatever breaks, wherever it waits: nothing is lost, nothing comes twice, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rolling import ADD, SUBMIT, Judge, Maker, RankingJudge, groups, read, settle, singles

from agentgym.clients import ScriptedClient
from agentgym.deadline import queued
from agentgym.errors import EndpointError, EnvFault, JudgeError, SimulatorError
from agentgym.rollout import Engine, Enough, EpisodeRequest, Limits, Retry
from agentgym.trace import Trace


class Client(ScriptedClient):
    """Yields to the loop in every call, and remembers which sessions are open."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.open: Counter[str] = Counter()

    async def complete(self, *args: Any, session: Any = None, **kwargs: Any) -> Any:
        self.open[session] += 1
        await asyncio.sleep(0)
        return await super().complete(*args, session=session, **kwargs)

    async def release(self, session: str) -> None:
        await asyncio.sleep(0)
        del self.open[session]


async def short(*_: Any) -> None:
    await asyncio.sleep(0)


def idle(engine: Engine) -> bool:
    """Whether every slot and every place is free."""
    status = engine.status()
    taken = [stage.active + stage.waiting for stage in status.stages]
    admitted = status.admission.taken if status.admission is not None else 0
    return not (any(taken) or admitted or status.in_flight)


async def tasks_left() -> list[Any]:
    await settle(5)
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


# --- cancelled at every await -----------------------------------------------------------------


async def cancelled_after(steps: int, together: bool) -> bool:
    """Cancel a run after so many steps of the loop; whether it was over by then."""
    judge: Any = RankingJudge(short) if together else Judge(short)
    maker = Maker(judge=judge, start=short, step=short)
    client = Client([ADD, SUBMIT])
    limits = Limits(concurrency=2, init_concurrency=1, eval_concurrency=1)
    engine = Engine(maker, client=client, limits=limits)
    reading = asyncio.create_task(read(engine, groups(1, 3)))
    for _ in range(steps):
        await asyncio.sleep(0)
    over = reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert idle(engine), f"cancelled after {steps} steps"
    assert not client.open, f"cancelled after {steps} steps"
    assert len(await read(engine, groups(1, 2))) == 2, "the engine is as good as new"
    assert idle(engine)
    await engine.aclose()
    assert maker.all_closed
    assert await tasks_left() == []
    return over


@pytest.mark.parametrize("together", [False, True])
async def test_run_that_is_cancelled_at_any_await_gives_everything_back(together):
    """E02, E03: every await of an episode, one after the other."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    for steps in range(400):
        if await cancelled_after(steps, together) and steps > 20:
            break
    else:
        pytest.fail("the run was never over")
    assert unseen == []


@pytest.mark.parametrize("unfinished", ["cancel", "carry"])
async def test_run_that_has_enough_at_any_moment_loses_nothing(unfinished):
    for wanted in range(1, 13):
        maker = Maker(judge=Judge(short), start=short, step=short)
        client = Client([ADD, SUBMIT])
        engine = Engine(maker, client=client, limits=Limits(concurrency=3, init_concurrency=2))
        requests = iter(singles(12))
        enough = Enough(episodes=wanted, unfinished=unfinished)  # type: ignore[arg-type]
        first = await read(engine, requests, enough=enough)
        second = await read(engine, requests)
        seeds = [trace.seed for trace in first + second]
        assert len(first) >= wanted
        assert len(set(seeds)) == len(seeds), "nothing twice"
        if unfinished == "carry":
            assert sorted(seed or 0 for seed in seeds) == list(range(12)), "nothing lost"
        assert idle(engine)
        assert not client.open
        await engine.aclose()
        assert await tasks_left() == []


# --- chaos ------------------------------------------------------------------------------------


class Chaos:
    """Delays and faults at every await, all from one seed."""

    def __init__(self, seed: int, rate: float) -> None:
        self.rng = random.Random(seed)
        self.rate = rate

    def at(self, *errors: Exception) -> Any:
        async def hook(*_: Any) -> None:
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            if self.rng.random() < 0.1:
                with queued():
                    await asyncio.sleep(0)
            if self.rng.random() < self.rate:
                raise self.rng.choice(errors)

        return hook

    def engine(self, *, together: bool, **options: Any) -> tuple[Engine, Maker, Client]:
        env = (EnvFault("gone"), ValueError("a bug"), SimulatorError("nonsense"))
        wait = self.at(EndpointError("down", retryable=True), RuntimeError("a bug in the client"))

        async def policy(messages: Any) -> Any:
            await wait()
            return ADD if len(messages) < 2 + 2 * self.rng.randrange(4) else SUBMIT

        hook = self.at(JudgeError("unreadable"), KeyError("a bug"))
        judge: Any = RankingJudge(hook) if together else Judge(hook)
        maker = Maker(judge=judge, start=self.at(*env), step=self.at(*env))
        client = Client(policy)
        limits = Limits(
            concurrency=self.rng.randint(1, 6),
            init_concurrency=self.rng.randint(1, 3),
            eval_concurrency=self.rng.randint(1, 3),
            backlog=self.rng.randint(1, 8),
            min_failures=10**6,
        )
        return Engine(maker, client=client, limits=limits, **options), maker, client


async def in_chaos(seed: int, *, rate: float, together: bool, early: bool) -> None:
    chaos = Chaos(seed, rate)
    retry = Retry(pause_s=0, budget=1, per_episode=3, min_group_size=3, judge=1)
    engine, maker, client = chaos.engine(together=together, retry=retry)
    requests = groups(6, 3) + [EpisodeRequest(seed=100 + n, task_id="counter/9") for n in range(6)]
    chaos.rng.shuffle(requests)
    source = iter(requests)
    traces: list[Trace] = []
    async with asyncio.timeout(30):
        while early and len(traces) < 12:
            enough = Enough(episodes=chaos.rng.randint(1, 6), unfinished="carry")
            got = await read(engine, source, enough=enough)
            traces += got
            if not got:
                break
        traces += await read(engine, source)
    asked = {(r.task_id, r.seed, r.sample) for r in requests}
    found = [(t.task_id, t.seed, t.sample) for t in traces if "replaces_sample" not in t.metadata]
    assert len({t.trace_id for t in traces}) == len(traces), "nothing twice"
    if all(t.task_id is not None for t in traces):
        assert sorted(found, key=str) == sorted(asked, key=str), "nothing lost"
    assert len(found) == len(asked)
    assert all((t.reward is None) == t.verdict.masked for t in traces)
    assert idle(engine)
    assert not client.open
    assert engine.carried == ()
    await engine.aclose()
    assert maker.all_closed
    assert await tasks_left() == []


@settings(max_examples=40)
@pytest.mark.thorough
@given(
    seed=st.integers(0, 10**9),
    rate=st.sampled_from([0.0, 0.02, 0.1, 0.4]),
    together=st.booleans(),
    early=st.booleans(),
)
def test_in_any_order_of_events_nothing_is_lost_nothing_twice_nothing_left(
    seed, rate, together, early
):
    asyncio.run(in_chaos(seed, rate=rate, together=together, early=early))
