"""The quirky server, seen by a bare HTTP client."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from agentgym.testing.quirky import (
    QuirkyServer,
    Reply,
    Stream,
    answer,
    chunks_of,
    refusal_of,
)

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def post(server, body=None, *, data=None):
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/chat/completions?a=b", json=body, data=data) as response,
    ):
        return response.status, dict(response.headers), (await response.read()).decode()


async def test_replies_come_in_order_and_the_last_one_stays():
    async with QuirkyServer(answer("a"), (503, "busy", {"Retry-After": "2"})) as server:
        status, _, text = await post(server, BODY)
        assert (status, json.loads(text)) == (200, answer("a"))
        for _ in range(2):
            status, headers, text = await post(server, BODY)
            assert (status, text, headers["Retry-After"]) == (503, "busy", "2")
    assert server.requests == [BODY] * 3
    assert server.queries[0] == {"a": "b"}
    assert server.headers[0]["Content-Type"] == "application/json"


async def test_a_function_answers_by_what_was_asked():
    async with QuirkyServer(lambda body: Reply(body=body["model"], status=418)) as server:
        assert (await post(server, BODY))[0::2] == (418, "m")


async def test_what_is_in_flight_is_counted_and_can_be_held():
    async with QuirkyServer(answer()) as server:
        server.gate = asyncio.Event()
        posts = [asyncio.create_task(post(server, BODY)) for _ in range(5)]
        while server.in_flight < 5:
            await asyncio.wait(posts, timeout=0.01)
        server.gate.set()
        await asyncio.gather(*posts)
    assert (server.in_flight, server.most_in_flight) == (0, 5)


async def test_ordinary_answers_are_streamed_where_that_is_asked_for():
    async with QuirkyServer(answer("hello")) as server:
        _, headers, text = await post(
            server, {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        )
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert headers["Content-Type"] == "text/event-stream"
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[:-1] == chunks_of(answer("hello"))
    assert chunks[-1]["usage"] == answer()["usage"]


@pytest.mark.parametrize(
    "reply",
    [Reply(body=answer(), cut_after=0), Reply(body=answer(), cut_after=9), Stream(events=["x"])],
)
async def test_connections_can_be_cut(reply):
    if isinstance(reply, Stream):
        reply = Stream(events=reply.events, cut=True)
    async with QuirkyServer(reply) as server:
        with pytest.raises(aiohttp.ClientError):
            await post(server, BODY)
    assert server.in_flight == 0


@pytest.mark.parametrize("reply", [Reply(hangs=True), Stream(events=[], hangs=True)])
async def test_a_reply_that_never_comes_does_not_hold_up_the_end(reply):
    async with QuirkyServer(reply) as server:
        asked = asyncio.create_task(post(server, BODY))
        await server.asked.wait()
    with pytest.raises(aiohttp.ClientError):
        await asked


@pytest.mark.parametrize(
    "reply", [Reply(hangs=True), Reply(body="drop by drop", trickle_s=0.01), Stream(events=["x"])]
)
async def test_a_client_that_goes_away_leaves_nothing_behind(reply, caplog):
    if isinstance(reply, Stream):
        reply = Stream(events=["data: x\n\n"] * 100, pause_s=0.01, hangs=True)
    before = asyncio.all_tasks()
    async with QuirkyServer(reply) as server:
        asked = asyncio.create_task(post(server, BODY))
        await server.asked.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(0.05)
    assert server.in_flight == 0
    assert asyncio.all_tasks() == before
    assert caplog.messages == []


async def test_a_trickling_reply_is_whole_in_the_end():
    async with QuirkyServer(Reply(body="drop by drop", trickle_s=0.0)) as server:
        assert (await post(server, BODY))[2] == "drop by drop"


async def test_it_comes_back_on_the_same_port():
    server = QuirkyServer(answer())
    async with server:
        url = server.url
    async with server:
        assert server.url == url
        assert (await post(server, BODY))[0] == 200


def test_it_runs_without_a_loop():
    with QuirkyServer(answer("a")) as server:
        assert asyncio.run(post(server, BODY))[0] == 200
        assert asyncio.run(post(server, BODY))[0] == 200
    assert len(server.requests) == 2


# --- strictness -------------------------------------------------------------------------------


def test_an_ordinary_request_is_not_refused():
    assert refusal_of({**BODY, "tools": [{"function": {"name": "f"}}], "max_tokens": 5}) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"messages": []}, "required"),
        ({"model": None}, "required"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "role is 'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, "content is null"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]}, "answers 'x'"),
        ({"tools": []}, "not empty"),
        ({"tools": [{"function": {"name": "f"}}] * 2}, "not unique"),
        ({"max_tokens": 0}, "positive"),
        ({"stream_options": {"include_usage": True}}, "only allowed with stream"),
    ],
)
async def test_what_a_strict_provider_refuses_is_refused_and_takes_no_reply(change, why):
    async with QuirkyServer(answer()) as server:
        status, _, text = await post(server, {**BODY, **change})
        assert status == 400
        assert why in text
        assert (await post(server, BODY))[0] == 200
    assert (len(server.requests), len(server.refused)) == (1, 1)


@pytest.mark.parametrize("data", [b"{", b'"text"', b"[]", b'{"model": "\xff"}'])
async def test_what_is_no_json_object_in_utf8_is_refused(data):
    async with QuirkyServer(answer()) as server:
        assert (await post(server, data=data))[0] == 400
    assert len(server.refused) == 1


async def test_strictness_can_be_switched_off():
    async with QuirkyServer(answer(), strict=False) as server:
        assert (await post(server, {"messages": []}))[0] == 200
