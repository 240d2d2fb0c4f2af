"""Blocking calls in threads: whose thread serves again, and whose doesn't."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

import pytest

from agentgym import threads
from agentgym.threads import MOST_IDLE, Threads, _Worker, idle


@pytest.fixture(autouse=True)
def nobody_idle():
    send_home()
    yield
    send_home()


def send_home() -> None:
    """End the threads that wait."""
    while _Worker.idle:
        _Worker.idle.pop().give(lambda: False, "sent-home")


def until_idle(count: int) -> None:
    """Threads come back a little after their result."""
    while idle() < count:
        os.sched_yield()


async def test_a_thread_serves_one_call_after_the_other():
    here = []
    for _ in range(20):
        here.append(await Threads().run(threading.current_thread))
        until_idle(1)
    assert len(set(here)) == 1
    assert here[0].daemon


async def test_calls_at_once_have_a_thread_each():
    together = threading.Barrier(5)
    places = Threads()

    def meet() -> threading.Thread:
        together.wait(30)
        return threading.current_thread()

    met = await asyncio.gather(*(places.run(meet) for _ in range(5)))
    assert len(set(met)) == 5
    until_idle(5)


async def test_a_thread_has_the_name_of_its_call():
    def name() -> str:
        return threading.current_thread().name

    assert await Threads().run(name, name="tool-first") == "tool-first"
    until_idle(1)
    assert await Threads().run(name, name="tool-second") == "tool-second"
    until_idle(1)


async def test_a_call_that_raises_leaves_its_thread_in_use():
    def broken() -> None:
        raise SystemExit("stop")

    with pytest.raises(SystemExit):
        await Threads().run(broken)
    until_idle(1)
    assert await Threads().run(lambda: "goes on") == "goes on"
    until_idle(1)


async def test_a_call_that_was_left_behind_takes_its_thread_with_it():
    release, stuck = threading.Event(), asyncio.Event()
    loop, seen = asyncio.get_running_loop(), []

    def wait() -> None:
        seen.append(threading.current_thread())
        loop.call_soon_threadsafe(stuck.set)
        release.wait(60)

    places = Threads()
    call = asyncio.create_task(places.run(wait))
    await stuck.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    other = await places.run(threading.current_thread)
    assert other is not seen[0]
    until_idle(1)
    release.set()
    seen[0].join(30)
    assert not seen[0].is_alive()
    assert idle() == 1
    assert places.abandoned == 0


async def test_no_more_than_so_many_threads_wait_for_calls():
    count = MOST_IDLE + 8
    together = threading.Barrier(count)
    seen = []

    def meet() -> None:
        seen.append(threading.current_thread())
        together.wait(30)

    places = Threads(count)
    await asyncio.gather(*(places.run(meet) for _ in range(count)))
    while sum(thread.is_alive() for thread in seen) > MOST_IDLE:
        os.sched_yield()
    assert 0 < idle() <= MOST_IDLE


async def test_a_thread_that_waits_in_vain_ends(monkeypatch):
    monkeypatch.setattr(threads, "_IDLE_S", 0.01)
    thread = await Threads().run(threading.current_thread)
    thread.join(30)
    assert not thread.is_alive()
    assert not idle()


async def test_what_a_call_came_to_is_not_kept_by_its_thread():
    class Big:
        pass

    alive = []

    def make() -> Big:
        big = Big()
        alive.append(weakref.ref(big))
        return big

    big = await Threads().run(make)
    until_idle(1)
    del big
    await asyncio.sleep(0)  # until this task's own step is over
    assert alive[0]() is None


async def test_neither_call_nor_result_is_held_once_the_caller_goes_on():
    class Held:
        def make(self) -> Held:
            return Held()

    for _ in range(200):  # the thread is still at its last lines when the caller goes on
        env = Held()
        made = await Threads().run(env.make)
        called, came = weakref.ref(env), weakref.ref(made)
        del env, made
        await asyncio.sleep(0)  # until this task's own step is over
        assert (called(), came()) == (None, None)


def test_a_forked_process_has_none_of_its_parents_threads():
    asyncio.run(Threads().run(lambda: None))
    until_idle(1)
    pid = os.fork()
    if not pid:
        os._exit(0 if not idle() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
