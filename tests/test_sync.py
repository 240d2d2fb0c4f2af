"""The plain face of the async core: any thread, any loop, any number of times."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from agentgym.sync import run_inline, run_on_background_loop
from agentgym.testing.envs import CounterEnv, SlowCounterEnv
from agentgym.testing.messages import calling, tool_call

ADD = calling(tool_call("add", amount=1))
WAITING = calling(tool_call("add_soon", amount=1), tool_call("add_slowly", amount=1))


def play(env, action, steps=3):
    env.reset(seed=0)
    return [env.step(action)[0][-1]["content"] for _ in range(steps)]


EXPECTED = [f"The counter stands at {n}." for n in (2, 4, 6)]


def test_repeated_loops_share_one_env():
    """E10: no "event loop is closed" when each step comes from an asyncio.run of its own."""
    env = SlowCounterEnv()
    env.reset(seed=0)

    async def step():
        return env.step(WAITING)[0][-1]["content"]

    assert [asyncio.run(step()) for _ in range(3)] == EXPECTED


def test_threads_step_their_own_envs_at_once():
    """E10."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: play(SlowCounterEnv(), WAITING), range(4)))
    assert found == [EXPECTED] * 4


@pytest.mark.parametrize("env_class", [CounterEnv, SlowCounterEnv])
async def test_step_works_inside_a_running_loop(env_class):
    """E10: as in a notebook."""
    assert play(env_class(), ADD)[0] == "The counter stands at 1."


async def test_many_async_episodes_run_at_once():
    async def episode(n):
        env = SlowCounterEnv()
        await env.areset(seed=n)
        return [(await env.astep(WAITING))[0][-1]["content"] for _ in range(3)]

    found = await asyncio.gather(*(episode(n) for n in range(8)))
    assert found == [EXPECTED] * 8


def test_inline_runs_in_the_callers_thread():
    async def where():
        return threading.get_ident()

    assert run_inline(where()) == threading.get_ident()
    assert run_on_background_loop(where()) != threading.get_ident()


def test_inline_refuses_to_wait_and_says_what_to_declare():
    async def waits():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits = True"):
        run_inline(waits())


def test_errors_cross_over_unchanged():
    async def fails():
        raise KeyError("k")

    for runner in (run_inline, run_on_background_loop):
        with pytest.raises(KeyError, match="k"):
            runner(fails())


def test_waiting_on_the_background_loop_from_itself_is_refused():
    async def nothing():
        return 1

    async def from_inside():
        return run_on_background_loop(nothing())

    with pytest.raises(RuntimeError, match="await astep"):
        run_on_background_loop(from_inside())
