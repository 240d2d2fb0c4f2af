"""Scripted policies: deterministic, each session on its own."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.clients import ScriptedClient
from agentgym.errors import EndpointError

SAMPLING = SamplingParams()


async def say(client, session="s", messages=()):
    completion = await client.complete(messages, (), SAMPLING, session=session)
    return completion.message.get("content")


async def test_is_a_model_client():
    assert isinstance(ScriptedClient([]), ModelClient)


async def test_list_is_played_per_session():
    client = ScriptedClient(["a", {"role": "assistant", "content": "b"}])
    assert [await say(client, "1"), await say(client, "2"), await say(client, "1")] == [
        "a",
        "a",
        "b",
    ]
    assert client.calls == 3


async def test_end_of_the_list_is_an_error():
    client = ScriptedClient(["a"])
    await say(client)
    with pytest.raises(EndpointError, match="1 replies and turn 2"):
        await say(client)


async def test_released_session_starts_over():
    client = ScriptedClient(["a", "b"])
    await say(client)
    await client.release("s")
    await client.release("never seen")
    assert await say(client) == "a"
    await client.aclose()
    assert await say(client) == "a"


async def test_repeat_starts_over_at_the_end():
    client = ScriptedClient(["a", "b"], repeat=True)
    assert [await say(client) for _ in range(5)] == list("ababa")


async def test_exceptions_in_a_script_are_raised():
    client = ScriptedClient([EndpointError("down", retryable=True), "a"])
    with pytest.raises(EndpointError, match="down"):
        await say(client)
    assert await say(client) == "a"


async def test_functions_get_what_they_have_room_for():
    got = []
    messages = ({"role": "user", "content": "x"},)
    one = ScriptedClient(lambda m: got.append((m,)) or "1")
    two = ScriptedClient(lambda m, i: got.append((m, i)) or "2")
    three = ScriptedClient(lambda *a: got.append(a) or Completion(message={"content": "3"}))
    for client in (one, two, three):
        client.observe("s", {"turns_left": 2})
        await say(client, messages=messages)
    info = {"turns_left": 2}
    assert got == [(messages,), (messages, info), (messages, info, SAMPLING)]


async def test_async_functions_are_awaited():
    async def policy(messages):
        await asyncio.sleep(0)
        return "later"

    assert await say(ScriptedClient(policy)) == "later"


@pytest.mark.parametrize("function", [lambda: "a", lambda a, b, c, d: "a"])
def test_function_of_the_wrong_shape_is_refused(function):
    with pytest.raises(TypeError, match="one to three arguments"):
        ScriptedClient(function)
