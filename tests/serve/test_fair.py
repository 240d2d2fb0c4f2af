"""Places go to the client that has the fewest, whoever came first."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.rollout.limits import Limits
from agentgym.serve.fair import SharedStages

ONE = Limits(concurrency=1, init_concurrency=1)


def seat(shared, caller, quota=None, limits=None):
    return shared.for_job(caller, quota=quota, limits=limits or Limits()).admission


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_client_with_fewer_places_comes_first():
    shared = SharedStages(ONE)  # 2 places
    mine, yours = seat(shared, "me"), seat(shared, "you")
    await mine.acquire()
    await mine.acquire()
    order = []

    async def take(admission, name):
        await admission.acquire()
        order.append(name)

    tasks = [asyncio.create_task(take(mine, "me")) for _ in range(2)]
    await settle()
    tasks.append(asyncio.create_task(take(yours, "you")))
    await settle()
    mine.release()
    await settle()
    assert order == ["you"]
    yours.release()
    mine.release()
    await asyncio.gather(*tasks)
    assert order == ["you", "me", "me"]


async def test_quota_holds_over_all_engines_of_a_client():
    shared = SharedStages(Limits(concurrency=8, init_concurrency=8))
    first, second = seat(shared, "me", quota=2), seat(shared, "me", quota=2)
    await first.acquire()
    await second.acquire()
    third = asyncio.create_task(second.acquire())
    await settle()
    assert not third.done()
    await seat(shared, "you").acquire()  # others are not held up
    first.release()
    await third


async def test_a_jobs_own_limits_hold():
    shared = SharedStages(Limits(concurrency=8, init_concurrency=8))
    mine = seat(shared, "me", limits=ONE)
    await mine.acquire()
    await mine.acquire()
    third = asyncio.create_task(mine.acquire())
    await settle()
    assert not third.done()
    mine.release()
    await third
    assert mine.taken == 2


@pytest.mark.parametrize("given", [True, False])
async def test_cancelled_waiters_leave_nothing_behind(given):
    shared = SharedStages(ONE)
    mine = seat(shared, "me")
    await mine.acquire()
    await mine.acquire()
    waiting = asyncio.create_task(mine.acquire())
    await settle()
    if given:
        mine.release()  # the place is handed over in the moment of the cancellation
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not given:
        mine.release()
    await asyncio.wait_for(mine.acquire(), 1)
    assert mine.taken == shared.taken["me"] == 2
    assert mine.waiting == 0


async def test_place_is_not_given_to_who_was_cancelled_a_moment_ago():
    shared = SharedStages(ONE)
    mine, yours = seat(shared, "me"), seat(shared, "you")
    await mine.acquire()
    await mine.acquire()
    gone = asyncio.create_task(yours.acquire())
    await settle()
    gone.cancel()
    mine.release()  # before the cancelled one has run
    await asyncio.wait_for(mine.acquire(), 1)
    await asyncio.gather(gone, return_exceptions=True)
    assert shared.taken["you"] == 0


async def test_nobody_is_admitted_while_the_judges_are_behind():
    shared = SharedStages(Limits(concurrency=4, eval_concurrency=1, backlog=1))
    mine = seat(shared, "me")
    judging = shared.stages.eval
    await judging.take(1)
    waiting_for_judge = asyncio.create_task(judging.take(1))
    await settle()
    admitted = asyncio.create_task(mine.acquire())
    await settle()
    assert not admitted.done()
    judging.give_back(0.0)
    await waiting_for_judge
    await admitted
