"""The client over a stand-in for vLLM's engine; the real one is in the end-to-end tests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_policy

from agentgym.client import ModelClient, SamplingParams
from agentgym.errors import ContextOverflow, EndpointError, TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.train.colocated import ColocatedClient
from agentgym.train.colocated_policy import ColocatedPolicy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OPENING = [{"role": "user", "content": "w1 w2"}]
STOP = 3


class FakeEngine:
    """Samples "yes" until the request's length is reached, then the stop token; one id per step."""

    def __init__(self, *, length: int = 3, stop: bool = True) -> None:
        self.running: dict[str, dict[str, Any]] = {}
        self.batch_sizes: list[int] = []
        self.params: list[Any] = []
        self.prompts: list[list[int]] = []
        self.aborted: list[str] = []
        self.length, self.stop = length, stop
        self.broken: Exception | None = None

    def add_request(self, request: str, prompt: Any, params: Any) -> None:
        self.running[request] = {"params": params, "ids": []}
        self.params.append(params)
        self.prompts.append(prompt["prompt_token_ids"])

    def abort_request(self, requests: list[str]) -> None:
        self.aborted += requests
        for request in requests:
            self.running.pop(request, None)

    async def steps(self, count: int) -> None:
        while len(self.batch_sizes) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def step(self) -> list[Any]:
        if self.broken is not None:
            raise self.broken
        self.batch_sizes.append(len(self.running))
        finished = []
        for request, state in list(self.running.items()):
            ids, limit = state["ids"], state["params"].max_tokens
            done = self.stop and len(ids) == self.length - 1
            ids.append(STOP if done else 10)
            if done or len(ids) == limit:
                del self.running[request]
                answer = SimpleNamespace(
                    token_ids=ids,
                    finish_reason="stop" if done else "length",
                    logprobs=[{i: SimpleNamespace(logprob=-0.5)} for i in ids],
                )
                finished.append(
                    SimpleNamespace(request_id=request, outputs=[answer], num_cached_tokens=2)
                )
        return finished


def client_of(engine: FakeEngine, **kwargs: Any) -> ColocatedClient:
    codec = ChatCodec(tiny_policy.make_tokenizer(), stop_ids=[STOP])
    return ColocatedClient(engine, codec=codec, **{"max_context": 64, **kwargs})


def test_client_keeps_the_contract() -> None:
    assert isinstance(client_of(FakeEngine()), ModelClient)


async def test_second_prompt_is_the_first_plus_sampled_plus_new_messages() -> None:
    engine = FakeEngine()
    client = client_of(engine)
    first = await client.complete(OPENING, [], SamplingParams(), session="s")
    history = [*OPENING, first.message, {"role": "user", "content": "w3"}]
    second = await client.complete(history, [], SamplingParams(), session="s")
    assert first.prompt_ids is not None
    assert first.completion_ids is not None
    assert second.prompt_ids is not None
    known = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(known)] == known
    assert client._codec.tokenizer.decode(second.prompt_ids[len(known) :]).startswith("\n")
    assert first.logprobs == (-0.5,) * 3
    assert first.usage is not None
    assert first.usage.cached_tokens == 2
    assert not first.cut_off


async def test_released_session_starts_afresh_and_sessions_do_not_mix() -> None:
    engine = FakeEngine()
    client = client_of(engine)
    a, b = await asyncio.gather(
        client.complete(OPENING, [], SamplingParams(), session="a"),
        client.complete([{"role": "user", "content": "w5"}], [], SamplingParams(), session="b"),
    )
    assert a.prompt_ids != b.prompt_ids
    await client.release("a")
    again = await client.complete(OPENING, [], SamplingParams(), session="a")
    assert again.prompt_ids == a.prompt_ids


async def test_requests_join_the_running_batch() -> None:
    engine = FakeEngine(length=30)
    client = client_of(engine)

    async def later() -> None:
        await engine.steps(5)
        await client.complete(OPENING, [], SamplingParams(), session="late")

    await asyncio.gather(client.complete(OPENING, [], SamplingParams(), session="early"), later())
    assert engine.batch_sizes[0] == 1
    assert 2 in engine.batch_sizes


async def test_every_sampling_parameter_is_sent_and_seeds_can_be_left_out() -> None:
    engine = FakeEngine()
    sampling = SamplingParams(temperature=0.7, seed=5, max_tokens=9)
    await client_of(engine).complete(OPENING, [], sampling)
    await client_of(engine, seeded=False).complete(OPENING, [], sampling)
    sent, unseeded = engine.params
    assert (sent.temperature, sent.top_p, sent.top_k, sent.min_p) == (0.7, 1.0, 0, 0.0)
    assert (sent.repetition_penalty, sent.presence_penalty, sent.frequency_penalty) == (1, 0, 0)
    assert (sent.seed, sent.max_tokens, sent.logprobs, sent.n) == (5, 9, 0, 1)
    assert sent.stop_token_ids == [STOP]
    assert unseeded.seed is None


async def test_max_tokens_is_what_is_left_of_the_context_and_then_it_overflows() -> None:
    engine = FakeEngine(stop=False)
    prompt = len(client_of(engine)._codec.prompt_ids(OPENING, []))
    tight = client_of(engine, max_context=prompt + 2)
    completion = await tight.complete(OPENING, [], SamplingParams(), session="s")
    assert completion.cut_off
    assert len(completion.completion_ids or ()) == 2
    with pytest.raises(ContextOverflow):
        await tight.complete([*OPENING, completion.message], [], SamplingParams(), session="s")


async def test_cancelled_request_is_aborted_and_the_others_go_on() -> None:
    engine = FakeEngine(length=20)
    client = client_of(engine)
    doomed = asyncio.create_task(client.complete(OPENING, [], SamplingParams(), session="a"))
    other = asyncio.create_task(client.complete(OPENING, [], SamplingParams(), session="b"))
    await engine.steps(3)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    assert len((await other).completion_ids or ()) == 20
    assert len(engine.aborted) == 1


async def test_broken_engine_fails_every_waiting_request_and_no_more() -> None:
    engine = FakeEngine()
    client = client_of(engine)
    engine.broken = RuntimeError("out of memory")
    answers = await asyncio.gather(
        *(client.complete(OPENING, [], SamplingParams(), session=str(i)) for i in range(3)),
        return_exceptions=True,
    )
    assert all(isinstance(a, EndpointError) and "out of memory" in str(a) for a in answers)
    engine.broken = None
    engine.running.clear()
    await client.complete(OPENING, [], SamplingParams(), session="3")


async def test_conversation_that_does_not_continue_its_session_is_refused() -> None:
    client = client_of(FakeEngine())
    await client.complete(OPENING, [], SamplingParams(), session="s")
    with pytest.raises(EndpointError, match="must continue"):
        await client.complete(OPENING, [], SamplingParams(), session="s")


def test_cache_that_was_not_reset_after_a_sync_ends_the_run() -> None:
    """G02: vLLM answers False while a block is in use, and TRL doesn't look."""
    answers = [None, True, False]
    engine = SimpleNamespace(llm_engine=None, reset_prefix_cache=lambda: answers.pop(0))
    policy = ColocatedPolicy(engine)
    policy.after_sync("1")
    policy.after_sync("2")
    with pytest.raises(TrainingError, match="could not reset its prefix cache .* still running"):
        policy.after_sync("3")
    assert policy._version == "2"
