"""Asking in token ids, against a real vLLM server with a real small model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agentgym.cli import main
from agentgym.client import Completion, Endpoint, SamplingParams, TokenPath
from agentgym.clients import ChatClient
from agentgym.errors import ContextOverflow, EndpointError
from agentgym.traces import read_traces

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

CONTEXT = 2048
PARAMETERS = {"num_products": 60, "page_size": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_chat_policy import save_chat_policy, texts_of

    env = gymnasium.make("agentgym/WebShop-v0", **PARAMETERS)
    folder = tmp_path_factory.mktemp("policy") / "model"
    return save_chat_policy(folder, texts_of(env, tasks=20), context=CONTEXT)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.train.policy_server import policy_server

    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with policy_server(model, log, max_context=CONTEXT) as root:
        yield f"{root}/v1"


def client_of(url: str, model: Path, name: str | None = None) -> ChatClient:
    path = TokenPath(tokenizer=str(model))
    return ChatClient(Endpoint(base_url=url, model=name or str(model), tokens=path))


async def three_turns(client: ChatClient, number: int, tools: Any) -> list[Completion]:
    """A conversation at a temperature, with seeds of its own."""
    history: list[Any] = [{"role": "user", "content": f"find lamp {number}"}]
    found = []
    for turn in range(3):
        sampling = SamplingParams(
            temperature=0.7, top_p=0.95, max_tokens=24, seed=9 * number + turn
        )
        completion = await client.complete(history, tools, sampling, session=str(number))
        found.append(completion)
        calls = completion.message.get("tool_calls") or ()
        history.append(completion.message)
        history += [{"role": "tool", "tool_call_id": c.get("id"), "content": "no"} for c in calls]
        history += [] if calls else [{"role": "user", "content": "<|im_end|> again"}]
    await client.release(str(number))
    return found


def gap(network: Any, completion: Completion, sampling: SamplingParams) -> float:
    """The largest difference from transformers' log-probabilities of the ids."""
    import torch

    ids = torch.tensor([[*completion.prompt_ids, *completion.completion_ids]])
    with torch.no_grad():
        logits = network(ids).logits[0, len(completion.prompt_ids) - 1 : -1]
    logits = logits.double() / sampling.temperature
    order = logits.argsort(descending=True)
    chances = logits.softmax(-1).gather(1, order)
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(
        1, order, chances.cumsum(-1) - chances > sampling.top_p
    )
    logprobs = logits.masked_fill(dropped, -torch.inf).log_softmax(-1)
    sampled = torch.tensor(completion.completion_ids)[:, None]
    difference = logprobs.gather(1, sampled)[:, 0] - torch.tensor(completion.logprobs).double()
    return float(difference.abs().max())


async def test_ids_are_what_the_server_sampled(url, model):
    from transformers import AutoModelForCausalLM

    tools = gymnasium.make("agentgym/WebShop-v0", **PARAMETERS).reset(seed=0)[1]["tools"]
    client = client_of(url, model)
    await client.preflight(tools)
    episodes = await asyncio.gather(*(three_turns(client, n, tools) for n in range(6)))
    await client.aclose()
    for first, second, third in episodes:
        for before, after in ((first, second), (second, third)):
            so_far = before.prompt_ids + before.completion_ids
            assert after.prompt_ids[: len(so_far)] == so_far
        assert third.usage.cached_tokens >= len(second.prompt_ids) - 128
    network = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    sampling = SamplingParams(temperature=0.7, top_p=0.95)
    gaps = [gap(network, turn, sampling) for turns in episodes for turn in turns]
    assert max(gaps) < 1e-4


async def test_seed_repeats_the_ids(url, model):
    client = client_of(url, model)
    sampling = SamplingParams(max_tokens=12, seed=5)
    asked = [{"role": "user", "content": "hello"}]
    first = await client.complete(asked, (), sampling)
    again = await client.complete(asked, (), sampling)
    await client.aclose()
    assert first.completion_ids == again.completion_ids
    assert first.cut_off == (first.finish_reason == "length")


async def test_what_does_not_fit_is_not_sent(url, model):
    client = client_of(url, model)
    long = [{"role": "user", "content": "lamp " * CONTEXT}]
    with pytest.raises(ContextOverflow, match=f"the context is {CONTEXT}"):
        await client.complete(long, (), SamplingParams())
    fits = [{"role": "user", "content": "a"}]
    known = len((await client.complete(fits, (), SamplingParams(max_tokens=1))).prompt_ids)
    almost = [{"role": "user", "content": "a" + " lamp" * (CONTEXT - known - 8)}]
    try:
        completion = await client.complete(almost, (), SamplingParams(max_tokens=CONTEXT))
        assert len(completion.prompt_ids) + len(completion.completion_ids) <= CONTEXT
    except ContextOverflow:  # " lamp" may be more than one id
        pass
    await client.aclose()


async def test_other_model_is_refused(url, model):
    client = client_of(url, model, name="nobody")
    with pytest.raises(EndpointError, match="no model 'nobody'; it has"):
        await client.preflight()
    await client.aclose()


async def test_other_tokenizer_is_refused(url, model, tmp_path):
    from tiny_chat_policy import save_chat_policy

    other = save_chat_policy(tmp_path / "other", ["entirely different texts"], context=64)
    path = TokenPath(tokenizer=str(other))
    client = ChatClient(Endpoint(base_url=url, model=str(model), tokens=path))
    with pytest.raises(EndpointError, match="tokens.tokenizer must be that of the server's model"):
        await client.preflight()
    await client.aclose()


def test_rollout_writes_ids(url, model, tmp_path):
    kwargs = [f"{name}={value}" for name, value in PARAMETERS.items()]
    done = main(
        [
            *("rollout", "--env", "agentgym/WebShop-v0", "--env-kwargs", *kwargs, "-n", "3"),
            *("--base-url", url, "--model", str(model), "--tokenizer", str(model)),
            *("--max-tokens", "16", "--max-turns", "2", "--out", str(tmp_path / "x")),
        ]
    )
    assert done == 0
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    turns = [turn for trace in traces for turn in trace.turns]
    assert len(traces) == 3
    assert all(len(turn.completion_ids) == turn.usage.completion_tokens for turn in turns)
    assert all(len(turn.logprobs) == len(turn.completion_ids) for turn in turns)
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["roles"]["policy"]["tokens"] == {"tokenizer": str(model)}
