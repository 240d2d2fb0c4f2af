"""A server's speed, on a clock of its own."""

from __future__ import annotations

import pytest

from agentgym.client import Completion
from agentgym.cost.speed import measure_speed
from agentgym.errors import EndpointError
from agentgym.types import Usage


class TimedServer:
    """Reads 1,000 tokens/s and writes 50 tokens/s, whoever asks; a word is a token."""

    def __init__(self, **usage) -> None:
        self.now = 0.0
        self.prompts: list[str] = []
        self.usage = usage
        self.attempts = 1

    def clock(self) -> float:
        return self.now

    async def complete(self, messages, tools, sampling, *, session=None) -> Completion:
        text = messages[-1]["content"]
        self.prompts.append(text)
        cached = self.usage.get("cached_tokens", 0)
        self.now += (len(text.split()) - cached) / 1000 + sampling.max_tokens / 50
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": sampling.max_tokens}
        return Completion(
            message={"role": "assistant", "content": "x"},
            usage=Usage(**{**usage, **self.usage}),
            attempts=self.attempts,
        )


async def test_reading_and_writing_are_told_apart():
    server = TimedServer()
    speed = await measure_speed(
        server, requests=20, prompt_words=5_000, output_tokens=200, clock=server.clock
    )
    # Each long prompt takes 5 s and one token's 0.02 s; what writing's own prompts take is small.
    assert speed.prefill_tokens_per_s == pytest.approx(5_000 / 5.02)
    assert speed.decode_tokens_per_s == pytest.approx(50, rel=1e-3)
    assert (speed.prompt_tokens, speed.output_tokens) == (5_000, 200)


async def test_no_prompt_begins_like_another():
    server = TimedServer()
    await measure_speed(server, requests=20, prompt_words=30, clock=server.clock)
    assert len({prompt.split()[0] for prompt in server.prompts}) == len(server.prompts) == 41


async def test_cached_tokens_are_not_read():
    server = TimedServer(cached_tokens=4)
    speed = await measure_speed(server, requests=10, prompt_words=1_004, clock=server.clock)
    assert speed.prefill_tokens_per_s == pytest.approx(1_000 / 1.02)


@pytest.mark.parametrize(
    ("usage", "attempts", "message"),
    [
        ({"estimated": True}, 1, "doesn't say how many tokens"),
        ({"prompt_tokens": 0}, 1, "doesn't say how many tokens"),
        ({}, 2, "lower --concurrency"),
        ({"cached_tokens": 6, "prompt_tokens": 10}, 1, "another --seed"),
    ],
)
async def test_a_figure_that_would_be_wrong_is_none(usage, attempts, message):
    server = TimedServer(**usage)
    server.attempts = attempts
    with pytest.raises(EndpointError, match=message):
        await measure_speed(server, requests=4, prompt_words=10, clock=server.clock)
