"""Judging a group together: never too early, never twice, never stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import ValidationError

from agentgym.clients import ScriptedClient
from agentgym.errors import EndpointError, JudgeError, SimulatorAbort
from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.naming import episode_name
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.rollout.plan import plan_requests
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.types import Usage

SUBMIT = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    ],
}


class RankingJudge:
    """Scores by place in the group, and remembers the groups."""

    inline = False

    def __init__(self, *, hook: Any = None) -> None:
        self.groups: list[tuple[str | None, list[str]]] = []
        self.hook = hook

    async def score_group(self, episodes: Any) -> Any:
        self.groups.append((episode_name(), [e.task.task_id for e in episodes]))
        charge("judge", Usage(prompt_tokens=12, calls=1))
        if self.hook is not None:
            await self.hook()
        return [Score(total=index / 10) for index in range(len(episodes))]


def grouped_env(judge: RankingJudge) -> Any:
    def make() -> CounterEnv:
        env = CounterEnv()
        env.scoring = env.scoring.model_copy(update={"judge": judge})
        return env

    return make


def requests_for(tasks: int, size: int, **fields: Any) -> list[EpisodeRequest]:
    planned = plan_requests([f"counter/{n + 1}" for n in range(tasks)], samples=size)
    return [request.model_copy(update=fields) for request in planned]


async def play(engine: Engine, requests: Any) -> list[Trace]:
    async with asyncio.timeout(20), engine:
        return [trace async for trace in engine.run(requests)]


def test_plan_says_how_many_of_a_group_are_still_to_come():
    assert {r.group_size for r in plan_requests(["a"], samples=4)} == {4}
    assert {r.group_size for r in plan_requests(["a"], samples=4, done={("a", 1)})} == {3}
    assert plan_requests(["a"])[0].group_size is None


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_each_group_is_judged_once_and_whole(concurrency):
    judge = RankingJudge()
    limits = Limits(concurrency=concurrency, init_concurrency=1, eval_concurrency=1)
    engine = Engine(grouped_env(judge), client=ScriptedClient([SUBMIT]), limits=limits)
    traces = await play(engine, requests_for(5, 4))
    whole = [[f"counter/{n}"] * 4 for n in range(1, 6)]
    assert sorted(tasks for _, tasks in judge.groups) == whole
    assert all(name.endswith(".group") for name, _ in judge.groups)
    # The judge saw them in the order of their samples, whichever was over first.
    assert {(t.sample, t.reward) for t in traces} == {(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)}
    assert sum(trace.usage["judge"].prompt_tokens for trace in traces) == 5 * 12


async def test_waiting_episodes_hold_no_slot_and_no_environment():
    """Samples come one round after the other, so nearly all wait at once."""
    judge = RankingJudge()
    limits = Limits(concurrency=1, init_concurrency=1, eval_concurrency=1)
    engine = Engine(grouped_env(judge), client=ScriptedClient([SUBMIT]), limits=limits)
    rounds = sorted(requests_for(20, 3), key=lambda request: request.sample)
    traces = await play(engine, rounds)
    assert len(traces) == 60
    assert sorted(len(tasks) for _, tasks in judge.groups) == [3] * 20


async def test_siblings_that_fail_are_not_waited_for():
    judge = RankingJudge()

    def policy(messages: Any, info: Any, sampling: Any) -> Any:
        return EndpointError("down", retryable=True) if sampling.seed % 3 == 0 else SUBMIT

    engine = Engine(grouped_env(judge), client=ScriptedClient(policy))
    traces = await play(engine, requests_for(10, 4))
    failed = [trace for trace in traces if trace.failure_class == "infra"]
    assert 0 < len(failed) < 40
    assert sum(len(tasks) for _, tasks in judge.groups) == 40 - len(failed)
    assert all(trace.scored for trace in traces if trace not in failed)


@pytest.mark.parametrize("group_size", [None, 8])
async def test_siblings_that_are_never_requested_are_not_waited_for(group_size):
    judge = RankingJudge()
    engine = Engine(grouped_env(judge), client=ScriptedClient([SUBMIT]))
    traces = await play(engine, requests_for(3, 4, group_size=group_size))
    assert all(trace.scored for trace in traces)
    assert [len(tasks) for _, tasks in judge.groups] == [4, 4, 4]


async def test_complete_group_is_judged_while_requests_still_come():
    judge = RankingJudge()
    judged = asyncio.Event()

    async def done() -> None:
        judged.set()

    judge.hook = done
    seen: list[bool] = []

    def lazily() -> Iterator[EpisodeRequest]:
        yield from requests_for(1, 2)
        for seed in range(200):
            seen.append(judged.is_set())
            yield EpisodeRequest(seed=seed, task_id="counter/9", group=f"{seed}", group_size=1)

    limits = Limits(concurrency=1, init_concurrency=1)
    engine = Engine(grouped_env(judge), client=ScriptedClient([SUBMIT]), limits=limits)
    await play(engine, lazily())
    assert seen[-1]


async def test_group_judge_that_fails_masks_the_whole_group():
    async def fail() -> None:
        raise JudgeError("no JSON in the reply")

    engine = Engine(grouped_env(RankingJudge(hook=fail)), client=ScriptedClient([SUBMIT]))
    traces = await play(engine, requests_for(1, 3))
    assert [(t.reward, t.failure_class, t.failed_stage) for t in traces] == [
        (None, "judge", "eval")
    ] * 3


async def test_group_judge_that_takes_too_long_masks_the_group_and_is_billed():
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    engine = Engine(
        grouped_env(RankingJudge(hook=never)),
        client=ScriptedClient([SUBMIT]),
        limits=Limits(eval_timeout_s=0.05),
    )
    traces = await play(engine, requests_for(1, 3))
    assert {trace.failure_class for trace in traces} == {"judge"}
    assert "no verdict within 0.05 s" in traces[0].error
    billed = [trace.usage["judge"].prompt_tokens for trace in traces if "judge" in trace.usage]
    assert sum(billed) == 12


async def test_cancelled_batch_leaves_nobody_waiting():
    judge = RankingJudge()

    async def hang(messages: Any, info: Any, sampling: Any) -> Any:
        if judge.groups:
            await asyncio.get_running_loop().create_future()
        return SUBMIT

    engine = Engine(grouped_env(judge), client=ScriptedClient(hang))
    requests = [*requests_for(1, 2), *requests_for(2, 2)[2:]]
    async with asyncio.timeout(20), engine, aclosing(engine.run(requests)) as traces:
        await anext(traces)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


def test_group_whose_rollouts_would_draw_different_tasks_is_refused():
    with pytest.raises(ValidationError, match="give them its task_id, or one seed"):
        EpisodeRequest(group="g", group_size=4)
    for told in ({"task_id": "counter/1"}, {"seed": 1}):
        assert EpisodeRequest(group="g", **told).group == "g"


async def test_single_episode_is_no_group():
    judge = RankingJudge()
    engine = Engine(grouped_env(judge), client=ScriptedClient([SUBMIT]))
    (trace,) = await play(engine, [EpisodeRequest(seed=1)])
    assert (trace.reward, trace.failure_class) == (None, "judge")
    assert "can't score one alone" in trace.error


async def test_whoever_is_judged_waits_for_the_judge_and_no_longer_for_siblings():
    """Of two groups in one slot of EVAL; that of a third isn't complete."""
    judging = asyncio.Event()

    async def hook() -> None:
        judging.set()
        await asyncio.get_running_loop().create_future()

    engine = Engine(
        grouped_env(RankingJudge(hook=hook)),
        client=ScriptedClient([SUBMIT]),
        limits=Limits(eval_concurrency=1),
    )
    third = EpisodeRequest(task_id="counter/9", group="third", group_size=2)

    async def requests():
        for request in [*requests_for(2, 3), third]:
            yield request
        await asyncio.get_running_loop().create_future()

    async def waiting_at_rest() -> dict[tuple[str, str], int]:
        while True:
            waits = {(w.stage, w.waiting): w.episodes for w in engine.status().waiting}
            if {stage for stage, _ in waits} == {"eval"} and sum(waits.values()) == 7:
                return waits
            await asyncio.sleep(0)

    async with asyncio.timeout(20), engine:
        reading = asyncio.create_task(play(engine, requests()))
        await judging.wait()
        waits = await waiting_at_rest()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert waits == {("eval", "judge"): 3, ("eval", "slot"): 3, ("eval", "siblings"): 1}


async def test_a_user_who_gives_up_in_a_compared_group_failed_in_the_turns():
    class Silent(CounterEnv):
        def submit(self) -> str:
            raise SimulatorAbort("no answer")

    def make() -> Silent:
        env = Silent()
        env.scoring = env.scoring.model_copy(update={"judge": RankingJudge()})
        return env

    engine = Engine(make, client=ScriptedClient([SUBMIT]))
    traces = await play(engine, requests_for(1, 2))
    assert [(t.failure_class, t.failed_stage) for t in traces] == [("simulator", "run")] * 2
