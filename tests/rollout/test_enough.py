"""Ending early: what counts, what is cancelled, what is carried, and that nothing is lost."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError
from rolling import (
    SUBMIT,
    Judge,
    Maker,
    RankingJudge,
    groups,
    never,
    read,
    settle,
    singles,
    submits,
    until,
)

from agentgym.client import Endpoint
from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError, EndpointError, RolloutStopped, TraceError
from agentgym.rollout import Engine, Enough, EpisodeRequest, Limits, Retry
from agentgym.rollout.enough import Shelf
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.traces import TraceWriter, read_traces

CARRY = {"unfinished": "carry"}


class Gate:
    """A policy that answers episodes of chosen seeds at once, and the others when let.

    At once is as soon as so many tasks have been asked about.
    """

    def __init__(self, *, quick: Any = lambda seed: seed % 2 == 0, together: int = 1) -> None:
        self.quick = quick
        self.together = together
        self.open = asyncio.Event()
        self.all_asked = asyncio.Event()
        self.asked: Counter[str] = Counter()
        self.cancelled = 0

    async def __call__(self, messages: Any, info: Any) -> Any:
        task = info["task_id"]
        self.asked[task] += 1
        if len(self.asked) >= self.together:
            self.all_asked.set()
        await self.all_asked.wait()
        if not self.quick(int(task.rpartition("/")[2])):
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return SUBMIT


def tasks(*numbers: int) -> list[EpisodeRequest]:
    return [EpisodeRequest(task_id=f"counter/{n}", seed=n) for n in numbers]


def ids(traces: list[Trace]) -> list[int]:
    return sorted(int((trace.task_id or "").rpartition("/")[2]) for trace in traces)


@pytest.fixture(autouse=True)
async def nothing_left_behind():
    """No task outlives a test, and no exception goes unseen."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    yield
    await settle(5)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []
    assert unseen == []


def test_it_must_say_how_much_is_enough():
    with pytest.raises(ValidationError, match="episodes, informative_groups, or both"):
        Enough()


# --- what counts ------------------------------------------------------------------------------


async def test_run_ends_with_enough_scored_episodes():
    gate = Gate()
    engine = Engine(CounterEnv, client=ScriptedClient(gate))
    traces = await read(engine, tasks(*range(1, 9)), enough=Enough(episodes=3))
    assert len(traces) >= 3
    assert all(n % 2 == 0 for n in ids(traces))
    await engine.aclose()


async def test_masked_episodes_are_no_part_of_enough():
    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/1":
            return EndpointError("down", retryable=True)
        return SUBMIT

    limits = Limits(concurrency=1, init_concurrency=1)
    engine = Engine(CounterEnv, client=ScriptedClient(policy), limits=limits)
    traces = await read(engine, tasks(1, 1, 1, 2, 3, 4, 5, 6, 7), enough=Enough(episodes=2))
    assert sum(trace.scored for trace in traces) in (2, 3)
    assert sum(not trace.scored for trace in traces) == 3
    await engine.aclose()


async def test_without_enough_to_be_had_the_run_ends_with_its_requests():
    engine = Engine(CounterEnv, client=submits())
    assert len(await read(engine, singles(5), enough=Enough(episodes=50))) == 5
    await engine.aclose()


async def test_groups_count_and_come_whole():
    limits = Limits(concurrency=4, init_concurrency=1)
    engine = Engine(CounterEnv, client=submits(), limits=limits)
    traces = await read(engine, groups(9, 4), enough=Enough(episodes=6))
    whole = [trace.group for trace in traces[:8]]
    assert set(Counter(whole).values()) == {4}, "two groups, each read in one piece"
    await engine.aclose()


async def test_only_groups_whose_rewards_differ_are_informative():
    def total(episode: Any) -> float:
        odd = int(episode.task.task_id.rpartition("/")[2]) % 2
        return float(odd and next(toss) % 2)

    toss = iter(range(1000))
    limits = Limits(concurrency=1, init_concurrency=1)
    engine = Engine(Maker(judge=Judge(total=total)), client=submits(), limits=limits)
    traces = await read(engine, groups(9, 2), enough=Enough(informative_groups=2))
    spread: dict[Any, set[Any]] = {}
    for trace in traces:
        spread.setdefault(trace.group, set()).add(trace.reward)
    informative = [group for group, rewards in spread.items() if len(rewards) > 1]
    assert informative == ["counter/1", "counter/3"]
    assert set(spread) >= {"counter/2"}, "what isn't informative is read all the same"
    await engine.aclose()


def test_shelf_gives_out_whole_groups_only():
    shelf = Shelf(keeps=True)
    first, second = groups(1, 2)
    trace = Trace.model_validate(
        {"trace_id": "t", "env_spec": "{}", "started_at": "now", "verdict": {"reward": 1.0}}
    )
    shelf.begin(first)
    assert shelf.finish(first, [trace]) == []
    assert shelf.missing() == {"counter/1": 1}
    shelf.begin(second)
    assert not shelf.missing()
    (unit,) = shelf.finish(second, [trace, trace])
    assert (len(unit.traces), unit.is_group, unit.is_informative) == (3, True, False)
    shelf.begin(first)
    shelf.finish(first, [trace])
    (rest,) = shelf.no_more()
    assert len(rest.traces) == 1
    assert shelf.leftovers() == []


# --- cancelling -------------------------------------------------------------------------------


async def test_unfinished_episodes_are_cancelled_and_their_slots_free():
    gate = Gate(together=8)
    maker = Maker()
    engine = Engine(maker, client=ScriptedClient(gate))
    await read(engine, tasks(*range(1, 9)), enough=Enough(episodes=4))
    assert gate.cancelled == 4
    status = engine.status()
    assert status.in_flight == 0
    assert [stage.active for stage in status.stages] == [0, 0, 0]
    assert engine.carried == ()
    open_envs = [env for env in maker.made if not env.closed]
    assert len(open_envs) <= 4, "an env in the middle of an episode is not used again"
    gate.open.set()
    assert len(await read(engine, singles(3))) == 3
    await engine.aclose()
    assert maker.all_closed


async def test_what_had_finished_of_cut_groups_is_read_too(tmp_path):
    asked: Counter[str] = Counter()
    second_is_asked = asyncio.Event()

    async def policy(messages: Any, info: Any) -> Any:
        task = info["task_id"]
        asked[task] += 1
        if task == "counter/1" and asked[task] == 4:
            await second_is_asked.wait()
            await settle()  # so that the one of another group is over first
        elif task == "counter/2" and asked[task] == 1:
            second_is_asked.set()
        elif task != "counter/1":
            await never()
        return SUBMIT

    with TraceWriter(tmp_path / "t.jsonl") as writer:
        engine = Engine(CounterEnv, client=ScriptedClient(policy), writer=writer)
        traces = await read(engine, groups(3, 4), enough=Enough(episodes=4))
        await engine.aclose()
    written = {trace.trace_id for trace in read_traces(tmp_path / "t.jsonl")}
    assert {trace.trace_id for trace in traces} == written
    assert len(traces) == 5


async def test_cancelled_episode_closes_its_connection_so_that_the_server_stops():
    """The server sees the end of the connection while it still works on the answer."""
    working, gone = asyncio.Event(), asyncio.Event()
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if answered:
                working.set()
                await reader.read()  # returns when the other side has closed
                gone.set()
                return
            answered += 1
            await working.wait()
            body = json.dumps(
                {"choices": [{"message": {**SUBMIT}, "finish_reason": "stop"}], "usage": None}
            ).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            await writer.drain()
        finally:
            writer.close()

    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    async with await asyncio.start_server(serve, sock=listening), asyncio.timeout(20):
        engine = Engine(CounterEnv, client=Endpoint(base_url=url, model="m", max_retries=0))
        traces = await read(engine, singles(2), enough=Enough(episodes=1))
        await gone.wait()
        assert len(traces) == 1
        await engine.aclose()


# --- carrying ---------------------------------------------------------------------------------


async def test_unfinished_episodes_go_on_and_the_next_run_reads_them():
    gate = Gate()
    maker = Maker()
    engine = Engine(maker, client=ScriptedClient(gate))
    first = await read(engine, tasks(*range(1, 9)), enough=Enough(episodes=4, **CARRY))
    assert ids(first) == [2, 4, 6, 8]
    assert sorted(request.seed or 0 for request in engine.carried) == [1, 3, 5, 7]
    assert gate.cancelled == 0
    gate.open.set()
    second = await read(engine, tasks(10, 12))
    assert ids(second) == [1, 3, 5, 7, 10, 12]
    assert engine.carried == ()
    assert set(gate.asked.values()) == {1}
    await engine.aclose()
    assert maker.all_closed


async def test_what_finishes_between_two_runs_is_written_at_once_and_read_first(tmp_path):
    gate = Gate()
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        engine = Engine(CounterEnv, client=ScriptedClient(gate), writer=writer)
        await read(engine, tasks(1, 2), enough=Enough(episodes=1, **CARRY))
        gate.open.set()
        await settle()
        assert len(list(read_traces(tmp_path / "t.jsonl"))) == 2
        assert engine.carried == ()
        assert ids(await read(engine, [])) == [1]
        assert ids(await read(engine, [])) == []
        await engine.aclose()


async def test_groups_are_carried_whole():
    """Also those of which only some rollouts had begun, and those that are judged together."""
    judge = RankingJudge()
    calls: list[int] = []
    gate = asyncio.Event()

    async def policy(messages: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            await gate.wait()
        return SUBMIT

    limits = Limits(concurrency=2, init_concurrency=1)
    engine = Engine(Maker(judge=judge), client=ScriptedClient(policy), limits=limits)
    requests = iter(groups(6, 4))
    first = await read(engine, requests, enough=Enough(episodes=4, **CARRY))
    assert Counter(trace.group for trace in first) == {"counter/1": 4}
    gate.set()
    rest = list(requests)
    second = await read(engine, rest)
    sizes = Counter(trace.group for trace in second)
    assert set(sizes.values()) == {4}
    assert len(first) + len(second) == 24
    assert sorted(map(len, judge.groups)) == [4] * 6
    await engine.aclose()


async def test_iterator_can_be_gone_on_with_and_loses_nothing():
    gate = Gate(quick=lambda n: n % 3 != 0)
    limits = Limits(concurrency=7, init_concurrency=2)
    engine = Engine(CounterEnv, client=ScriptedClient(gate), limits=limits)
    requests = iter(tasks(*range(1, 21)))
    seen: list[int] = []
    for _ in range(3):
        seen += ids(await read(engine, requests, enough=Enough(episodes=3, **CARRY)))
    gate.open.set()
    seen += ids(await read(engine, requests))
    assert sorted(seen) == list(range(1, 21))
    assert set(gate.asked.values()) == {1}
    await engine.aclose()


async def test_carried_episodes_count_for_the_next_run_s_enough():
    gate = Gate()
    engine = Engine(CounterEnv, client=ScriptedClient(gate))
    await read(engine, tasks(1, 3, 5, 2), enough=Enough(episodes=1, **CARRY))
    gate.open.set()
    second = await read(engine, tasks(7, 9, 11), enough=Enough(episodes=3, **CARRY))
    third = await read(engine, [])
    assert len(second) >= 3
    assert sorted(ids(second) + ids(third)) == [1, 3, 5, 7, 9, 11]
    await engine.aclose()


async def test_closing_the_engine_cancels_what_is_carried():
    gate = Gate(together=3)
    maker = Maker()
    engine = Engine(maker, client=ScriptedClient(gate))
    await read(engine, tasks(1, 2, 3), enough=Enough(episodes=1, **CARRY))
    await engine.aclose()
    assert gate.cancelled == 2
    assert maker.all_closed


def test_engine_is_closed_from_another_loop_than_it_carries_on():
    gate = Gate()
    engine = Engine(CounterEnv, client=ScriptedClient(gate))

    async def carry() -> None:
        await read(engine, tasks(1, 2), enough=Enough(episodes=1, **CARRY))
        assert len(engine.carried) == 1
        await asyncio.to_thread(engine.close)
        await settle()

    asyncio.run(carry())
    assert gate.cancelled == 1
    assert engine.carried == ()


async def test_leaving_the_next_run_early_cancels_what_is_carried_too():
    gate = Gate(together=3)
    engine = Engine(CounterEnv, client=ScriptedClient(gate))
    await read(engine, tasks(1, 2, 3), enough=Enough(episodes=1, **CARRY))
    traces = engine.run(tasks(4))
    await anext(traces)
    await traces.aclose()
    assert gate.cancelled == 2
    assert engine.carried == ()
    await engine.aclose()


async def test_error_in_the_background_is_the_next_run_s():
    class Full:
        def __init__(self) -> None:
            self.written = 0

        def write(self, trace: Trace) -> None:
            self.written += 1
            if self.written > 1:
                raise TraceError("no space left")

    gate = Gate()
    engine = Engine(CounterEnv, client=ScriptedClient(gate), writer=Full())
    await read(engine, tasks(1, 2), enough=Enough(episodes=1, **CARRY))
    gate.open.set()
    await settle()
    with pytest.raises(TraceError, match="no space left"):
        await read(engine, tasks(4))
    await engine.aclose()


async def test_error_in_the_next_run_stops_what_is_carried():
    gate = Gate()

    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/4":
            return EndpointError("no credit", retryable=False, status=402)
        return await gate(messages, info)

    engine = Engine(CounterEnv, client=ScriptedClient(policy))
    await read(engine, tasks(1, 2), enough=Enough(episodes=1, **CARRY))
    with pytest.raises(RolloutStopped, match="no credit"):
        await read(engine, tasks(4))
    assert gate.cancelled == 1
    assert engine.carried == ()
    await engine.aclose()


async def test_requests_that_raise_while_a_group_is_completed_end_the_run_with_their_error():
    gate = Gate(together=2)

    def requests() -> Any:
        yield EpisodeRequest(task_id="counter/1", seed=1, group="g", group_size=3)
        yield from tasks(*range(2, 20, 2))
        raise ValueError("the database is gone")

    limits = Limits(concurrency=2, init_concurrency=1)
    engine = Engine(CounterEnv, client=ScriptedClient(gate), limits=limits)
    with pytest.raises(ValueError, match="database is gone"):
        async with asyncio.timeout(30):
            await read(engine, requests(), enough=Enough(episodes=1, **CARRY))
    assert engine.carried == ()
    await engine.aclose()


async def test_run_that_has_enough_at_once_leaves_what_others_finish_to_the_next():
    """Of several carried runs, the first has all that is enough."""
    letting: dict[str, asyncio.Event] = {}

    async def policy(messages: Any, info: Any) -> Any:
        task = info["task_id"]
        if task not in ("counter/1", "counter/4"):
            await letting.setdefault(task, asyncio.Event()).wait()
        return SUBMIT

    one = Enough(episodes=1, **CARRY)
    engine = Engine(CounterEnv, client=ScriptedClient(policy))
    got = ids(await read(engine, tasks(2, 3, 1), enough=one))
    got += ids(await read(engine, tasks(5, 4), enough=one))
    await until(lambda: len(letting) == 3)
    letting["counter/5"].set()
    await settle(300)
    async for trace in engine.run([], enough=one):
        got += ids([trace])
        await settle(300)  # a reader that takes its time
    assert sorted(got) == [1, 4, 5]
    for event in letting.values():
        event.set()
    await settle(300)
    assert ids(await read(engine, [])) == [2, 3]
    await engine.aclose()


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (5, "must be a list of EpisodeRequest"),
        (EpisodeRequest(seed=1), "must be a list of EpisodeRequest"),
        ("counter/1", "must be a list of EpisodeRequest"),
        (["counter/1"], r"such as EpisodeRequest\(seed=1\)"),
        ([None], "each request must be an EpisodeRequest"),
        ([{"seed": 1}], "each request must be an EpisodeRequest"),
    ],
)
async def test_what_is_no_request_is_a_clear_error(requests, told):
    with pytest.raises(ConfigError, match=told):
        await read(Engine(CounterEnv, client=submits()), requests)


async def test_run_that_cannot_begin_costs_nothing_that_is_carried():
    gate = Gate(together=2)
    engine = Engine(CounterEnv, client=ScriptedClient(gate))
    await read(engine, tasks(1, 2), enough=Enough(episodes=1, **CARRY))
    with pytest.raises(ConfigError):
        await read(engine, 5)
    gate.open.set()
    assert ids(await read(engine, [])) == [1]
    await engine.aclose()


async def test_replacements_belong_to_their_group_when_it_is_carried():
    calls: list[int] = []
    gate = asyncio.Event()

    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/1":
            return SUBMIT
        calls.append(1)
        number = len(calls)
        await gate.wait()
        return EndpointError("down", retryable=True) if number == 2 else SUBMIT

    limits = Limits(concurrency=4, init_concurrency=4)
    retry = Retry(pause_s=0, min_group_size=4)
    engine = Engine(CounterEnv, client=ScriptedClient(policy), limits=limits, retry=retry)
    first = await read(engine, groups(2, 4), enough=Enough(episodes=4, **CARRY))
    gate.set()
    second = await read(engine, [])
    assert (len(first), len(second)) == (4, 5)
    assert sum(trace.scored for trace in second) == 4
    await engine.aclose()


# --- draining ---------------------------------------------------------------------------------


async def test_drained_run_finishes_what_has_begun_and_ends():
    gate = Gate(quick=lambda _: False)
    limits = Limits(concurrency=3, init_concurrency=1)
    client = ScriptedClient(gate)
    engine = Engine(CounterEnv, client=client, limits=limits)
    reading = asyncio.create_task(read(engine, tasks(*range(1, 20))))
    await until(lambda: engine.status().in_flight == 4 and client.calls == 3)
    engine.drain()
    await settle()
    assert not reading.done()
    gate.open.set()
    traces = await reading
    assert len(traces) == client.calls == 4
    assert all(trace.scored for trace in traces)
    assert len(await read(engine, tasks(1, 2))) == 2, "the engine is as good as new"
    await engine.aclose()


async def test_draining_before_anything_has_begun_ends_the_run():
    engine = Engine(CounterEnv, client=submits())
    reading = asyncio.create_task(read(engine, singles(50)))
    await asyncio.sleep(0)
    engine.drain()
    assert len(await reading) <= 50
    engine.drain()  # nothing runs
    await engine.aclose()


async def test_drained_groups_are_judged_as_they_are():
    judge = RankingJudge()
    gate = Gate(quick=lambda _: False)
    limits = Limits(concurrency=2, init_concurrency=1)
    engine = Engine(Maker(judge=judge), client=ScriptedClient(gate), limits=limits)
    reading = asyncio.create_task(read(engine, groups(3, 8)))
    await until(lambda: engine.status().in_flight == 3 and gate.asked.total() == 2)
    engine.drain()
    await settle()
    gate.open.set()
    async with asyncio.timeout(20):
        traces = await reading
    assert len(traces) == 3
    assert [len(tasks) for tasks in judge.groups] == [3]
    await engine.aclose()


async def test_draining_from_an_asynchronous_source_that_waits():
    asked = asyncio.Event()

    async def requests() -> Any:
        yield EpisodeRequest(seed=1)
        asked.set()
        await never()

    engine = Engine(CounterEnv, client=submits())
    reading = asyncio.create_task(read(engine, requests()))
    await asked.wait()
    engine.drain()
    async with asyncio.timeout(20):
        assert len(await reading) == 1
    await engine.aclose()
