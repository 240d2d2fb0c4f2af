"""Several servers of one policy: who is asked, what failures mean, and that nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentgym.client import Endpoint, ModelClient, RateLimits, SamplingParams
from agentgym.clients import BalancedClient, replicas, routed, sessions
from agentgym.clients.reply import BadReply
from agentgym.clients.scopes import Scopes
from agentgym.clients.transport import Transport
from agentgym.errors import (
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    EmptyReply,
    EndpointError,
)
from agentgym.metering import Meter, metered
from agentgym.testing.quirky import QuirkyServer, Reply, answer
from agentgym.types import Usage

ASK = [{"role": "user", "content": "Hi"}]
SAMPLING = SamplingParams(max_tokens=64)
BUSY = (429, {"error": {"message": "busy"}})
OVERFLOW = (400, {"error": {"message": "maximum context length is 100 tokens"}})


async def ask(client, session=None, messages=ASK):
    return await client.complete(messages, (), SAMPLING, session=session)


@pytest.fixture
async def servers() -> AsyncIterator[list[QuirkyServer]]:
    found = [QuirkyServer(answer(f"from {k}")) for k in range(3)]
    for server in found:
        await server.start()
    yield found
    for server in found:
        await server.stop()


@pytest.fixture
async def make_client(servers) -> AsyncIterator[Callable[..., BalancedClient]]:
    """Makes clients of the servers; what they sleep through lasts a hundredth of it."""
    made: list[BalancedClient] = []

    def make(count: int = 3, **fields: Any) -> BalancedClient:
        endpoints = [
            Endpoint(**{"base_url": server.url, "model": "m", **fields})
            for server in servers[:count]
        ]
        client = BalancedClient(endpoints, sleep=lambda s: asyncio.sleep(s / 100))
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


def of(client, server):
    """The status of one server."""
    return next(s for s in client.status() if s.name in server.url)


def nothing_in_flight(client):
    return all((s.in_flight, s.outstanding_tokens) == (0, 0) for s in client.status())


async def until(condition):
    """Wait for something that no event of ours tells of."""
    async with asyncio.timeout(20):
        for _ in iter(condition, True):
            await asyncio.sleep(0.001)


# --- where requests go ------------------------------------------------------------------------


async def test_is_a_model_client_and_says_who_answered(servers, make_client):
    client = make_client()
    assert isinstance(client, ModelClient)
    got = await ask(client)
    assert got.message["content"].startswith("from ")
    assert got.replica in {status.name for status in client.status()}
    assert nothing_in_flight(client)


async def test_an_episode_stays_where_its_prefix_is(servers, make_client):
    client = make_client()
    for _ in range(4):
        await asyncio.gather(*(ask(client, f"episode {k}") for k in range(9)))
    assert [len(server.requests) for server in servers] == [12, 12, 12]
    assert [status.sessions for status in client.status()] == [3, 3, 3]
    homes = {(await ask(client, "episode 1")).replica for _ in range(3)}
    assert len(homes) == 1


async def test_a_released_episode_is_forgotten(servers, make_client):
    client = make_client()
    await ask(client, "episode")
    await client.release("episode")
    await client.release("unknown")
    assert [status.sessions for status in client.status()] == [0, 0, 0]


async def test_the_weights_of_an_answer_are_those_at_the_time_of_the_question(servers, make_client):
    client = make_client(1)
    (status,) = client.status()
    assert (await ask(client)).weight_version is None
    client.set_weight_version(servers[0].url, "7")
    assert (await ask(client)).weight_version == "7"
    servers[0].gate = asyncio.Event()
    call = asyncio.create_task(ask(client))
    await until(lambda: servers[0].in_flight)
    client.set_weight_version(status.name, "8")
    servers[0].gate.set()
    assert (await call).weight_version == "7->8"
    assert client.status()[0].weight_version == "8"


async def test_who_waits_for_a_full_fleet_waits_in_front_and_counts_for_no_deadline(
    servers, make_client
):
    """E08: 60 calls, 6 slots; no server ever has more than its own, and nobody times out."""
    for server in servers:
        server.replies = [Reply(body=answer(), delay_s=0.05)]
    client = make_client(max_concurrency=2, timeout_s=2.0, deadline_s=0.4, max_retries=0)
    got = await asyncio.gather(*(ask(client, f"episode {k}") for k in range(60)))
    assert len(got) == 60
    assert [server.most_in_flight for server in servers] == [2, 2, 2]
    assert client.waiting == 0
    assert nothing_in_flight(client)


async def test_a_fan_out_of_one_role_stays_within_its_own_slots(servers, make_client):
    """E22: hundreds of judge calls at 2 slots each leave the policy's client alone."""
    judge, policy = make_client(max_concurrency=2, role="judge"), make_client(max_concurrency=2)
    judging = [asyncio.create_task(ask(judge)) for _ in range(300)]
    await until(lambda: judge.waiting >= 250)
    assert sum(status.in_flight for status in judge.status()) <= 6
    await asyncio.gather(*(ask(policy) for _ in range(6)))
    assert judge.waiting
    await asyncio.gather(*judging)


# --- failures ---------------------------------------------------------------------------------


async def test_a_dead_replica_is_left_out_and_its_episodes_go_on_elsewhere(servers, make_client):
    client = make_client()
    homes = [(await ask(client, f"episode {k}")).replica for k in range(3)]
    await servers[0].stop()
    again = [(await ask(client, f"episode {k}")).replica for k in range(3)]
    await until(lambda: of(client, servers[0]).state == "ejected")
    assert of(client, servers[0]).name not in again
    assert again[1:] == homes[1:]
    assert of(client, servers[0]).sessions == 0
    assert nothing_in_flight(client)


async def test_a_dead_replica_that_is_back_is_taken_back(servers, make_client):
    client = make_client()
    await servers[0].stop()
    await asyncio.gather(*(ask(client) for _ in range(3)))
    await servers[0].start()
    await until(lambda: of(client, servers[0]).state == "ready")
    before = len(servers[0].requests)
    await asyncio.gather(*(ask(client) for _ in range(6)))
    assert len(servers[0].requests) > before


async def test_all_dead_is_one_error_that_names_each_and_what_it_said(servers, make_client, caplog):
    """E19, E20."""
    client = make_client(deadline_s=30)
    for server in servers:
        await server.stop()
    with pytest.raises(EndpointError, match="no replica of model 'm' answers") as caught:
        await ask(client)
    for server in servers:
        assert f"{of(client, server).name}: no connection" in str(caught.value)
    assert caught.value.retryable
    assert not caught.value.refuses_caller
    assert "trying again" in caplog.text
    assert nothing_in_flight(client)


async def test_calls_that_wait_when_the_last_replica_dies_are_told(servers, make_client):
    client = make_client(1, max_concurrency=1, max_retries=1)
    servers[0].gate = asyncio.Event()
    calls = [asyncio.create_task(ask(client)) for _ in range(20)]
    await until(lambda: client.waiting == 19)
    await servers[0].stop()
    for got in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(got, EndpointError)
    assert nothing_in_flight(client)


async def test_calls_go_on_when_one_of_the_dead_is_back_in_time(servers, make_client):
    client = make_client(2, max_retries=8)
    await servers[0].stop()
    await servers[1].stop()
    calls = [asyncio.create_task(ask(client)) for _ in range(5)]
    await until(lambda: all(status.state == "ejected" for status in client.status()))
    await servers[1].start()
    assert {got.replica for got in await asyncio.gather(*calls)} == {of(client, servers[1]).name}


async def test_retries_over_replicas_do_not_multiply_the_deadline(servers, make_client):
    """E07: three silent servers are one call's deadline, not three."""
    for server in servers:
        server.replies = [Reply(hangs=True)]
    client = make_client(timeout_s=0.2, deadline_s=0.5, max_retries=50)
    with pytest.raises(EndpointError, match="no answer"):
        await ask(client)
    assert sum(len(server.requests) for server in servers) <= 4
    assert nothing_in_flight(client)


async def test_a_silent_replica_costs_its_calls_no_more_than_a_probe(servers, make_client):
    """One call's time-out tells that the machine hangs, the others there don't wait for theirs."""

    def black_hole(body):
        return Reply(hangs=True)

    servers[0].replies = [black_hole]
    client = make_client(2, timeout_s=1.0, deadline_s=60)
    home = of(client, servers[0]).name
    calls = [asyncio.create_task(ask(client, f"episode {k}")) for k in range(4)]
    got = await asyncio.gather(*calls)
    assert home not in {completion.replica for completion in got}
    assert max(completion.attempts for completion in got) == 2


async def test_in_flight_calls_of_a_replica_that_a_probe_finds_dead_go_elsewhere_at_once(
    servers, make_client
):
    client = make_client(2, timeout_s=1000)
    servers[0].replies = [Reply(hangs=True)]
    stuck = asyncio.create_task(ask(client, "stuck"))
    await until(lambda: servers[0].in_flight)
    replica = client._found(servers[0].url)
    client._router.is_dead(replica, BadReply("gone", retryable=True, unreachable=True), "gone")
    got = await stuck
    assert (got.replica, got.attempts) == (of(client, servers[1]).name, 2)
    assert got.usage.retries == 1
    assert nothing_in_flight(client)


async def test_a_wrong_request_is_wrong_everywhere_and_asked_once(servers, make_client):
    client = make_client()
    for server in servers:
        server.replies = [(400, {"error": {"message": "no such field 'x'"}})]
    with pytest.raises(EndpointError, match="no such field") as caught:
        await ask(client)
    assert not caught.value.retryable
    assert sum(len(server.requests) for server in servers) == 1
    assert [status.state for status in client.status()] == ["ready"] * 3


async def test_a_conversation_that_is_too_long_is_that_on_every_replica(servers, make_client):
    client = make_client()
    for server in servers:
        server.replies = [OVERFLOW]
    with pytest.raises(ContextOverflow):
        await ask(client)
    assert sum(len(server.requests) for server in servers) == 1


async def test_empty_answers_in_the_end_are_an_empty_reply(servers, make_client):
    client = make_client(max_retries=2)
    for server in servers:
        server.replies = [{"choices": []}]
    with pytest.raises(EmptyReply):
        await ask(client)
    assert sum(len(server.requests) for server in servers) == 3


async def test_what_cannot_be_sent_is_told_without_asking_anybody(servers, make_client):
    client = make_client()
    with pytest.raises(EndpointError, match="can't be written as JSON"):
        await client.complete(ASK, [{"type": "function", "x": object()}], SAMPLING)
    with pytest.raises(EndpointError, match="can't be written as JSON"):
        await client.complete(
            ASK, (), SAMPLING.model_copy(update={"json_schema": {"maximum": float("nan")}})
        )
    assert not any(server.requests for server in servers)


async def test_a_busy_replica_gets_less_and_the_call_goes_elsewhere_at_once(servers, make_client):
    client = make_client()
    servers[0].replies = [(503, {"error": {"message": "at capacity"}}, {"Retry-After": "600"})]
    got = await asyncio.gather(*(ask(client) for _ in range(9)))
    assert {completion.replica for completion in got}.isdisjoint({of(client, servers[0]).name})
    assert of(client, servers[0]).state == "ready"
    assert of(client, servers[0]).capacity < 64
    before = len(servers[0].requests)
    await asyncio.gather(*(ask(client) for _ in range(9)))
    assert len(servers[0].requests) == before  # as long as it asks to be left alone


async def test_a_fleet_that_is_always_busy_ends_in_an_error_after_so_many_tries(
    servers, make_client
):
    """E20."""
    client = make_client(max_retries=2)
    for server in servers:
        server.replies = [BUSY]
    with pytest.raises(EndpointError, match="busy") as caught:
        await ask(client)
    assert caught.value.retryable
    assert sum(len(server.requests) for server in servers) == 3


async def test_one_that_refuses_the_caller_is_left_out_and_the_others_go_on(servers, make_client):
    client = make_client()
    servers[0].replies = [(401, {"error": {"message": "wrong key"}})]
    with metered(Meter()) as meter:
        await asyncio.gather(*(ask(client) for _ in range(6)))
    assert of(client, servers[0]).last_error == "answered 401: wrong key"
    assert not meter.refused
    assert meter.by_role["policy"].failed_calls == 0


async def test_only_where_every_replica_refuses_the_caller_is_refused(servers, make_client):
    """E11: an empty account is asked once for each server, and nobody waits."""
    pays = {"error": {"code": "insufficient_quota", "message": "pay"}}
    client = make_client()
    for server in servers:
        server.replies = [(429, pays)]
    with metered(Meter()) as meter, pytest.raises(EndpointError, match="pay") as caught:
        await ask(client)
    assert caught.value.refuses_caller
    assert list(meter.refused) == ["policy"]
    assert [len(server.requests) for server in servers] == [1, 1, 1]

    servers[2].replies = [(500, {"error": {"message": "broken"}})]
    other = make_client(max_retries=0)
    with pytest.raises(EndpointError) as caught:
        await ask(other)
    assert not caught.value.refuses_caller


async def test_one_that_refuses_late_does_not_speak_for_the_others(servers, make_client):
    """The deadline is over, so nobody else is asked; they may take the caller all the same."""
    client = make_client(2, deadline_s=0.5)
    servers[0].replies = [(401, {"error": {"message": "wrong key"}})]
    client._clock = lambda: 0.0 if not of(client, servers[0]).failed else 1.0
    with metered(Meter()) as meter, pytest.raises(EndpointError, match="wrong key") as caught:
        await ask(client)
    assert not caught.value.refuses_caller
    assert not meter.refused


async def test_no_secret_of_any_replica_is_in_the_error(servers, make_client, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-test-12345")
    client = make_client(api_key_env="SOME_KEY", max_retries=0)
    for server in servers:
        server.replies = [lambda body: (500, f"you sent {servers[0].headers or ''} sk-test-12345")]
    with pytest.raises(EndpointError) as caught:
        await ask(client)
    assert "sk-test" not in str(caught.value)
    assert not any("sk-test" in str(status) for status in client.status())


OTHER_MODEL = (400, {"error": {"message": "model m isn't what this server has"}})


@pytest.fixture
def probed_late(monkeypatch):
    """A server that answers probes, but no request, stays out."""
    monkeypatch.setattr(replicas, "FIRST_PROBE_S", 60.0)


@pytest.mark.usefixtures("probed_late")
async def test_one_that_takes_no_request_that_others_take_is_left_out(servers, make_client):
    servers[0].replies = [OTHER_MODEL]
    client = make_client(2, max_concurrency=1)
    client.pause(servers[0].url)
    await ask(client)
    client.resume(servers[0].url)
    client.pause(servers[1].url)
    with pytest.raises(EndpointError, match="isn't what this server has"):
        await ask(client)  # nobody else to ask
    client.resume(servers[1].url)
    got = [await ask(client, f"episode {k}") for k in range(10)]
    assert {completion.replica for completion in got} == {of(client, servers[1]).name}
    assert of(client, servers[0]).state == "ejected"
    assert len(servers[0].requests) <= 5


async def test_a_wrong_request_does_not_count_against_servers_that_have_answered(
    servers, make_client
):
    client = make_client(2)
    for k in range(4):
        await ask(client, f"episode {k}")
    for server in servers:
        server.replies = [OTHER_MODEL]
    for k in range(4):
        with pytest.raises(EndpointError, match="isn't what this server has"):
            await ask(client, f"episode {k}")
    assert {status.state for status in client.status()} == {"ready"}


@pytest.mark.usefixtures("probed_late")
async def test_who_fails_the_preflight_is_left_out_whatever_it_said(servers, make_client):
    servers[0].replies = [OTHER_MODEL]
    client = make_client(2)
    await client.preflight()
    assert of(client, servers[0]).state == "ejected"
    assert {(await ask(client, f"episode {k}")).attempts for k in range(4)} == {1}


# --- pace -------------------------------------------------------------------------------------


def paced_client(servers, *rates):
    """A client whose sleeping takes no time, but moves its clock on; and that clock."""
    now = [0.0]

    async def sleep(seconds):
        due = now[0] + seconds
        await asyncio.sleep(0)
        now[0] = max(now[0], due)

    endpoints = [
        Endpoint(base_url=server.url, model="m", rate=RateLimits(requests_per_minute=rate))
        for server, rate in zip(servers, rates, strict=False)
    ]
    return BalancedClient(endpoints, clock=lambda: now[0], sleep=sleep), now


async def test_calls_go_elsewhere_while_the_minute_of_their_server_is_full(servers):
    client, now = paced_client(servers, 2, None)
    client._prober._sleep = lambda seconds: asyncio.Event().wait()  # the minute doesn't pass
    for session in ("one", "two", "three") * 4:
        await ask(client, session)
    assert [len(server.requests) for server in servers] == [2, 10, 0]
    assert now == [0.0]
    await client.remove(servers[0].url)
    await client.aclose()


async def test_calls_wait_for_their_turn_where_every_minute_is_full(servers):
    client, now = paced_client(servers, 2, 1)
    await asyncio.gather(*(ask(client, f"episode {k}") for k in range(10)))
    assert sum(len(server.requests) for server in servers) == 10
    assert 3 * 60 <= now[0] < 5 * 60  # three of them a minute
    assert nothing_in_flight(client)
    await client.aclose()


async def test_a_server_whose_minute_is_full_leaves_at_once_with_calls_that_wait_for_it(servers):
    client, _ = paced_client(servers, 1)
    client._prober._sleep = lambda seconds: asyncio.Event().wait()
    await ask(client, "episode")
    calls = [asyncio.create_task(ask(client, "episode")) for _ in range(3)]
    await until(lambda: client.waiting == 3)
    client.add(Endpoint(base_url=servers[1].url, model="m"))
    await client.remove(servers[0].url, drain=False)
    assert {(await call).replica for call in calls} == {client.status()[0].name}
    await client.aclose()


# --- money ------------------------------------------------------------------------------------


async def test_a_call_is_charged_once_with_its_retries_whoever_was_asked(servers, make_client):
    client = make_client()
    await ask(client)
    servers[0].replies = servers[1].replies = [(500, "broken")]
    with metered(Meter()) as meter:
        got = [await ask(client) for _ in range(2)]
    usage = meter.by_role["policy"]
    assert usage.calls == 2
    assert usage.retries == sum(completion.attempts - 1 for completion in got) > 0
    assert client.usage == usage + Usage(prompt_tokens=20, completion_tokens=5)


async def test_all_replicas_spend_one_budget(servers, make_client):
    client = make_client(prices={"input": 0, "output": 1000}, budget_usd=0.1)
    results = await asyncio.gather(*(ask(client) for _ in range(60)), return_exceptions=True)
    refused = [error for error in results if isinstance(error, BudgetExceeded)]
    assert refused
    assert client.budget.spent_usd <= 0.1
    assert sum(len(server.requests) for server in servers) == 60 - len(refused)
    assert client.usage.cost_usd == pytest.approx(client.budget.spent_usd)


# --- coming and going -------------------------------------------------------------------------


async def test_replicas_join_while_calls_wait(servers, make_client):
    client = make_client(1, max_concurrency=1)
    servers[0].gate = asyncio.Event()
    calls = [asyncio.create_task(ask(client)) for _ in range(3)]
    await until(lambda: client.waiting == 2)
    endpoint = client.endpoint.model_copy(update={"base_url": servers[1].url})
    name = client.add(endpoint, weight_version="3")
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: client.waiting == 0 and len(servers[1].requests) == 2)
    servers[0].gate.set()
    got = await asyncio.gather(*calls)
    assert sorted(completion.weight_version or "" for completion in got) == ["", "3", "3"]
    assert name == of(client, servers[1]).name


async def test_a_replica_leaves_once_its_calls_are_answered(servers, make_client):
    client = make_client(2)
    servers[0].gate = asyncio.Event()
    call = asyncio.create_task(ask(client))
    await until(lambda: servers[0].in_flight)
    leaving = asyncio.create_task(client.remove(servers[0].url))
    await until(lambda: of(client, servers[0]).state == "leaving")
    assert {(await ask(client)).replica for _ in range(3)} == {of(client, servers[1]).name}
    assert not leaving.done()
    servers[0].gate.set()
    assert (await call).attempts == 1
    await leaving
    assert [status.name in servers[1].url for status in client.status()] == [True]
    with pytest.raises(ConfigError, match="unknown replica"):
        await client.remove(servers[0].url)


async def test_a_replica_that_leaves_at_once_hands_its_calls_over(servers, make_client):
    client = make_client(2)
    servers[0].replies = [Reply(hangs=True)]
    call = asyncio.create_task(ask(client, "episode"))
    await until(lambda: servers[0].in_flight)
    await client.remove(servers[0].url, drain=False)
    assert (await call).replica == client.status()[0].name
    assert nothing_in_flight(client)


async def test_without_any_replica_the_error_says_so(servers, make_client):
    client = make_client(1, max_retries=1)
    await client.remove(servers[0].url)
    with pytest.raises(EndpointError, match="there is none, add one"):
        await ask(client)


async def test_a_paused_replica_gets_nothing_and_its_episodes_go_elsewhere(servers, make_client):
    client = make_client(2)
    home = (await ask(client, "episode")).replica
    client.pause(home)
    await client.idle(home)
    assert (await ask(client, "episode")).replica != home
    client.resume(home)
    assert {status.state for status in client.status()} == {"ready"}


async def test_a_paused_fleet_is_waited_for_and_each_episode_finds_its_place_again(
    servers, make_client
):
    client = make_client(deadline_s=0.2, timeout_s=0.2)
    homes = [(await ask(client, f"episode {k}")).replica for k in range(9)]
    client.pause()
    calls = [asyncio.create_task(ask(client, f"episode {k}")) for k in range(9)]
    await until(lambda: client.waiting == 9)
    await asyncio.wait(calls, timeout=0.3)  # longer than the deadline, which stands still
    client.resume()
    assert [(await call).replica for call in calls] == homes


async def test_a_pause_that_calls_wait_long_for_is_told_once(
    servers, make_client, monkeypatch, caplog
):
    monkeypatch.setattr(routed, "_LONG_PAUSE_S", 0.01)
    client = make_client()
    client.pause()
    calls = [asyncio.create_task(ask(client)) for _ in range(3)]
    await until(lambda: bool(caplog.records))
    client.resume()
    await asyncio.gather(*calls)
    (told,) = (record.message for record in caplog.records)
    assert told.startswith("BalancedClient(model='m') is paused, and 3 calls wait until resume()")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model": "other"}, "differs from the others in model"),
        ({"budget_usd": 3.0, "prices": {"input": 1, "output": 1}}, "differs .* in prices"),
        ({"extra_body": {"key": "s3cret-12345"}}, "differs from the others in extra_body;"),
        ({}, "is there already"),
    ],
)
async def test_replicas_of_another_policy_are_refused(servers, make_client, fields, complaint):
    client = make_client(1)
    base_url = servers[1 if fields else 0].url
    endpoint = Endpoint(**{"base_url": base_url, "model": "m", **fields})
    with pytest.raises(ConfigError, match=complaint) as caught:
        client.add(endpoint)
    assert "s3cret" not in str(caught.value)


def test_no_replica_at_all_is_refused():
    with pytest.raises(ConfigError, match="at least one replica"):
        BalancedClient([])


async def test_preflight_asks_every_replica_and_goes_on_without_the_dead(
    servers, make_client, caplog
):
    client = make_client()
    await servers[1].stop()
    await client.preflight()
    assert [len(server.requests) for server in servers] == [1, 0, 1]
    assert "goes on without a replica" in caplog.text
    await servers[0].stop()
    await servers[2].stop()
    with pytest.raises(EndpointError, match="no replica of model 'm' answers"):
        await make_client().preflight()


# --- ends -------------------------------------------------------------------------------------


async def test_cancelled_calls_give_everything_back_wherever_they_are(servers, make_client):
    client = make_client(2, max_concurrency=2)
    for server in servers:
        server.replies = [Reply(hangs=True)]
    calls = [asyncio.create_task(ask(client, f"episode {k}")) for k in range(10)]
    await until(lambda: sum(server.in_flight for server in servers) == 4)
    for call in calls:
        call.cancel()
    for got in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(got, asyncio.CancelledError)
    assert client.waiting == 0
    assert nothing_in_flight(client)


async def test_a_fault_on_any_await_gives_everything_back(servers, make_client):
    """The k-th time that a call waits for something, it is cancelled there."""
    for awaits in range(200):
        client = make_client(2, dialect={"stream": True})
        for server in servers[:2]:
            server.requests.clear()
            server.replies = [(500, "broken"), answer()]
        coroutine = ask(client, "episode")
        call = asyncio.ensure_future(_cancelled_at(coroutine, awaits))
        try:
            got = await call
        except asyncio.CancelledError:
            assert nothing_in_flight(client)
            assert client.waiting == 0
            continue
        assert (got.message["content"], got.attempts) == ("hello", 3)
        break
    assert awaits > 5


class _cancelled_at:  # noqa: N801
    """A coroutine that is thrown a cancellation the k-th time it waits."""

    def __init__(self, coroutine: Any, awaits: int) -> None:
        self._coroutine = coroutine
        self._left = awaits

    def __await__(self) -> Any:
        value = None
        inner = self._coroutine.__await__()
        while True:
            try:
                waited = (
                    inner.throw(asyncio.CancelledError()) if not self._left else inner.send(value)
                )
            except StopIteration as done:
                return done.value
            self._left -= 1
            value = yield waited


async def test_closing_ends_the_calls_in_flight_with_a_clear_error(servers, make_client):
    client = make_client(1, max_concurrency=1)
    servers[0].replies = [Reply(hangs=True)]
    calls = [asyncio.create_task(ask(client)) for _ in range(2)]
    await until(lambda: servers[0].in_flight)
    await client.aclose()
    for call in calls:
        with pytest.raises(EndpointError, match="closed while this call was in flight"):
            await call
    assert nothing_in_flight(client)
    servers[0].replies = [answer("again")]
    assert (await ask(client)).message["content"] == "again"


async def test_sessions_that_nobody_releases_are_bounded(servers, make_client, monkeypatch):
    monkeypatch.setattr(sessions, "_MOST", 50)
    client = make_client()
    for k in range(120):
        await ask(client, f"episode {k}")
    assert sum(status.sessions for status in client.status()) == 50


# --- loops, threads, processes ----------------------------------------------------------------


def client_of(*servers):
    return BalancedClient(
        [Endpoint(base_url=server.url, model="m", max_concurrency=2) for server in servers]
    )


async def test_one_client_serves_several_threads_and_a_running_loop():
    """E10."""
    with QuirkyServer(answer()) as one, QuirkyServer(answer()) as two:
        client = client_of(one, two)

        async def several():
            return await asyncio.gather(*(ask(client, f"episode {k}") for k in range(10)))

        got = await asyncio.gather(
            several(), *(asyncio.to_thread(asyncio.run, several()) for _ in range(4))
        )
        assert sum(map(len, got)) == 50
        assert max(one.most_in_flight, two.most_in_flight) <= 2
        assert nothing_in_flight(client)
        await client.aclose()


def test_a_loop_that_ends_with_calls_in_flight_leaves_none_behind():
    with QuirkyServer(Reply(hangs=True)) as server:
        client = client_of(server)

        async def abandoned():
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(ask(client)) for _ in range(5)]
            await until(lambda: server.in_flight == 2)
            del tasks

        asyncio.run(abandoned())
        assert nothing_in_flight(client)
        assert client.waiting == 0
        server.replies = [answer("later")]
        assert asyncio.run(ask(client)).message["content"] == "later"


def test_a_dead_replica_is_probed_in_the_next_loop_if_the_first_has_ended():
    with QuirkyServer(answer()) as one, QuirkyServer(answer()) as two:
        client = client_of(one, two)
        asyncio.run(ask(client))
        replica = client._found(one.url)
        client._router.is_dead(replica, BadReply("gone", retryable=True, unreachable=True), "gone")

        async def go_on():
            await ask(client)
            await until(lambda: of(client, one).state == "ready")

        asyncio.run(go_on())


def test_a_dead_replica_is_probed_while_the_loop_that_noticed_stands_still():
    with QuirkyServer(answer()) as one, QuirkyServer(answer()) as two:
        client = client_of(one, two)
        failure = BadReply("gone", retryable=True, unreachable=True)
        client._router.is_dead(client._found(one.url), failure, "gone")
        with asyncio.Runner() as runner:
            runner.run(ask(client))

            async def go_on():
                await ask(client)
                await until(lambda: of(client, one).state == "ready")
                await client.aclose()

            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, go_on()).result()
            runner.run(client.aclose())


@pytest.mark.thorough
def test_a_forked_process_does_not_wait_for_the_calls_of_its_parent():
    with QuirkyServer(answer()) as server:
        program = f"""
            import asyncio, multiprocessing
            from agentgym.client import Endpoint, SamplingParams
            from agentgym.clients import BalancedClient
            endpoint = Endpoint(base_url={server.url!r}, model="m", max_concurrency=1)
            client = BalancedClient([endpoint])
            client.set_weight_version(None, "5")
            hello = [{{"role": "user", "content": "Hi"}}]
            def child(answers):
                got = asyncio.run(client.complete(hello, (), SamplingParams()))
                answers.put((got.message["content"], got.weight_version))
            async def parent():
                seat = await client._router.enter(0, None, prompt_tokens=1, most_tokens=1)
                context = multiprocessing.get_context("fork")
                answers = context.Queue()
                context.Process(target=child, args=(answers,), daemon=True).start()
                print(answers.get(timeout=60))
            asyncio.run(parent())
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("('hello', '5')\n", "")


@pytest.mark.parametrize("make", ["BalancedClient([endpoint])", "ChatClient(endpoint)"])
@pytest.mark.thorough
def test_a_forked_process_does_not_wait_for_what_a_thread_of_its_parent_was_at(make):
    with QuirkyServer(answer()) as server:
        program = f"""
            import asyncio, multiprocessing, threading
            from contextlib import ExitStack
            from agentgym.client import Endpoint, SamplingParams
            from agentgym.clients import BalancedClient, ChatClient
            endpoint = Endpoint(base_url={server.url!r}, model="m")
            client = {make}
            hello = [{{"role": "user", "content": "Hi"}}]
            async def play(answers):
                await client.release("before")
                if isinstance(client, BalancedClient):
                    client.pause()
                    client.resume()
                got = await client.complete(hello, (), SamplingParams(), session="s")
                await client.release("s")
                await client.aclose()
                answers.put(got.message["content"])
            def child(answers):
                asyncio.run(play(answers))
            wire = client._wire
            locks = [wire._prompts._lock, wire._reasoning._lock, client._scopes._lock]
            locks += [client._lock, client.budget._lock]
            locks += [client._router.lock] if isinstance(client, BalancedClient) else []
            held, done = threading.Event(), threading.Event()
            def hold():
                with ExitStack() as stack:
                    for lock in locks:
                        stack.enter_context(lock)
                    held.set()
                    done.wait()
            threading.Thread(target=hold, daemon=True).start()
            held.wait()
            context = multiprocessing.get_context("fork")
            answers = context.Queue()
            context.Process(target=child, args=(answers,), daemon=True).start()
            print(answers.get(timeout=20))
            done.set()
        """
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("hello\n", "")


@pytest.mark.parametrize(
    ("statuses", "complaint"),
    [
        ({}, None),
        ({"/health": 200, "/v1/models": 429}, None),
        ({"/health": 503}, "engine"),
        ({"/v1/models": 401}, "engine"),
    ],
)
async def test_a_probe_asks_for_health_and_models_with_key_and_query(
    monkeypatch, statuses, complaint
):
    """A server without these routes is alive all the same."""
    monkeypatch.setenv("SOME_KEY", "sk-test-12345")
    asked = []

    async def respond(request):
        asked.append((request.path_qs, request.headers["Authorization"]))
        return web.Response(status=statuses.get(request.path, 404), text="engine")

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    async with TestServer(app) as server:
        endpoint = Endpoint(
            base_url=f"{server.make_url('/v1')}?tenant=a%20b", model="m", api_key_env="SOME_KEY"
        )
        transport = Transport(endpoint, Scopes("test"))
        session = await transport.session()
        if complaint is None:
            await session.probe()
            key = "Bearer sk-test-12345"
            assert asked == [("/health?tenant=a%20b", key), ("/v1/models?tenant=a%20b", key)]
        else:
            with pytest.raises(BadReply, match=complaint):
                await session.probe()
        await transport.aclose()
