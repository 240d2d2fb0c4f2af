"""Whole episodes over the token wire: the ids are those that the same policy has in this process.

`LocalClient` is what the client of a colocated engine is, with a model of its own in place of vLLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from token_policy import CounterPlayer, counter_server, saved_tokenizer

from agentgym.client import Completion, Endpoint, SamplingParams, TokenPath
from agentgym.clients import BalancedClient, ChatClient, RecordingClient, ReplayClient
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.testing.envs import CounterEnv
from agentgym.testing.token_model import TokenModel
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations
from agentgym.traces import TraceWriter, read_traces
from agentgym.types import Usage

COUNTER = "token-episodes/Counter-v0"
if COUNTER not in gymnasium.registry:
    gymnasium.register(COUNTER, entry_point=CounterEnv)

SAMPLING = SamplingParams(temperature=0.7, max_tokens=400)
REQUESTS = [EpisodeRequest(task_id=f"counter/{n}", seed=n) for n in range(1, 13)]


class LocalClient:
    """Asks a model in this process."""

    def __init__(self, tokenizer: Any, model: TokenModel) -> None:
        self.codec = ChatCodec(tokenizer, stop_ids=[tokenizer.eos_token_id])
        self.conversations = Conversations(self.codec)
        self.player = CounterPlayer(tokenizer)
        self.model = model

    async def complete(self, messages, tools, sampling, *, session=None) -> Completion:
        prompt = self.conversations.prompt(session, messages, tools)
        params = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        said = self.player.said(prompt.ids)
        sampled = self.model.sample(prompt.ids, params, said=said)
        self.conversations.answered(session, prompt, sampled.ids)
        return Completion(
            message=self.codec.parse(sampled.ids, prompt.ids, tools).message,
            usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=len(sampled.ids)),
            finish_reason=sampled.finish_reason,
            prompt_ids=prompt.ids,
            completion_ids=sampled.ids,
            logprobs=sampled.logprobs,
        )

    async def release(self, session) -> None:
        self.conversations.forget(session)

    async def aclose(self) -> None:
        self.conversations.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return saved_tokenizer(folder)


def endpoint(server: Any, folder: Path, **fields: Any) -> Endpoint:
    return Endpoint(
        base_url=server.url, model="policy", tokens=TokenPath(tokenizer=str(folder)), **fields
    )


async def played(client: Any, writer: Any = None) -> dict[str, Any]:
    async with Engine(COUNTER, client=client, sampling=SAMPLING, writer=writer) as engine:
        return {trace.task_id: trace async for trace in engine.run(REQUESTS)}


def ids_of(traces: dict[str, Any]) -> dict[str, Any]:
    return {
        task: [(turn.prompt_ids, turn.completion_ids) for turn in trace.turns]
        for task, trace in traces.items()
    }


@pytest.mark.thorough
async def test_the_same_episodes_have_the_same_ids_over_the_wire(tokenizer, folder):
    async with counter_server(tokenizer) as server, counter_server(tokenizer) as other:
        local = await played(LocalClient(tokenizer, server.model))
        client = ChatClient(endpoint(server, folder))
        over_wire = await played(client)
        assert len(client._wire._conversations) == 0
        await client.aclose()
        several = BalancedClient([endpoint(server, folder), endpoint(other, folder)])
        balanced = await played(several)
        await several.aclose()
        assert other.requests
    assert {len(trace.turns) for trace in local.values()} > {3}
    assert any(len(turn.calls) > 1 for trace in local.values() for turn in trace.turns)
    assert any(turn.malformed for trace in local.values() for turn in trace.turns)
    assert any(trace.verdict.correct for trace in local.values())
    for traces in (over_wire, balanced):
        assert ids_of(traces) == ids_of(local)
        for task, trace in traces.items():
            assert trace.verdict.reward == local[task].verdict.reward
            for turn, its in zip(trace.turns, local[task].turns, strict=True):
                assert turn.logprobs == pytest.approx(its.logprobs)
                assert turn.message == its.message
    for trace in over_wire.values():
        for turn, after in zip(trace.turns, trace.turns[1:], strict=False):
            so_far = turn.prompt_ids + turn.completion_ids
            assert after.prompt_ids[: len(so_far)] == so_far


async def test_spelling_that_the_tokenizer_would_not_choose_stays(tokenizer, folder):
    """F01: decoded and tokenised again, "he" + "llo" would be "hello"."""
    async with counter_server(tokenizer) as server:
        client = ChatClient(endpoint(server, folder))
        traces = await played(client)
        await client.aclose()
    turns = [turn for trace in traces.values() for turn in trace.turns]
    respelt = [
        turn
        for turn in turns
        if tuple(tokenizer(tokenizer.decode(turn.completion_ids))["input_ids"])
        != turn.completion_ids
    ]
    assert len(respelt) > len(turns) / 4


async def test_ids_survive_traces_and_recordings(tokenizer, folder, tmp_path):
    nan = {"logprobs": {"token_logprobs": [-0.5, None]}, "token_ids": [64, 65]}
    async with counter_server(tokenizer) as server:
        server.script[0] = {**nan, "finish_reason": "length"}
        client = RecordingClient(ChatClient(endpoint(server, folder)), tmp_path / "calls.jsonl")
        with TraceWriter(tmp_path / "traces.jsonl") as writer:
            traces = await played(client, writer)
        await client.aclose()
    read = {trace.task_id: trace for trace in read_traces(tmp_path / "traces.jsonl")}
    replayed = await played(ReplayClient(tmp_path / "calls.jsonl"))
    assert ids_of(read) == ids_of(replayed) == ids_of(traces)
    for found in (read, replayed):
        logprobs = [turn.logprobs for task in traces for turn in found[task].turns]
        expected = [turn.logprobs for trace in traces.values() for turn in trace.turns]
        assert list(map(str, logprobs)) == list(map(str, expected))
    assert "nan" in str(logprobs)
