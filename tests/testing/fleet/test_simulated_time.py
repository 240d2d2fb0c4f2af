"""Time that jumps."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentgym.testing.fleet.simulated_time import run_simulated


def test_everything_happens_at_its_time_and_nobody_waits():
    seen = []

    async def sleeper(name, seconds):
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main():
        async with asyncio.TaskGroup() as group:
            for name, seconds in (("slow", 3_000_000.0), ("quick", 0.5), ("at once", 0.0)):
                group.create_task(sleeper(name, seconds))
        return "over"

    assert run_simulated(main()) == "over"
    assert seen == [("at once", 0.0), ("quick", 0.5), ("slow", pytest.approx(3_000_000.0))]


def test_deadlines_strike_in_simulated_time():
    async def main():
        async with asyncio.timeout(3600.0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_simulated(main())


def test_a_deadlock_is_an_error_and_no_hang():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="everything waits"):
        run_simulated(main())


def test_a_call_from_another_thread_arrives():
    async def main():
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(event.set))
        thread.start()
        thread.join()
        await event.wait()

    run_simulated(main())
