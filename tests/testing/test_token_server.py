"""The server of completions in token ids that isn't vLLM, and its model."""

from __future__ import annotations

import importlib.util
from typing import Any

import aiohttp
import numpy as np
import pytest

from agentgym.client import Dialect, SamplingParams
from agentgym.clients.wire import encoded, token_request_body
from agentgym.clients.written import Written
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer

STOP = 5
CONTEXT = (7, 8, 9)


def body(**fields: Any) -> dict[str, Any]:
    asked = token_request_body(
        "policy", Written([b"[1,2,3]"]), [STOP], SamplingParams(seed=0, max_tokens=4), Dialect()
    )
    return {**asked, "prompt": [1, 2, 3], **fields}


async def post(server: TokenServer, path: str = "/completions", **fields: Any) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.url + path, data=encoded(body(**fields))) as response,
    ):
        return response.status, await response.json()


# --- the model ----------------------------------------------------------------------------------


def test_logprobs_are_a_distribution_and_the_sampled_ones_are_its():
    model = TokenModel(40, seed=1)
    params = {"temperature": 0.6, "max_tokens": 5, "seed": 3}
    sampled = model.sample(CONTEXT, params)
    context = list(CONTEXT)
    for token, logprob in zip(sampled.ids, sampled.logprobs, strict=True):
        logprobs = model.logprobs(context, params)
        assert np.exp(logprobs).sum() == pytest.approx(1)
        assert logprob == logprobs[token]
        context.append(token)


def test_frequencies_are_those_of_the_logprobs():
    model = TokenModel(6, seed=2)
    params = {"temperature": 0.8, "max_tokens": 1}
    draws = [model.sample(CONTEXT, {**params, "seed": k}).ids[0] for k in range(2000)]
    expected = np.exp(model.logprobs(CONTEXT, params))
    found = np.bincount(draws, minlength=6) / len(draws)
    assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 1e-9}, 1),
        ({"min_p": 1.0}, 1),
        ({"temperature": 2.0}, 12),
    ],
)
def test_cut_offs_leave_the_likeliest(params, kept):
    model = TokenModel(12, seed=3)
    logprobs = model.logprobs(CONTEXT, params)
    assert np.isfinite(logprobs).sum() == kept
    assert logprobs.argmax() == model.logits(CONTEXT).argmax()


def test_modes_differ_at_a_temperature_only():
    processed, raw = TokenModel(9), TokenModel(9, mode="raw_logprobs")
    assert processed.logprobs(CONTEXT) == pytest.approx(raw.logprobs(CONTEXT))
    colder = {"temperature": 0.5}
    assert raw.logprobs(CONTEXT, colder) == pytest.approx(raw.logprobs(CONTEXT))
    gap = np.ptp(processed.logprobs(CONTEXT, colder)) / np.ptp(raw.logprobs(CONTEXT))
    assert gap == pytest.approx(2)


def test_greedy_takes_the_likeliest_and_a_seed_repeats():
    model = TokenModel(50)
    (token,) = model.sample(CONTEXT, {"temperature": 0, "max_tokens": 1}).ids
    assert token == model.logits(CONTEXT).argmax()
    params = {"seed": 4, "max_tokens": 9}
    assert model.sample(CONTEXT, params) == model.sample(CONTEXT, params)
    model.seed = 1  # other weights
    assert model.sample(CONTEXT, params) != TokenModel(50).sample(CONTEXT, params)


def test_said_ids_end_where_the_request_ends_them():
    model = TokenModel(9)
    asked = {"max_tokens": 3, "stop_token_ids": [STOP]}
    assert model.sample(CONTEXT, asked, said=[1, STOP, 2]).ids == (1, STOP)
    cut = model.sample(CONTEXT, asked, said=[1, 2, 3, 4])
    assert (cut.ids, cut.finish_reason) == ((1, 2, 3), "length")
    assert model.sample(CONTEXT, asked, said=[1, 2]).finish_reason == "stop"


# --- the server ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": "text"}, 400, "asked in token ids"),
        ({"prompt": []}, 400, "non-empty"),
        ({"prompt": [1, 99]}, 400, "Token id 99 is out of vocabulary"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 14}, 400, "maximum context length is 16 tokens"),
    ],
)
async def test_what_vllm_refuses_is_refused(fields, status, text):
    async with TokenServer(TokenModel(20), max_model_len=16) as server:
        found, told = await post(server, **fields)
    assert (found, text in told["error"]["message"]) == (status, True)
    assert len(server.refused) == 1
    assert server.requests == []


async def test_prefixes_are_cached_by_whole_blocks():
    async with TokenServer(TokenModel(90)) as server:
        cached = []
        for prompt in (list(range(40)), list(range(40)), list(range(33)), list(range(1, 41))):
            _, told = await post(server, prompt=prompt)
            cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
        server.forget_prefixes()
        _, told = await post(server, prompt=list(range(40)))
        cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 32, 0, 0]


async def test_script_goes_first_then_the_model_samples():
    async with TokenServer(TokenModel(20), script=[[1, 2], (503, "busy")]) as server:
        _, first = await post(server)
        status, second = await post(server)
        _, third = await post(server)
    assert first["choices"][0]["token_ids"] == [1, 2]
    assert (status, second["error"]["message"]) == (503, "busy")
    assert third["choices"][0]["token_ids"] == list(server.model.sample([1, 2, 3], body()).ids)


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
async def test_requests_and_replies_are_vllms():
    """vLLM takes fields that it doesn't know, and does nothing with them."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse

    asked = token_request_body(
        "policy",
        Written([b"[1]"]),
        [STOP],
        SamplingParams(seed=1, stop=("x",), json_schema={"type": "object"}),
        Dialect(),
    )
    assert asked.keys() <= CompletionRequest.model_fields.keys()
    CompletionRequest.model_validate({**asked, "prompt": [1, 2]})
    async with TokenServer(TokenModel(20)) as server:
        _, told = await post(server, logprobs=2)
    read = CompletionResponse.model_validate(told)
    known = CompletionResponse.model_fields.keys()
    assert told.keys() <= known
    assert told["choices"][0].keys() <= type(read.choices[0]).model_fields.keys()
    assert told["usage"].keys() <= type(read.usage).model_fields.keys()
