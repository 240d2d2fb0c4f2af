"""The engine: stages, limits, faults at every await, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from agentgym.client import Completion, SamplingParams
from agentgym.clients import ScriptedClient
from agentgym.core import AgentEnv
from agentgym.deadline import queued
from agentgym.errors import (
    ConfigError,
    ContextOverflow,
    DataError,
    EndpointError,
    EnvFault,
    JudgeError,
    RolloutStopped,
    SimulatorAbort,
    SimulatorError,
    TraceError,
)
from agentgym.judge import Score
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.source import EnvSource
from agentgym.testing.envs import CounterEnv, SlowCounterEnv
from agentgym.trace import Trace
from agentgym.traces import TraceWriter, read_traces
from agentgym.types import Usage
from tests.support.rolling import until


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


ADD, SUBMIT = call("add", amount=1), call("submit")
DOWN = EndpointError("http://x/v1 (model 'm'): no connection", retryable=True)


def solve(messages: Any) -> dict[str, Any]:
    """Add what the task asks for, then submit."""
    target = int(messages[1]["content"].split(" to ")[1].split(",")[0])
    return SUBMIT if len(messages) > 2 else call("add", amount=target)


class HookedJudge:
    """Runs a coroutine function before it scores 1.0."""

    inline = False

    def __init__(self, hook: Callable[[Any], Any] | None) -> None:
        self.hook = hook

    async def score(self, episode: Any) -> Score:
        if self.hook is not None:
            await self.hook(episode)
        return Score(total=1.0, correct=True)


class HookedEnv(CounterEnv):
    """A counter that runs a test's coroutine functions in `start`, `step` and `judge`."""

    awaits = True

    def __init__(self, **hooks: Callable[[Any], Any]) -> None:
        super().__init__()
        self.hooks = hooks
        self.busy = False
        self.closed = False
        judge = HookedJudge(hooks.get("judge"))
        self.scoring = self.scoring.model_copy(update={"judge": judge})

    async def start(self, task: Any) -> Any:
        if "start" in self.hooks:
            await self.hooks["start"](self)
        return await super().start(task)

    async def astep(self, action: Any) -> Any:
        assert not self.busy, "two episodes share this environment"
        self.busy = True
        try:
            if "step" in self.hooks:
                await self.hooks["step"](self)
            return await super().astep(action)
        finally:
            self.busy = False

    def close(self) -> None:
        self.closed = True
        super().close()


class Maker:
    """Makes hooked environments and remembers them."""

    def __init__(self, **hooks: Callable[[Any], Any]) -> None:
        self.hooks = hooks
        self.made: list[HookedEnv] = []

    def __call__(self) -> HookedEnv:
        self.made.append(HookedEnv(**self.hooks))
        return self.made[-1]


class WatchedClient(ScriptedClient):
    """Remembers sessions and how many calls are in flight."""

    def __init__(self, policy: Any, **kwargs: Any) -> None:
        super().__init__(policy, **kwargs)
        self.open: set[str] = set()
        self.released: list[str] = []
        self.ten_released = asyncio.Event()
        self.seen: list[tuple[list[Any], SamplingParams, str]] = []

    async def complete(
        self, messages: Any, tools: Any, sampling: Any, *, session: Any = None
    ) -> Any:
        self.open.add(session)
        self.seen.append((list(messages), sampling, session))
        return await super().complete(messages, tools, sampling, session=session)

    async def release(self, session: str) -> None:
        self.released.append(session)
        if len(self.released) == 10:
            self.ten_released.set()
        await super().release(session)


class Kept:
    """A writer that keeps traces in memory."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def write(self, trace: Trace) -> None:
        self.traces.append(trace)


async def never(*args: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def broken(*args: Any) -> None:
    raise EnvFault("the disk is gone")


async def play(engine: Engine, count: int = 1, **fields: Any) -> list[Trace]:
    requests = [EpisodeRequest(seed=k, **fields) for k in range(count)]
    async with engine:
        return [trace async for trace in engine.run(requests)]


@pytest.fixture(autouse=True)
async def nothing_left_behind():
    """No task outlives a test, and no exception goes unseen."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    yield
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [t for t in left if "_play" in repr(t) or "roll_out" in repr(t)] == []
    assert unseen == []


# --- the ordinary case ------------------------------------------------------------------------


async def test_episodes_become_scored_traces():
    client = WatchedClient(solve)
    engine = Engine(
        CounterEnv,
        client=client,
        sampling=SamplingParams(temperature=0.5),
        policy_name="solver",
        metadata={"run": "x"},
    )
    traces = await play(engine, 5, group="g", sample=2)
    assert len(traces) == 5
    for trace in traces:
        assert (trace.reward, trace.terminated, trace.verdict.correct) == (1.0, True, True)
        assert trace.task_id.startswith("counter/")
        assert (trace.group, trace.sample, trace.split) == ("g", 2, "train")
        assert len(trace.turns) == 2
        roles = " ".join(message["role"] for message in trace.messages)
        assert roles == "system user assistant tool assistant tool"
        assert (trace.policy["model"], trace.policy["temperature"]) == ("solver", 0.5)
        assert trace.metadata["run"] == "x"
        assert set(trace.stage_s) == {"init", "run", "eval"}
        assert (trace.failure_class, trace.failed_stage, trace.error) == (None, None, None)
    assert sorted(client.released) == sorted(client.open)


async def test_same_requests_give_the_same_episodes():
    def policy(messages: Any, info: Any, sampling: Any) -> Any:
        return call("add", amount=sampling.seed % 7) if len(messages) < 9 else SUBMIT

    def facts(traces: list[Trace]) -> Any:
        return sorted((t.seed, t.task_id, json.dumps(t.messages)) for t in traces)

    few, many = Limits(concurrency=1), Limits(concurrency=9)
    first = await play(Engine(CounterEnv, client=ScriptedClient(policy), limits=few), 12)
    again = await play(Engine(CounterEnv, client=ScriptedClient(policy), limits=many), 12)
    assert facts(first) == facts(again)


async def test_every_turn_and_sample_has_a_seed_of_its_own():
    client = WatchedClient([ADD, ADD, SUBMIT])
    engine = Engine(CounterEnv, client=client)
    requests = [EpisodeRequest(seed=1, sample=s) for s in (0, 1)]
    traces = [trace async for trace in engine.run(requests)]
    assert traces[0].task_id == traces[1].task_id
    assert len({sampling.seed for _, sampling, _ in client.seen}) == 6
    await engine.aclose()


async def test_seed_that_nobody_gave_is_in_the_trace():
    engine = Engine(CounterEnv, client=ScriptedClient(solve))
    traces = engine.run([EpisodeRequest(), EpisodeRequest()])
    assert len({trace.seed async for trace in traces} - {None}) == 2
    await engine.aclose()


async def test_every_prompt_extends_the_one_before():
    client = WatchedClient([ADD, {**ADD, "content": "Hm"}, SUBMIT])
    (trace,) = await play(Engine(CounterEnv, client=client))
    prompts = [messages for messages, _, _ in client.seen]
    for shorter, longer in itertools.pairwise(prompts):
        assert longer[: len(shorter)] == shorter
    assert list(trace.messages[: len(prompts[-1])]) == prompts[-1]
    ids = [c["id"] for m in prompts[-1] for c in m.get("tool_calls", ())]
    assert len(set(ids)) == len(ids) == 2, "repeated ids are rewritten in the prompt too"


async def test_what_is_known_of_an_answer_is_in_the_trace():
    """H14: finish_reason, usage, time and attempts of every turn."""
    answer = Completion(
        message={**SUBMIT},
        usage=Usage(prompt_tokens=7, completion_tokens=3),
        finish_reason="tool_calls",
        reasoning="hm",
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        attempts=2,
    )
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient([answer])))
    (turn,) = trace.turns
    assert (turn.finish_reason, turn.reasoning, turn.attempts) == ("tool_calls", "hm", 2)
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == ((1, 2), (3,), (-0.5,))
    assert turn.policy_s >= 0
    assert trace.usage["policy"] == turn.usage == Usage(prompt_tokens=7, completion_tokens=3)
    assert all("reasoning" not in message for message in trace.messages)


async def test_answer_cut_by_the_output_limit_is_no_answer():
    """H14: truncated text is never taken as the final answer."""
    cut = Completion(message={"role": "assistant", "content": "I thi"}, finish_reason="length")
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient([cut, SUBMIT])))
    assert [turn.cut_off for turn in trace.turns] == [True, False]
    assert trace.termination_reason == "submitted"


@pytest.mark.parametrize("reason", ["stop", None, "eos"])
async def test_calls_are_run_whatever_the_finish_reason(reason):
    """A10."""
    answer = Completion(message=SUBMIT, finish_reason=reason)
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient([answer])))
    assert trace.termination_reason == "submitted"


async def test_lazy_requests_are_taken_when_there_is_room():
    taken = []

    def requests() -> Any:
        for k in range(50):
            taken.append(k)
            yield EpisodeRequest(seed=k)

    limits = Limits(concurrency=2, init_concurrency=1)
    engine = Engine(CounterEnv, client=ScriptedClient(solve), limits=limits)
    traces = engine.run(requests())
    await anext(traces)
    assert len(taken) < 50
    await traces.aclose()
    await engine.aclose()


async def test_registered_id_with_parameters_and_spec():
    gymnasium.register("agentgym_tests/Counter-v0", entry_point="agentgym.testing.envs:CounterEnv")
    try:
        engine = Engine(
            "agentgym_tests/Counter-v0",
            client=ScriptedClient(solve),
            env_kwargs={"targets": [5], "max_turns": 3},
        )
        (trace,) = await play(engine)
        assert trace.task_id == "counter/5"
        spec = gymnasium.envs.registration.EnvSpec.from_json(trace.env_spec)
        assert spec.kwargs == {"targets": [5], "max_turns": 3}
        (again,) = await play(Engine(spec, client=ScriptedClient(solve)))
        assert again.reward == 1.0
    finally:
        del gymnasium.registry["agentgym_tests/Counter-v0"]


async def test_gymnasium_wrappers_are_not_skipped():
    wrapped: list[Any] = []

    def make() -> Any:
        wrapped.append(RecordEpisodeStatistics(CounterEnv()))
        return wrapped[-1]

    limits = Limits(concurrency=1, init_concurrency=1)
    traces = await play(Engine(make, client=ScriptedClient(solve), limits=limits), 4)
    assert [trace.reward for trace in traces] == [1.0] * 4
    assert sum(env.episode_count for env in wrapped) == 4


async def test_limits_reach_the_env_through_gymnasium_wrappers():
    limits = Limits(max_episode_tokens=5)
    answer = Completion(message=ADD, usage=Usage(completion_tokens=5))
    engine = Engine(
        lambda: RecordEpisodeStatistics(CounterEnv()),
        client=ScriptedClient([answer], repeat=True),
        limits=limits,
    )
    (trace,) = await play(engine)
    assert trace.truncation_reason == "tokens"


async def test_blocking_tools_do_not_block_the_loop():
    """E04."""
    slow = call("add_slowly", amount=1, milliseconds=5)
    ticks = 0

    async def heartbeat() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    beat = asyncio.create_task(heartbeat())
    traces = await play(Engine(SlowCounterEnv, client=ScriptedClient([slow, SUBMIT])), 8)
    beat.cancel()
    assert all(trace.scored for trace in traces)
    assert ticks > 100


# --- stages -----------------------------------------------------------------------------------


async def test_no_stage_holds_more_than_its_slots():
    now = dict.fromkeys(("start", "step", "judge"), 0)
    most = dict(now)

    def watch(name: str) -> Any:
        async def hook(_: Any) -> None:
            now[name] += 1
            most[name] = max(most[name], now[name])
            for _ in range(50 if name == "judge" else 5):
                await asyncio.sleep(0)
            now[name] -= 1

        return hook

    maker = Maker(**{name: watch(name) for name in now})
    limits = Limits(concurrency=4, init_concurrency=2, eval_concurrency=3)
    await play(Engine(maker, client=ScriptedClient(solve), limits=limits), 40)
    slots = {"start": 2, "step": 4, "judge": 3}
    assert all(most[name] <= slots[name] for name in slots)
    assert most["judge"] == 3
    assert len(maker.made) <= 4 + 2
    assert all(env.closed for env in maker.made)


async def test_slow_judge_holds_neither_a_run_slot_nor_an_env():
    release = asyncio.Event()
    maker = Maker(judge=lambda _: release.wait())
    limits = Limits(concurrency=1, init_concurrency=1, eval_concurrency=10)
    client = WatchedClient(solve)
    engine = Engine(maker, client=client, limits=limits)
    batch = asyncio.create_task(play(engine, 10))
    await client.ten_released.wait()
    assert len(maker.made) <= 2
    release.set()
    assert [trace.reward for trace in await batch] == [1.0] * 10


async def test_who_finishes_first_comes_out_first():
    first = asyncio.Event()

    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/1":
            await first.wait()
        return SUBMIT

    engine = Engine(CounterEnv, client=ScriptedClient(policy))
    order = []
    async for trace in engine.run([EpisodeRequest(task_id=f"counter/{k}") for k in (1, 2)]):
        order.append(trace.task_id)
        first.set()
    assert order == ["counter/2", "counter/1"]
    await engine.aclose()


async def test_waiting_for_a_slot_costs_no_episode_time():
    async def policy(messages: Any) -> Any:
        await asyncio.sleep(0.03)
        return SUBMIT

    limits = Limits(concurrency=1, episode_timeout_s=0.2)
    traces = await play(Engine(CounterEnv, client=ScriptedClient(policy), limits=limits), 10)
    assert [trace.truncation_reason for trace in traces] == [None] * 10


async def test_envs_are_reused_over_batches_and_closed_in_the_end():
    maker = Maker()
    limits = Limits(concurrency=2, init_concurrency=1)
    engine = Engine(maker, client=ScriptedClient(solve), limits=limits)
    for _ in range(3):
        async for _ in engine.run(EpisodeRequest(seed=k) for k in range(10)):
            pass
    assert len(maker.made) <= 3
    await engine.aclose()
    assert all(env.closed for env in maker.made)


# --- limits -----------------------------------------------------------------------------------


async def test_last_allowed_turn_may_finish():
    """C20, C22: the layer that ends the episode says why."""
    limits = Limits(max_turns=2)
    done = await play(Engine(CounterEnv, client=ScriptedClient(solve), limits=limits))
    over = await play(Engine(CounterEnv, client=ScriptedClient([ADD] * 9), limits=limits))
    assert (done[0].terminated, done[0].termination_reason) == (True, "submitted")
    assert (over[0].truncated, over[0].truncation_reason) == (True, "turns")
    assert over[0].verdict.gates["truncated"]
    assert over[0].reward == -0.5


async def test_context_overflow_truncates_and_is_scored():
    script = [ADD, ContextOverflow("too long")]
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient(script)))
    assert (trace.truncation_reason, len(trace.turns)) == ("context", 1)
    assert trace.scored
    assert trace.verdict.gates["truncated"]


async def test_overflow_on_the_first_turn_leaves_an_episode_without_turns():
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient([ContextOverflow("x")])))
    assert (trace.truncation_reason, trace.turns, trace.scored) == ("context", (), True)


async def test_token_budget_truncates_and_bounds_the_last_answers():
    answer = Completion(message=ADD, usage=Usage(completion_tokens=4))
    client = WatchedClient([answer], repeat=True)
    limits = Limits(max_episode_tokens=10)
    (trace,) = await play(Engine(CounterEnv, client=client, limits=limits))
    assert [sampling.max_tokens for _, sampling, _ in client.seen] == [10, 6, 2]
    assert (trace.truncation_reason, len(trace.turns)) == ("tokens", 3)
    assert trace.scored


async def test_episode_deadline_during_an_answer_truncates():
    async def policy(messages: Any) -> Any:
        return ADD if len(messages) == 2 else await never()

    limits = Limits(episode_timeout_s=0.05)
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient(policy), limits=limits))
    assert (trace.truncation_reason, len(trace.turns), trace.scored) == ("time", 1, True)


async def test_episode_deadline_during_an_env_step_fails_the_episode():
    maker = Maker(step=never)
    limits = Limits(episode_timeout_s=0.05)
    (trace,) = await play(Engine(maker, client=ScriptedClient(solve), limits=limits))
    assert (trace.failure_class, trace.failed_stage, trace.reward) == ("infra", "run", None)
    assert "episode_timeout_s" in trace.error
    assert maker.made[0].closed, "an env in an unknown state is not used again"


@pytest.mark.parametrize(
    ("limits", "stage", "failure_class"),
    [
        ({"init_timeout_s": 0.05}, "start", "infra"),
        ({"turn_timeout_s": 0.05}, "step", "infra"),
        ({"turn_timeout_s": 0.05}, "policy", "infra"),
        ({"eval_timeout_s": 0.05}, "judge", "judge"),
    ],
)
async def test_every_stage_has_a_deadline(limits, stage, failure_class):
    maker = Maker(**({stage: never} if stage != "policy" else {}))
    client = WatchedClient(never if stage == "policy" else solve)
    (trace,) = await play(Engine(maker, client=client, limits=Limits(**limits)))
    assert (trace.failure_class, trace.verdict.masked, trace.reward) == (failure_class, True, None)
    assert trace.failed_stage == {"start": "init", "judge": "eval"}.get(stage, "run")
    assert client.released


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["start", "step"])
async def test_broken_env_fails_one_episode_and_is_thrown_away(where):
    """E01: NovaSky-AI/SkyRL#1613."""
    broke = []

    async def once(env: Any) -> None:
        if not broke:
            broke.append(env)
            raise ValueError("number seven is alive")

    maker = Maker(**{where: once})
    traces = await play(Engine(maker, client=ScriptedClient(solve)), 32)
    assert len(traces) == 32
    (failed,) = [trace for trace in traces if not trace.scored]
    assert (failed.failure_class, failed.reward) == ("env", None)
    assert failed.failed_stage == {"start": "init", "step": "run"}[where]
    assert "ValueError: number seven is alive" in failed.error
    assert "Traceback" in failed.error
    assert failed.verdict.reason
    assert broke[0].closed


async def test_a_failed_call_that_was_billed_is_in_the_trace():
    """I03: every attempt that reported usage is metered, also where nothing came of it."""
    billed = EndpointError("gone", retryable=False, usage=Usage(prompt_tokens=9))
    answer = Completion(message=ADD, usage=Usage(prompt_tokens=5, completion_tokens=2))
    client = ScriptedClient([answer, billed])
    (trace,) = await play(Engine(CounterEnv, client=client))
    assert trace.failure_class == "infra"
    assert trace.usage["policy"] == Usage(
        prompt_tokens=14, completion_tokens=2, calls=2, failed_calls=1
    )


async def test_what_happened_before_a_fault_is_in_the_trace():
    async def second(env: Any) -> None:
        if len(env.running.records) == 1:
            raise EnvFault("the disk is gone")

    answer = Completion(message=ADD, usage=Usage(prompt_tokens=5, completion_tokens=2))
    client = ScriptedClient([answer], repeat=True)
    (trace,) = await play(Engine(Maker(step=second), client=client))
    assert (trace.error, trace.failure_class) == ("EnvFault: the disk is gone", "env")
    assert (len(trace.turns), trace.truncation_reason) == (1, "fault")
    assert [m["role"] for m in trace.messages][2:] == ["assistant", "tool", "assistant"]
    assert trace.usage["policy"] == Usage(prompt_tokens=10, completion_tokens=4, calls=2)
    assert trace.verdict.gates["truncated"]


@pytest.mark.parametrize("error", [DOWN, RuntimeError("a bug in the client"), TimeoutError("x")])
async def test_endpoint_that_fails_masks_the_episode(error):
    maker = Maker()
    client = WatchedClient([ADD, error])
    (trace,) = await play(Engine(maker, client=client))
    assert (trace.failure_class, trace.failed_stage, trace.reward) == ("infra", "run", None)
    assert (trace.truncation_reason, len(trace.turns)) == ("fault", 1)
    assert str(error) in trace.error
    assert client.released == [trace.trace_id]


async def test_client_that_returns_nonsense_masks_the_episode():
    client = ScriptedClient([Completion(message={"role": "user", "content": 3})])
    (trace,) = await play(Engine(CounterEnv, client=client))
    assert not trace.scored


@pytest.mark.parametrize("error", [JudgeError("unreadable"), ValueError("a bug")])
async def test_judge_that_fails_masks_the_episode(error):
    async def judge(_: Any) -> None:
        raise error

    (trace,) = await play(Engine(Maker(judge=judge), client=ScriptedClient(solve)))
    assert (trace.failure_class, trace.failed_stage, trace.reward) == ("judge", "eval", None)
    assert trace.verdict.judge_failed
    assert str(error) in trace.error
    assert (trace.terminated, len(trace.turns)) == (True, 2)


async def test_release_that_fails_is_logged_and_changes_nothing(caplog):
    class Client(ScriptedClient):
        async def release(self, session: str) -> None:
            raise RuntimeError("gone")

    (trace,) = await play(Engine(CounterEnv, client=Client(solve)))
    assert trace.reward == 1.0
    assert "release() failed" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
@pytest.mark.parametrize("where", ["make", "start", "step", "policy", "judge", "release"])
async def test_what_is_no_ordinary_exception_fails_one_episode_too(where, error):
    """An inner task that was cancelled, a tool that calls `exit`: no episode is lost to it."""
    raised = []

    async def once(*args: Any) -> None:
        if not raised:
            raised.append(error)
            raise error

    class Client(WatchedClient):
        async def release(self, session: str) -> None:
            await super().release(session)
            if where == "release":
                await once()

    async def policy(messages: Any) -> Any:
        if where == "policy":
            await once()
        await asyncio.sleep(0)
        return solve(messages)

    def make() -> HookedEnv:
        if where == "make" and not raised:
            raised.append(error)
            raise error
        return HookedEnv(**{where: once})

    traces = await play(Engine(make, client=Client(policy)), 12)
    assert raised
    assert len(traces) == 12
    failed = [(trace.failure_class, trace.failed_stage) for trace in traces if not trace.scored]
    expected = {
        "make": [("env", "init")],
        "start": [("env", "init")],
        "step": [("env", "run")],
        "policy": [("infra", "run")],
        "judge": [("judge", "eval")],
        "release": [],
    }
    assert failed == expected[where]


@pytest.mark.parametrize(
    "info", [{"task_id": 5}, {"split": 3}, {"tools": "x"}, {"tools": None}, {"tools": ["x"]}]
)
async def test_env_that_tells_nonsense_fails_its_episode(info):
    class Env(CounterEnv):
        def extra_info(self) -> dict[str, Any]:
            return info

    (trace,) = await play(Engine(Env, client=ScriptedClient(solve)))
    assert (trace.failure_class, trace.failed_stage) == ("env", "init")
    assert next(iter(info)) in trace.error


async def test_opening_that_no_trace_can_hold_fails_its_episode():
    class Env(CounterEnv):
        async def start(self, task: Any) -> Any:
            await super().start(task)
            return ("hello", "you")

    (trace,) = await play(Engine(Env, client=ScriptedClient([DOWN])), task_id="counter/3")
    assert (trace.failure_class, trace.task_id, trace.messages) == ("env", "counter/3", ())


async def test_group_of_exceptions_is_named_in_the_last_line():
    async def step(env: Any) -> None:
        raise ExceptionGroup("two tools", [ValueError("one"), ValueError("two")])

    (trace,) = await play(Engine(Maker(step=step), client=ScriptedClient(solve)))
    assert "ValueError: one" in trace.error
    assert trace.error.splitlines()[-1] == "ExceptionGroup: two tools (2 sub-exceptions)"


async def test_close_that_hangs_holds_up_nobody(caplog):
    release = threading.Event()

    class Env(CounterEnv):
        def close(self) -> None:
            release.wait(30)

    pool = EnvPool(EnvSource(Env), close_timeout_s=0.05)
    handle = await pool.acquire()
    ticks = 0
    closing = asyncio.create_task(pool.discard(handle))
    while not closing.done():
        ticks += 1
        await asyncio.sleep(0.001)
    await pool.release(await pool.acquire())
    await pool.aclose()
    release.set()
    assert ticks > 1
    assert caplog.text.count("left behind") == 2


async def test_env_that_is_ready_too_late_is_closed():
    late, closed = threading.Event(), threading.Event()

    class Env(CounterEnv):
        def __init__(self) -> None:
            late.wait(30)
            super().__init__()

        def close(self) -> None:
            closed.set()

    limits = Limits(init_timeout_s=0.05, cleanup_timeout_s=0.05)
    (trace,) = await play(Engine(Env, client=ScriptedClient(solve), limits=limits))
    assert (trace.failure_class, trace.failed_stage) == ("infra", "init")
    late.set()
    await asyncio.to_thread(closed.wait, 30)
    assert closed.is_set()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("gone")])
async def test_close_that_fails_is_logged_and_changes_nothing(caplog, error):
    class Env(CounterEnv):
        def close(self) -> None:
            raise error

    (trace,) = await play(Engine(Env, client=ScriptedClient(solve)))
    assert trace.reward == 1.0
    assert "closing" in caplog.text


async def test_env_that_cannot_be_made_fails_its_episode():
    made = []

    def make() -> AgentEnv:
        made.append(1)
        if len(made) == 1:
            raise OSError("no container")
        return CounterEnv()

    traces = await play(Engine(make, client=ScriptedClient(solve)), 5)
    failed = [trace for trace in traces if not trace.scored]
    assert [trace.failure_class for trace in failed] == ["env"]
    assert "no container" in failed[0].error


async def test_misconfigured_env_stops_the_batch_with_its_own_error():
    def make() -> AgentEnv:
        raise DataError("goals.json is missing")

    with pytest.raises(DataError, match=r"goals\.json"):
        await play(Engine(make, client=ScriptedClient(solve)), 5)


async def test_unknown_task_fails_its_episode():
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient(solve)), task_id="counter/99")
    assert (trace.failure_class, trace.task_id) == ("env", "counter/99")
    assert "counter/99" in trace.error


async def test_slots_come_back_after_failures():
    """E03: NVIDIA-NeMo/RL#3219."""
    broke = []

    async def first_four(env: Any) -> None:
        if len(broke) < 4:
            broke.append(env)
            raise RuntimeError("boom")

    for where in ("start", "step", "judge"):
        broke.clear()
        limits = Limits(concurrency=4, init_concurrency=4, eval_concurrency=4)
        engine = Engine(Maker(**{where: first_four}), client=ScriptedClient(solve), limits=limits)
        traces = await play(engine, 64)
        assert sum(trace.scored for trace in traces) == 60


async def test_abnormal_failure_rate_stops_the_run_with_its_cause():
    """E02: no request after the stop."""
    client = WatchedClient([DOWN])
    limits = Limits(concurrency=4, min_failures=10, max_failure_rate=0.5)
    kept = Kept()
    engine = Engine(CounterEnv, client=client, limits=limits, writer=kept)
    with pytest.raises(RolloutStopped, match=r"10 of 10 episodes failed \(infra 10\).*no conn"):
        await play(engine, 1000)
    assert 10 <= len(kept.traces) < 30
    calls = client.calls
    await asyncio.sleep(0.01)
    assert client.calls == calls < 30
    assert len(client.released) >= len(client.open)
    await engine.aclose()


@pytest.mark.parametrize("status", [401, 402])
async def test_endpoint_that_refuses_the_caller_stops_the_run_at_once(status):
    """E11."""
    refusal = EndpointError("http://x/v1: no credit left", retryable=False, status=status)
    client = WatchedClient([ADD, refusal])
    kept = Kept()
    engine = Engine(CounterEnv, client=client, limits=Limits(concurrency=1), writer=kept)
    with pytest.raises(RolloutStopped, match="no credit left"):
        await play(engine, 100)
    assert client.calls < 20, "those that had begun, of 100"
    assert {trace.failure_class for trace in kept.traces} == {"infra"}


async def test_first_failure_can_stop_the_run_and_cancels_the_siblings():
    asked, cancelled = [], []

    async def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/1":
            await until(lambda: len(asked) == 2)
            raise DOWN
        asked.append(info["task_id"])
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.append(info["task_id"])
            raise

    limits = Limits(min_failures=1, max_failure_rate=0)
    maker = Maker()
    engine = Engine(maker, client=ScriptedClient(policy), limits=limits)
    with pytest.raises(RolloutStopped):
        async for _ in engine.run([EpisodeRequest(task_id=f"counter/{k}") for k in (2, 3, 1)]):
            pass
    assert sorted(cancelled) == ["counter/2", "counter/3"]
    await engine.aclose()
    assert all(env.closed for env in maker.made)


async def test_few_failures_do_not_stop_a_run():
    def policy(messages: Any, info: Any) -> Any:
        if info["task_id"] == "counter/1":
            raise DOWN
        return SUBMIT

    limits = Limits(min_failures=1, max_failure_rate=0.5)
    ids = ["counter/2"] * 5 + ["counter/1"] * 2
    engine = Engine(CounterEnv, client=ScriptedClient(policy), limits=limits)
    traces = [t async for t in engine.run([EpisodeRequest(task_id=i) for i in ids])]
    assert len(traces) == 7
    await engine.aclose()


async def test_policy_failures_never_stop_a_run():
    limits = Limits(min_failures=1, max_failure_rate=0)
    traces = await play(Engine(CounterEnv, client=ScriptedClient(["?"]), limits=limits), 30)
    assert all(trace.scored for trace in traces)


async def test_requests_that_raise_stop_the_batch_with_their_own_error():
    def requests() -> Any:
        yield EpisodeRequest(seed=0)
        raise KeyError("no more rows")

    engine = Engine(CounterEnv, client=ScriptedClient(solve))
    with pytest.raises(KeyError, match="no more rows"):
        async for _ in engine.run(requests()):
            pass
    await engine.aclose()


async def test_writer_that_fails_stops_the_batch():
    class Full:
        def write(self, trace: Trace) -> None:
            raise TraceError("no space left")

    with pytest.raises(TraceError, match="no space"):
        await play(Engine(CounterEnv, client=ScriptedClient(solve), writer=Full()), 5)


async def test_leaving_the_loop_early_cancels_the_rest():
    client = WatchedClient(solve)
    maker = Maker()
    engine = Engine(maker, client=client, limits=Limits(concurrency=2, init_concurrency=1))
    traces = engine.run([EpisodeRequest(seed=k) for k in range(200)])
    async for _ in traces:
        break
    await traces.aclose()
    assert client.calls < 200
    assert set(client.open) <= set(client.released)
    await engine.aclose()
    assert all(env.closed for env in maker.made)


@pytest.mark.parametrize("where", ["start", "step", "judge", "policy"])
async def test_cancelling_the_batch_keeps_what_is_written_and_leaks_nothing(where, tmp_path):
    maker = Maker(**({where: never} if where != "policy" else {}))
    client = WatchedClient(never if where == "policy" else solve)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        engine = Engine(maker, client=client, writer=writer)
        batch = asyncio.create_task(play(engine, 4))
        await asyncio.sleep(0.02)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
    assert list(read_traces(tmp_path / "t.jsonl")) == []
    assert set(client.open) <= set(client.released)
    assert all(env.closed for env in maker.made)


# --- plain code -------------------------------------------------------------------------------


def test_run_blocking_from_plain_code_and_from_threads():
    """E10: many loops, one engine."""
    with_writer: list[Trace] = []
    engine = Engine(CounterEnv, client=ScriptedClient(solve))
    requests = [EpisodeRequest(seed=k) for k in range(5)]
    assert len(engine.run_blocking(requests)) == 5
    workers = [
        threading.Thread(target=lambda: with_writer.extend(engine.run_blocking(requests)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(with_writer) == 20
    engine.close()


async def test_run_blocking_inside_a_running_loop():
    engine = Engine(CounterEnv, client=ScriptedClient(solve))
    assert [t.reward for t in engine.run_blocking([EpisodeRequest(seed=1)])] == [1.0]
    engine.close()


def test_run_blocking_with_envs_that_need_a_loop_behind_plain_wrappers():
    engine = Engine(
        lambda: RecordEpisodeStatistics(SlowCounterEnv()),
        client=ScriptedClient([call("add_soon", amount=1), SUBMIT]),
    )
    traces = engine.run_blocking([EpisodeRequest(seed=k) for k in range(4)])
    assert all(trace.scored for trace in traces)
    engine.close()


def test_run_blocking_raises_what_stopped_it():
    engine = Engine(CounterEnv, client=ScriptedClient([DOWN]), limits=Limits(min_failures=1))
    with pytest.raises(RolloutStopped):
        engine.run_blocking([EpisodeRequest(seed=k) for k in range(50)])
    engine.close()


# --- bad input --------------------------------------------------------------------------------


def test_unknown_env_says_what_was_meant():
    with pytest.raises(ConfigError, match="did you mean 'agentgym/WebShop-v0'"):
        Engine("agentgym/Webshop-v0", client=ScriptedClient([]))


def test_parameters_go_with_an_id():
    with pytest.raises(ConfigError, match="env_kwargs"):
        Engine(CounterEnv, client=ScriptedClient([]), env_kwargs={"max_turns": 3})


async def test_unknown_parameter_is_named():
    engine = Engine("agentgym/WebShop-v0", client=ScriptedClient([]), env_kwargs={"colour": 1})
    with pytest.raises(ConfigError, match="no parameter 'colour'; it takes .*max_turns"):
        await play(engine)


async def test_other_environments_are_refused():
    with pytest.raises(ConfigError, match="AgentEnv"):
        await play(Engine("CartPole-v1", client=ScriptedClient([])))


# --- queues -----------------------------------------------------------------------------------


async def test_wait_for_a_turn_in_the_client_is_not_the_policys_time():
    async def wait_then_answer(messages: Any) -> Any:
        with queued():
            await asyncio.sleep(0.3)
        return solve(messages)

    limits = Limits(turn_timeout_s=0.25, episode_timeout_s=0.25)
    engine = Engine(CounterEnv, client=ScriptedClient(wait_then_answer), limits=limits)
    (trace,) = await play(engine)
    assert (trace.reward, trace.truncated) == (1.0, False)
    assert sum(turn.policy_s for turn in trace.turns) < 0.25


async def test_wait_for_a_turn_in_a_client_is_not_the_judges_time():
    async def wait(episode: Any) -> None:
        with queued():
            await asyncio.sleep(0.3)

    engine = Engine(
        Maker(judge=wait), client=ScriptedClient(solve), limits=Limits(eval_timeout_s=0.25)
    )
    (trace,) = await play(engine)
    assert trace.reward == 1.0


@pytest.mark.parametrize(
    ("kind", "reason"), [(SimulatorError, "fault"), (SimulatorAbort, "simulator_abort")]
)
async def test_a_simulator_that_cannot_open_the_conversation_is_to_blame(kind, reason):
    async def start(env: Any) -> None:
        raise kind("no usable line in 2 attempts")

    engine = Engine(Maker(start=start), client=ScriptedClient(solve))
    (trace,) = await play(engine)
    assert (trace.failure_class, trace.failed_stage) == ("simulator", "init")
    assert (trace.reward, trace.truncation_reason) == (None, reason)
    assert "no usable line" in trace.error


class RepliesEnv(CounterEnv):
    """Answers text with whatever it was made with."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def reply(self, message: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    "answer", ["again", ["again"], [{"role": "user", "content": 3}], {"role": "user"}, None]
)
async def test_replies_that_are_no_messages_are_the_envs_fault_and_end_one_episode(answer):
    client = ScriptedClient(lambda messages, info, sampling: "Hello?")
    engine = Engine(lambda: RepliesEnv(answer), client=client, limits=Limits(min_failures=99))
    traces = [trace async for trace in engine.run(EpisodeRequest(seed=k) for k in range(3))]
    assert [trace.failure_class for trace in traces] == ["env"] * 3
    assert all("reply() must return a list or tuple of messages" in t.error for t in traces)
    env = RepliesEnv(answer)
    env.reset(seed=0)
    with pytest.raises(EnvFault, match="must return a list or tuple of messages"):
        env.step("Hello?")
