"""The simulated servers over HTTP, with our client, with a bare one, and with none at all."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from agentgym.client import Dialect, Endpoint, SamplingParams
from agentgym.clients import ChatClient
from agentgym.errors import AgentGymError, ConfigError
from agentgym.testing.fleet import FleetProcess, ReplicaSpec, SimulatedFleet, Workload

BODY = {"model": "m", "messages": [{"role": "user", "content": "Episode 1"}]}
FOREVER = {"role": "assistant", "content": "x" * 4_000_000}


def chat(fleet, index=0, **dialect):
    endpoint = Endpoint(
        base_url=fleet.urls[index], model=fleet.model, max_retries=0, dialect=Dialect(**dialect)
    )
    return ChatClient(endpoint)


async def until(condition):
    """Give way until something is so."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


async def raw(fleet, *pieces):
    """Send bytes and read until the server closes."""
    port = int(fleet.urls[0].split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return data


@pytest.mark.parametrize("stream", [False, True])
async def test_our_client_plays_an_episode_and_sees_what_was_cached(stream):
    workload = Workload()
    async with SimulatedFleet(workload=workload, speed=5000) as fleet:
        client = chat(fleet, stream=stream)
        messages, cached, held = list(workload.opening(2)), [], 0
        for turn in range(workload.turns(2)):
            completion = await client.complete(messages, (), SamplingParams(max_tokens=4096))
            answer = workload.answer(2, turn)
            assert completion.message["content"] == answer["content"]
            assert completion.message.get("tool_calls") == answer.get("tool_calls")
            assert completion.finish_reason == ("tool_calls" if "tool_calls" in answer else "stop")
            cached.append(completion.usage.cached_tokens == held)
            held = completion.usage.prompt_tokens + completion.usage.completion_tokens
            call = f"call_2_{turn}"
            result = {"role": "tool", "content": workload.observation(2, turn)}
            messages += [completion.message, {**result, "tool_call_id": call}]
        await client.aclose()
    assert len(cached) > 1
    assert all(cached)


async def test_an_answer_beyond_the_limit_is_cut_off():
    async with SimulatedFleet(speed=5000) as fleet:
        client = chat(fleet)
        asked = Workload().opening(1)
        completion = await client.complete(asked, (), SamplingParams(max_tokens=10))
        await client.aclose()
    assert (completion.cut_off, completion.usage.completion_tokens) == (True, 10)


async def test_a_client_that_goes_away_is_worked_for_no_longer():
    async with SimulatedFleet(policy=lambda body: FOREVER, replica=ReplicaSpec(slots=1)) as fleet:
        client = chat(fleet)
        calls = [
            asyncio.create_task(
                client.complete(BODY["messages"], (), SamplingParams(max_tokens=9**7))
            )
            for _ in range(2)
        ]
        await until(lambda: fleet.statistics().total("waiting") == 1)
        for call in calls:
            call.cancel()
        await until(lambda: fleet.statistics().total("aborted") == 2)
        assert fleet.statistics().total("running") == 0
        await asyncio.gather(*calls, return_exceptions=True)
        await client.aclose()


async def test_a_killed_server_resets_and_refuses_until_it_is_restarted():
    async with (
        SimulatedFleet(2, policy=lambda body: FOREVER) as fleet,
        aiohttp.ClientSession() as http,
    ):
        url = fleet.urls[0]
        call = asyncio.create_task(http.post(f"{url}/chat/completions", json=BODY))
        await until(lambda: fleet.statistics().total("running") == 1)
        await fleet.kill(0)
        with pytest.raises(aiohttp.ClientError):
            await call
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{url}/models")
        assert (await http.get(f"{fleet.urls[1]}/models")).status == 200
        await fleet.restart(0)
        assert fleet.urls[0] == url
        assert (await http.get(f"{url}/models")).status == 200


async def test_a_paused_server_takes_requests_and_sends_nothing():
    async with SimulatedFleet(speed=5000) as fleet, aiohttp.ClientSession() as http:
        fleet.pause(0)
        asks = asyncio.create_task(http.post(f"{fleet.urls[0]}/chat/completions", json=BODY))
        health = asyncio.create_task(http.get(f"{fleet.urls[0].removesuffix('/v1')}/health"))
        await until(lambda: fleet.statistics().total("waiting") == 1)
        # Later requests are read after earlier ones, so a reply would be there by now.
        done, _ = await asyncio.wait([asks, health], timeout=0.05)
        assert not done
        fleet.resume(0)
        assert [(await response).status for response in (asks, health)] == [200, 200]


async def test_models_health_and_what_does_not_exist():
    async with SimulatedFleet(model="tiny") as fleet, aiohttp.ClientSession() as http:
        models = await (await http.get(f"{fleet.urls[0]}/models")).json()
        assert [model["id"] for model in models["data"]] == ["tiny"]
        missing = await http.get(f"{fleet.urls[0]}/completions")
        assert (missing.status, (await missing.json())["error"]["code"]) == (404, 404)
        assert fleet.statistics().total("requests") == 0


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"messages": 3}', b'{"messages": [1]}', b"\xff"])
async def test_what_is_no_request_is_refused_and_the_connection_lives(data):
    async with SimulatedFleet(speed=5000) as fleet, aiohttp.ClientSession() as http:
        url = f"{fleet.urls[0]}/chat/completions"
        assert (await http.post(url, data=data)).status == 400
        assert (await http.post(url, json=BODY)).status == 200


async def test_requests_in_pieces_and_several_at_once_are_read_whole():
    body = json.dumps(BODY).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n" % len(body)
    request = head + b"\r\n" + body
    last = head + b"Connection: close\r\n\r\n" + body
    async with SimulatedFleet(speed=5000) as fleet:
        together = await raw(fleet, request + request + last)
        pieces = await raw(fleet, *(last[at : at + 7] for at in range(0, len(last), 7)))
    assert together.count(b"HTTP/1.1 200 OK") == 3
    assert pieces.count(b"HTTP/1.1 200 OK") == 1


async def test_a_body_without_a_length_is_refused():
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    async with SimulatedFleet() as fleet:
        assert b"411 Length Required" in await raw(fleet, chunked)


@pytest.mark.parametrize(
    ("n", "options", "said"),
    [
        (0, {}, "at least one server"),
        (2, {"replica": [ReplicaSpec()]}, "n=2 and 1 specs"),
        (1, {"speed": 0}, "speed must be above 0"),
    ],
)
def test_a_fleet_that_makes_no_sense_says_so(n, options, said):
    with pytest.raises(ConfigError, match=said):
        SimulatedFleet(n, **options)


def test_a_fleet_that_does_not_run_has_no_statistics():
    with pytest.raises(ConfigError, match="isn't running"):
        SimulatedFleet().statistics()


@pytest.mark.e2e
def test_a_fleet_in_a_process_of_its_own_obeys_and_ends():
    with FleetProcess(2, speed=50) as fleet:
        assert len(fleet.urls) == 2
        fleet.kill(1)
        fleet.restart(1)
        fleet.pause(0)
        fleet.resume(0)
        fleet.forget_statistics()
        assert fleet.statistics().total("requests") == 0
        with pytest.raises(AgentGymError, match=r"kill \[7\]"):
            fleet.kill(7)
        process = fleet._process
    assert process.returncode == 0
    with pytest.raises(AgentGymError, match="isn't running"):
        fleet.statistics()
