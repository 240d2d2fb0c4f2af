"""Slots, pace and backing off, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

import pytest

from agentgym.client import RateLimits
from agentgym.clients.limiter import Limiter


class FakeClock:
    """Time passes only where somebody sleeps."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make(clock):
    def limiter(most=4, **rate):
        return Limiter(most, RateLimits(**rate), clock=clock, sleep=clock.sleep)

    return limiter


async def hold(limiter, *, tokens=0):
    """A slot that stays taken until the stack is closed."""
    stack = contextlib.AsyncExitStack()
    permit = await stack.enter_async_context(limiter.slot(limiter.ticket(), tokens=tokens))
    return stack, permit


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


# --- slots ------------------------------------------------------------------------------------


async def test_no_more_than_most_hold_a_slot(make):
    limiter = make(3)
    most = 0

    async def work():
        nonlocal most
        async with limiter.slot(limiter.ticket()):
            most = max(most, limiter.in_flight)
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(20)))
    assert (most, limiter.in_flight, limiter.waiting) == (3, 0, 0)


async def test_slots_are_handed_out_by_ticket_so_retries_go_first(make):
    limiter = make(1)
    early = limiter.ticket()
    holder, _ = await hold(limiter)
    order = []

    async def work(name, ticket):
        async with limiter.slot(ticket):
            order.append(name)

    tasks = [asyncio.create_task(work("new", limiter.ticket()))]
    await settled()
    tasks.append(asyncio.create_task(work("retry", early)))
    await settled()
    assert limiter.waiting == 2
    await holder.aclose()
    await asyncio.gather(*tasks)
    assert order == ["retry", "new"]


@pytest.mark.parametrize("granted_before", [False, True])
async def test_cancelled_waiter_leaves_no_slot_behind(make, granted_before):
    limiter = make(1)
    holder, _ = await hold(limiter)
    waiter = asyncio.create_task(hold(limiter))
    await settled()
    if granted_before:  # the slot is handed over, and the cancellation comes before it is seen
        await holder.aclose()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await holder.aclose()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    async with limiter.slot(limiter.ticket()):
        pass


async def test_one_limiter_serves_several_loops_and_threads(make):
    """E10."""
    limiter = Limiter(3)
    guard, held, most = threading.Lock(), 0, 0

    async def work():
        nonlocal held, most
        async with limiter.slot(limiter.ticket()):
            with guard:
                held += 1
                most = max(most, held)
            await asyncio.sleep(0.001)
            with guard:
                held -= 1

    async def crowd():
        await asyncio.gather(*(work() for _ in range(25)))

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, crowd()) for _ in range(4)))
    assert (held, limiter.in_flight, limiter.waiting) == (0, 0, 0)
    assert most == 3


async def test_waiter_of_a_loop_that_is_gone_is_passed_over(make):
    limiter = make(1)
    holder, _ = await hold(limiter)

    def abandon():
        loop = asyncio.new_event_loop()
        task = loop.create_task(hold(limiter))
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return task

    abandoned = await asyncio.to_thread(abandon)
    follower = asyncio.create_task(hold(limiter))
    await settled()
    assert limiter.waiting == 2
    await holder.aclose()
    stack, _ = await follower
    await stack.aclose()
    assert limiter.in_flight == 0
    abandoned._log_destroy_pending = False
    abandoned.get_coro().close()


# --- backing off ------------------------------------------------------------------------------


async def test_overload_halves_what_was_in_flight_once_for_all_who_fail_together(make):
    limiter = make(64)
    held = [await hold(limiter) for _ in range(40)]
    for _, permit in held:
        limiter.overloaded(permit)
    assert limiter.allowed == 20
    for stack, _ in held:
        await stack.aclose()


async def test_overload_after_backing_off_halves_again_down_to_one(make):
    limiter = make(8)
    for allowed in (1, 1):
        stack, permit = await hold(limiter)
        limiter.overloaded(permit)
        await stack.aclose()
        assert limiter.allowed == allowed


async def test_answers_bring_back_what_was_lost_bit_by_bit(make):
    limiter = make(32)
    stack, permit = await hold(limiter)
    limiter.overloaded(permit)
    seen = []
    while limiter.allowed < 32:
        limiter.answered(permit)
        seen.append(limiter.allowed)
    await stack.aclose()
    # 2 more for each round of as many answers as are allowed.
    assert seen[:3] == [3, 3, 4]
    assert len(seen) > 100
    assert max(b - a for a, b in itertools.pairwise(seen)) == 1
    limiter.answered(permit)
    assert limiter.allowed == 32


async def test_everybody_waits_until_the_time_the_server_asks_for(make, clock):
    limiter = make(4)
    stack, permit = await hold(limiter)
    limiter.overloaded(permit, retry_after_s=7)
    await stack.aclose()
    assert limiter.paused_s == 7
    async with limiter.slot(limiter.ticket()):
        assert clock.slept == [7]
    assert limiter.paused_s == 0


async def test_a_shorter_wait_does_not_cut_a_longer_one_and_hours_are_capped(make, clock):
    limiter = make(4)
    stack, permit = await hold(limiter)
    limiter.overloaded(permit, retry_after_s=86_400)
    limiter.overloaded(permit, retry_after_s=1)
    await stack.aclose()
    assert limiter.paused_s == 120


# --- pace -------------------------------------------------------------------------------------


async def test_no_minute_has_more_requests_than_allowed(make, clock):
    limiter = make(100, requests_per_minute=10)
    sent = []
    for k in range(35):
        async with limiter.slot(limiter.ticket()):
            sent.append(clock.now)
        clock.now += 0.5 if k % 2 else 3.0
    for start in sent:
        assert sum(start <= at < start + 60 for at in sent) <= 10
    # And none waited longer than it had to.
    assert sent[10] == sent[0] + 60


async def test_no_minute_has_more_tokens_than_allowed(make, clock):
    limiter = make(100, tokens_per_minute=1000)
    for tokens in (600, 400):
        async with limiter.slot(limiter.ticket(), tokens=tokens):
            pass
    assert clock.slept == []
    async with limiter.slot(limiter.ticket(), tokens=100):
        pass
    assert clock.slept == [60]


async def test_tokens_that_were_not_used_are_given_back(make, clock):
    limiter = make(100, tokens_per_minute=1000)
    async with limiter.slot(limiter.ticket(), tokens=1000) as permit:
        limiter.answered(permit, tokens=300)
    async with limiter.slot(limiter.ticket(), tokens=700):
        pass
    assert clock.slept == []


async def test_an_answer_later_than_its_minute_changes_nothing(make, clock):
    limiter = make(100, tokens_per_minute=1000)
    stack, permit = await hold(limiter, tokens=900)
    clock.now += 61
    async with limiter.slot(limiter.ticket(), tokens=900):
        limiter.answered(permit, tokens=100)  # of the minute before
        await stack.aclose()
    async with limiter.slot(limiter.ticket(), tokens=900):
        assert clock.slept == [60]


async def test_request_above_the_limit_by_itself_goes_when_all_is_quiet(make, clock):
    limiter = make(100, tokens_per_minute=1000)
    async with limiter.slot(limiter.ticket(), tokens=5000):
        pass
    assert clock.slept == []
    async with limiter.slot(limiter.ticket(), tokens=1):
        pass
    assert clock.slept == [60]
