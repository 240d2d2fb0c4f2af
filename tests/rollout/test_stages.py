"""Slots: first come first served, also while their number changes and waiters give up."""

from __future__ import annotations

import asyncio

from agentgym.rollout.limits import Limits
from agentgym.rollout.stages import Places, Stages


async def settled():
    for _ in range(3):
        await asyncio.sleep(0)


async def taking(places: Places, order: list[str], name: str):
    await places.acquire()
    order.append(name)


async def test_places_are_given_in_the_order_of_asking():
    places, order = Places(1), []
    await places.acquire()
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(taking(places, order, name))
        await settled()
        assert order == []
        for _ in range(3):
            places.release()
            await settled()
    assert order == ["a", "b", "c"]
    assert places.taken == 1


async def test_more_places_let_waiters_in_and_fewer_keep_the_next_ones_out():
    places, order = Places(1), []
    await places.acquire()
    waiting = [asyncio.create_task(taking(places, order, name)) for name in "abcd"]
    await settled()
    places.resize(3)
    await settled()
    assert order == ["a", "b"]
    places.resize(1)
    places.release()
    places.release()
    await settled()
    assert (order, places.taken) == (["a", "b"], 1)
    places.release()
    await settled()
    assert order == ["a", "b", "c"]
    places.resize(2)
    await asyncio.gather(*waiting)


async def test_a_waiter_that_is_cancelled_holds_nobody_up():
    places, order = Places(1), []
    await places.acquire()
    first = asyncio.create_task(taking(places, order, "first"))
    await settled()
    first.cancel()
    await settled()
    places.release()
    await asyncio.wait_for(taking(places, order, "second"), 5)
    assert (order, places.taken) == (["second"], 1)


async def test_a_place_that_comes_with_the_cancellation_is_given_back():
    places = Places(1)
    await places.acquire()
    waiter = asyncio.create_task(places.acquire())
    await settled()
    places.release()
    waiter.cancel()
    await settled()
    assert waiter.cancelled()
    assert places.taken == 0


def test_stages_take_on_other_limits():
    stages = Stages(Limits(concurrency=8, init_concurrency=2, eval_concurrency=4))
    stages.resize(Limits(concurrency=5, init_concurrency=1, eval_concurrency=3))
    slots = (stages.init.slots, stages.run.slots, stages.eval.slots, stages.admission.places)
    assert slots == (1, 5, 3, 6)
