"""Deadlines count the work and not the queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentgym.deadline import Deadline, queued


class ClockedLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when everybody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def jump(timeout: float | None) -> Any:
            found = select(0)
            if not found and timeout:
                self.now += timeout
            return found

        self._selector.select = jump

    def time(self) -> float:
        return self.now


def run(main: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=ClockedLoop) as runner:
        return runner.run(main())


async def wait_queued(seconds: float) -> None:
    with queued():
        await asyncio.sleep(seconds)


def test_work_beyond_the_time_is_cut_off():
    async def main() -> None:
        deadline = Deadline(5)
        with pytest.raises(TimeoutError):
            async with deadline:
                await asyncio.sleep(6)
        assert deadline.is_over
        assert deadline.left_s == pytest.approx(0)

    run(main)


def test_time_in_a_queue_is_free():
    async def main() -> None:
        deadline = Deadline(5)
        async with deadline:
            await asyncio.sleep(2)
            await wait_queued(100)
            await asyncio.sleep(2)
            await wait_queued(100)
        assert not deadline.is_over
        assert deadline.left_s == pytest.approx(1)

    run(main)


def test_work_after_a_queue_has_only_what_was_left():
    async def main() -> None:
        async with Deadline(5):
            await asyncio.sleep(3)
            await wait_queued(100)
            await asyncio.sleep(3)

    with pytest.raises(TimeoutError):
        run(main)


def test_every_deadline_around_the_queue_stands_still():
    async def main() -> None:
        async with Deadline(5) as outer, Deadline(3) as inner:
            await wait_queued(100)
            await asyncio.sleep(1)
        assert (outer.left_s, inner.left_s) == (pytest.approx(4), pytest.approx(2))

    run(main)


def test_queues_of_several_tasks_overlap():
    async def main() -> None:
        async with Deadline(5) as deadline, asyncio.TaskGroup() as group:
            group.create_task(wait_queued(50))
            group.create_task(wait_queued(100))
        assert deadline.left_s == pytest.approx(5)

    run(main)


def test_cancelled_wait_lets_the_time_go_on():
    async def main() -> None:
        async with Deadline(5) as deadline:
            waiting = asyncio.create_task(wait_queued(1000))
            await asyncio.sleep(10)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.sleep(2)
        assert deadline.left_s == pytest.approx(3)

    run(main)


async def test_queue_in_another_thread_and_loop_counts_as_one():
    entered, seen = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def elsewhere() -> None:
        with queued():
            loop.call_soon_threadsafe(entered.set)
            await asyncio.to_thread(seen.wait)

    async with Deadline(60) as deadline:
        work = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
        await entered.wait()
        waiting = deadline._waiting
        seen.set()
        await work
        assert waiting == 1
        await asyncio.sleep(0)
        assert deadline._waiting == 0


async def test_queue_that_ends_after_the_deadline_was_left_changes_nothing():
    async with Deadline(60):
        waiting = asyncio.create_task(wait_queued(0))
        await asyncio.sleep(0)
    await waiting
