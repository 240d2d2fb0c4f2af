"""Several servers of one policy: who is asked, what their failures mean, and that nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentgym.client import Endpoint, ModelClient, SamplingParams
from agentgym.clients import BalancedClient
from agentgym.errors import ConfigError, ContextOverflow, EmptyReply, EndpointError
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
        while not condition():
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


async def test_a_dead_replica_is_left_out_and_its_episodes_go_on_elsewhere(servers, make_client):
    client = make_client()
    homes = [(await ask(client, f"episode {k}")).replica for k in range(3)]
    await servers[0].stop()
    again = [(await ask(client, f"episode {k}")).replica for k in range(3)]
    await until(lambda: of(client, servers[0]).state == "ejected")
    assert of(client, servers[0]).name not in again
    assert again[1:] == homes[1:]
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
