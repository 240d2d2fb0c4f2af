"""Clients that ask a server in token ids."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from template_zoo import byte_tokenizer

from agentgym.client import Endpoint, SamplingParams, TokenPath
from agentgym.clients import BalancedClient, ChatClient
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
        },
    },
}
TOOLS = [SEARCH]
OPENING = [{"role": "user", "content": "Say hello"}]
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer("qwen2_5")


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(found)
    return found


@pytest.fixture
def model(tokenizer: Any) -> TokenModel:
    return TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 4.0})


@pytest.fixture
async def server(model: TokenModel, tokenizer: Any) -> AsyncIterator[TokenServer]:
    async with TokenServer(model, tokenizer=tokenizer) as found:
        yield found


@pytest.fixture
async def make_client(
    server: TokenServer, folder: Path
) -> AsyncIterator[Callable[..., ChatClient]]:
    made: list[ChatClient] = []

    def make(tokens: dict[str, Any] | None = None, **fields: Any) -> ChatClient:
        path = TokenPath(tokenizer=str(folder), **(tokens or {}))
        given = {"base_url": server.url, "model": "policy", "tokens": path, **fields}
        made.append(ChatClient(Endpoint(**given), sleep=_no_sleep))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


async def _no_sleep(seconds: float) -> None:
    pass


async def test_ids_go_out_and_come_back(server, make_client, model, tokenizer):
    sampling = SamplingParams(max_tokens=8, seed=3, temperature=0.7)
    completion = await make_client().complete(OPENING, TOOLS, sampling)
    (sent,) = server.requests
    assert server.asked[-1] == "POST /v1/completions"
    assert completion.prompt_ids == tuple(sent["prompt"])
    assert "Say hello" in tokenizer.decode(sent["prompt"])
    sampled = model.sample(sent["prompt"], {**sent, "max_tokens": 8})
    assert completion.completion_ids == sampled.ids
    assert completion.logprobs == pytest.approx(sampled.logprobs)
    assert completion.usage.prompt_tokens == len(sent["prompt"])
    assert completion.usage.completion_tokens == len(sampled.ids)
    assert not completion.usage.estimated


async def test_every_sampling_parameter_is_sent(server, make_client):
    """G04: what is left out is taken from the model's generation config."""
    await make_client().complete(OPENING, (), SamplingParams())
    (sent,) = server.requests
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "n": 1}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {**sent, **neutral, **penalties} == sent
    assert sent["return_token_ids"] is True
    assert sent["logprobs"] == 0


async def test_turns_extend_the_ids_and_the_server_caches_them(server, make_client):
    server.script = [CALL]
    client = make_client()
    first = await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=99), session="s")
    (call,) = first.message["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": {"q": "a"}}
    result = {"role": "tool", "tool_call_id": call.get("id"), "content": "b"}
    history = [*OPENING, first.message, result]
    second = await client.complete(history, TOOLS, SamplingParams(max_tokens=9), session="s")
    so_far = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(so_far)] == so_far
    assert tuple(server.requests[1]["prompt"]) == second.prompt_ids
    assert second.usage.cached_tokens > len(first.prompt_ids) - 16


async def test_preflight_accepts_the_right_server(server, make_client):
    await make_client().preflight(TOOLS)
    assert [request["temperature"] for request in server.requests] == [1.0, 0.5]


async def test_missing_logprobs_of_single_ids_are_nan(server, make_client):
    """G10."""
    logprobs = {"tokens": ["", "", ""], "token_logprobs": [-0.1, None, float("-inf")]}
    server.script = [{"logprobs": logprobs, "token_ids": [5, 6, 7], "finish_reason": "length"}]
    completion = await make_client().complete(OPENING, (), SamplingParams(max_tokens=3))
    assert completion.logprobs[0] == -0.1
    assert list(map(math.isnan, completion.logprobs)) == [False, True, True]


async def test_replicas_are_asked_in_ids_too(server, model, tokenizer, folder):
    async with TokenServer(model, tokenizer=tokenizer) as other:
        path = TokenPath(tokenizer=str(folder))
        client = BalancedClient(
            Endpoint(base_url=each.url, model="policy", tokens=path) for each in (server, other)
        )
        await client.preflight(TOOLS)
        completion = await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=4))
        assert completion.prompt_ids
        assert completion.replica in {each.root.removeprefix("http://") for each in (server, other)}
        await client.aclose()
