"""Dollars: what calls cost, whom it is charged to, and the budget that is never overrun."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import ANY

import pytest
from pydantic import ValidationError

from agentgym.client import Endpoint, Prices, SamplingParams
from agentgym.clients.budget import Budget
from agentgym.errors import BudgetExceeded, EndpointError
from agentgym.metering import Meter, metered
from agentgym.testing.quirky import Reply, Stream, answer
from agentgym.types import Usage

PRICES = {"input": 1.0, "cached": 0.1, "output": 10.0}
ASK = [{"role": "user", "content": "Hi"}]
SAMPLING = SamplingParams(max_tokens=100)
BILLED = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 20},
}
COST = (600 * 1.0 + 400 * 0.1 + 50 * 10.0) / 1e6
BUSY = (503, {"error": {"message": "busy"}})


async def ask(client, sampling=SAMPLING):
    return await client.complete(ASK, (), sampling)


# --- charging ---------------------------------------------------------------------------------


async def test_a_call_is_charged_once_to_its_role_with_all_that_is_known(server, make_client):
    server.replies = [BUSY, answer(usage=BILLED)]
    client = make_client(prices=PRICES, role="judge")
    with metered(Meter()) as meter:
        got = await ask(client)
    assert meter.by_role == {"judge": got.usage}
    assert client.usage == got.usage
    assert got.usage.model_dump() == {
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 50,
        "reasoning_tokens": 20,
        "calls": 1,
        "retries": 1,
        "failed_calls": 0,
        "cost_usd": pytest.approx(COST),
        "estimated": False,
    }


async def test_a_call_that_fails_in_the_end_is_charged_too(server, make_client):
    server.replies = [{"choices": [], "usage": BILLED}]
    with metered(Meter()) as meter, pytest.raises(EndpointError) as caught:
        await ask(make_client(prices=PRICES, max_retries=2))
    (usage,) = meter.by_role.values()
    assert (usage.calls, usage.retries, usage.failed_calls) == (3, 2, 1)
    assert usage.cost_usd == pytest.approx(3 * COST)
    assert caught.value.usage == usage


async def test_a_failed_call_that_cost_nothing_is_counted(server, make_client):
    server.replies = [BUSY]
    with metered(Meter()) as meter, pytest.raises(EndpointError):
        await ask(make_client(max_retries=1))
    assert meter.by_role["policy"] == Usage(calls=0, retries=1, failed_calls=1)


async def test_a_cancelled_call_is_charged_for_what_was_billed(server, make_client):
    server.replies = [{"choices": [], "usage": BILLED}, Reply(hangs=True)]
    with metered(Meter()) as meter:
        call = asyncio.create_task(ask(make_client(prices=PRICES)))
        while len(server.requests) < 2:
            await server.asked.wait()
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert meter.by_role["policy"].cost_usd == pytest.approx(COST)


async def test_a_cancelled_stream_is_charged_for_what_had_come(server, make_client):
    came = {"choices": [{"index": 0, "delta": {"content": "x" * 400}}]}
    server.replies = [Stream(events=[came], hangs=True)]
    with metered(Meter()) as meter, pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await ask(make_client(dialect={"stream": True}, prices=PRICES))
    usage = meter.by_role["policy"]
    assert usage.estimated
    assert usage.completion_tokens >= 100
    assert usage.cost_usd > 0


async def test_a_call_that_the_collector_ends_while_another_is_billed_hangs_nobody(
    server, make_client
):
    empty = {"choices": [], "usage": BILLED}
    server.replies = [empty, Reply(hangs=True), answer(usage=BILLED)]
    client = make_client(prices=PRICES)
    done = []

    async def both():
        lost = asyncio.create_task(ask(client))
        while len(server.requests) < 2:
            await server.asked.wait()
            await asyncio.sleep(0)

        class Collecting(Usage):
            """Memory is short just when it is added to."""

            def __add__(self, other):
                client.usage = Usage(calls=0)
                lost.get_coro().close()
                return super().__add__(other)

        client.usage = Collecting(calls=0)
        done.append(await ask(client))
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await client.aclose()

    thread = threading.Thread(target=asyncio.run, args=(both(),), daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert done


async def test_estimated_tokens_have_an_estimated_price(server, make_client):
    server.replies = [answer("x" * 400, usage=None)]
    usage = (await ask(make_client(prices=PRICES))).usage
    assert usage.estimated
    assert usage.cost_usd == pytest.approx(Prices(**PRICES).cost_usd(usage))


async def test_without_prices_the_cost_is_unknown_not_zero(server, make_client):
    server.replies = [answer(usage=BILLED)]
    assert (await ask(make_client())).usage.cost_usd is None


# --- the budget -------------------------------------------------------------------------------


def test_a_budget_without_prices_is_refused():
    with pytest.raises(ValidationError, match="budget_usd needs prices"):
        Endpoint(base_url="http://h/v1", model="m", budget_usd=1.0)


async def test_a_call_that_might_overrun_the_budget_is_not_sent(server, make_client):
    # 100 tokens of output may cost $0.001 by themselves.
    server.replies = [answer(usage=BILLED)]
    with (
        metered(Meter()) as meter,
        pytest.raises(BudgetExceeded, match=r"budget_usd=\$0.001 .* raise") as caught,
    ):
        await ask(make_client(prices=PRICES, budget_usd=0.001))
    assert (caught.value.retryable, caught.value.status) == (False, 402)
    assert server.requests == []
    assert meter.by_role == {}


async def test_what_a_call_did_not_need_comes_back(server, make_client):
    server.replies = [answer(usage={"prompt_tokens": 10, "completion_tokens": 1})]
    client = make_client(prices=PRICES, budget_usd=0.0025)
    for _ in range(20):
        await ask(client)
    assert client.budget.spent_usd == pytest.approx(20 * 20e-6)
    assert client.budget.reserved_usd == pytest.approx(0, abs=1e-12)


async def test_calls_in_flight_count_at_their_most_and_what_they_leave_goes_to_who_waits(
    server, make_client
):
    """A small budget and many calls at once: all are answered, none at the risk of an overrun."""
    server.replies = [answer(usage={"prompt_tokens": 10, "completion_tokens": 1})]
    server.gate = asyncio.Event()
    client = make_client(prices=PRICES, budget_usd=0.0025)  # two at 0.001 and some
    sent = [asyncio.create_task(ask(client)) for _ in range(40)]
    await server.asked.wait()
    await asyncio.sleep(0.05)
    assert len(server.requests) == 2
    assert client.budget.reserved_usd > 0.002
    assert client.limiter.in_flight == 2  # who waits for money holds no slot
    server.gate.set()
    await asyncio.gather(*sent)
    assert server.most_in_flight == 2
    assert client.budget.spent_usd == pytest.approx(40 * 20e-6)
    assert client.budget.reserved_usd == 0


async def test_who_waits_for_money_is_refused_once_it_is_spent(server, make_client):
    server.replies = [answer(usage={"prompt_tokens": 0, "completion_tokens": 100})]  # $0.001
    client = make_client(prices=PRICES, budget_usd=0.0055)
    got = await asyncio.gather(*(ask(client) for _ in range(20)), return_exceptions=True)
    refused = [error for error in got if isinstance(error, BudgetExceeded)]
    assert len(refused) == 20 - len(server.requests)
    assert len(server.requests) == 5
    assert client.budget.spent_usd == pytest.approx(0.005)


async def test_money_goes_to_who_asked_first_and_not_to_who_gave_up():
    budget = Budget(Endpoint(base_url="http://h/v1", model="m", prices=PRICES, budget_usd=0.0025))
    order = []

    async def call(ticket, tokens=100):
        async with budget.reserved(ticket, 0, tokens):
            order.append(ticket)
            await asyncio.sleep(0)

    async with budget.reserved(0, 0, 150):
        dear = asyncio.create_task(call(1, 200))
        await asyncio.sleep(0)
        cheap = [asyncio.create_task(call(ticket, 50)) for ticket in (4, 3, 2)]
        await asyncio.sleep(0)
        assert order == []  # it would fit in, and would keep the dear one out for ever
        cheap[1].cancel()
    await asyncio.gather(dear, *cheap, return_exceptions=True)
    assert order == [1, 2, 4]
    assert budget.reserved_usd == 0


async def test_money_that_comes_as_its_waiter_gives_up_goes_to_the_next():
    budget = Budget(Endpoint(base_url="http://h/v1", model="m", prices=PRICES, budget_usd=0.001))

    async def call(ticket):
        async with budget.reserved(ticket, 0, 100):
            return ticket

    async with budget.reserved(0, 0, 100):
        first, second = (asyncio.create_task(call(ticket)) for ticket in (1, 2))
        await asyncio.sleep(0)
    first.cancel()  # it has the money and doesn't know it yet
    async with asyncio.timeout(10):
        assert await asyncio.gather(first, second, return_exceptions=True) == [ANY, 2]
    assert first.cancelled()
    assert budget.reserved_usd == 0


async def test_the_budget_is_never_overrun_whatever_the_estimate_was_worth(server, make_client):
    """I07: kotaemon#395. A tokenizer that makes ten times the tokens is found out by one answer."""
    server.replies = [answer(usage={"prompt_tokens": 1000, "completion_tokens": 0})]
    client = make_client(prices={"input": 10.0, "output": 0.0}, budget_usd=0.045)
    for _ in range(4):
        await ask(client)
    with pytest.raises(BudgetExceeded):
        await ask(client)
    assert len(server.requests) == 4
    assert client.budget.spent_usd == pytest.approx(0.04)


async def test_an_attempt_of_unknown_outcome_counts_at_its_most(server, make_client):
    server.replies = [Reply(hangs=True)]
    client = make_client(prices=PRICES, budget_usd=1, timeout_s=0.1, max_retries=0)
    with pytest.raises(EndpointError, match="time-out"):
        await ask(client)
    assert client.budget.spent_usd > 0.001
    assert client.budget.reserved_usd == 0


async def test_a_refused_or_unreachable_request_costs_nothing(server, make_client):
    server.replies = [(400, {"error": {"message": "no"}})]
    client = make_client(prices=PRICES, budget_usd=1, max_retries=0)
    with pytest.raises(EndpointError):
        await ask(client)
    nobody = make_client(
        base_url="http://127.0.0.1:9/v1", prices=PRICES, budget_usd=1, max_retries=0
    )
    with pytest.raises(EndpointError):
        await ask(nobody)
    assert client.budget.spent_usd == nobody.budget.spent_usd == 0


@pytest.mark.parametrize("limit", [None, 0, -1])
async def test_a_budget_and_no_output_limit_do_not_go_together(server, make_client, limit):
    client = make_client(prices=PRICES, budget_usd=1, extra_body={"max_tokens": limit})
    with pytest.raises(BudgetExceeded, match="without an output limit"):
        await ask(client)
    assert server.requests == []


async def test_several_choices_may_cost_as_much_each(server, make_client):
    client = make_client(prices=PRICES, budget_usd=0.0025, extra_body={"n": 4})
    with pytest.raises(BudgetExceeded, match=r"may cost \$0\.004"):
        await ask(client)
    assert server.requests == []
