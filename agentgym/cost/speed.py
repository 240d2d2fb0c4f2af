"""How fast a policy's server reads and writes: what GPU-hours are planned with.

Reading (prefill) and writing (decode) are bound by different things, so they are measured apart, at
the concurrency in mind: long prompts with an answer of one token, then short with long answers.
Every prompt begins differently, so that no prefix cache helps; what one holds all the same is not
counted as read.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import chain

from pydantic import Field

from agentgym.client import ModelClient, SamplingParams
from agentgym.errors import EndpointError
from agentgym.types import Finite, Record, Usage

SHORT_PROMPT_WORDS = 8
LEAST_FRESH = 0.5
"""Share of the long prompts' tokens that no cache may have held; a chat template is in each."""
LEAST_S = 1e-9


class Speed(Record):
    """Tokens per second, all requests together."""

    prefill_tokens_per_s: Finite = Field(gt=0)
    """Prompt tokens that no cache held."""
    decode_tokens_per_s: Finite = Field(gt=0)
    """Sampled tokens, the time for their prompts taken off."""
    concurrency: int
    """Requests at once."""
    prompt_tokens: Finite
    """Mean length of the prompts that reading was measured with."""
    output_tokens: Finite
    """Mean length of the answers that writing was measured with."""


async def measure_speed(
    client: ModelClient,
    *,
    concurrency: int = 32,
    requests: int = 64,
    prompt_words: int = 1000,
    output_tokens: int = 128,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Speed:
    """Load a server and time it.

    Args:
        client: Of the server; vLLM should be told to `ignore_eos`, or answers end early.
        concurrency: Requests at once.
        requests: In each of the two phases; a few times the concurrency, or the end of a phase,
            where not all slots are busy, is much of it.
        prompt_words: Length of the long prompts; a word is a token or two.
        output_tokens: Length of the long answers.
        seed: Of the words. The same seed again finds its prompts in the server's cache.
        clock: Seconds, rising.

    Raises:
        EndpointError: If a request fails or had to be repeated, the server counts no tokens, or
            its cache held most of the prompts.
    """
    load = _Load(client, concurrency, clock)
    words = random.Random(seed)
    await load.run(_prompts(words, 1, SHORT_PROMPT_WORDS), 1)  # connections, first compilation
    read, reading_s = await load.run(_prompts(words, requests, prompt_words), 1)
    if _fresh(read) < LEAST_FRESH * read.prompt_tokens:  # then the time is not for reading
        raise EndpointError(
            "the server's cache held most of the prompts; give another --seed, or none",
            retryable=False,
        )
    prefill = _fresh(read) / reading_s
    written, writing_s = await load.run(
        _prompts(words, requests, SHORT_PROMPT_WORDS), output_tokens
    )
    writing_s -= min(_fresh(written) / prefill, writing_s / 2)
    return Speed(
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=written.completion_tokens / writing_s,
        concurrency=concurrency,
        prompt_tokens=read.prompt_tokens / requests,
        output_tokens=written.completion_tokens / requests,
    )


class _Load:
    """Requests to one server, so many at once."""

    def __init__(self, client: ModelClient, concurrency: int, clock: Callable[[], float]) -> None:
        self._client = client
        self._concurrency = concurrency
        self._clock = clock

    async def run(self, prompts: Sequence[str], max_tokens: int) -> tuple[Usage, float]:
        """Ask everything; what it took, in tokens and seconds."""
        waiting = iter(prompts)
        sampling = SamplingParams(max_tokens=max_tokens)
        usages: list[Usage] = []

        async def work() -> None:
            while (prompt := next(waiting, None)) is not None:
                usages.append(await self._ask(prompt, sampling))

        start = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(prompts))):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return sum(usages, Usage(calls=0)), max(self._clock() - start, LEAST_S)

    async def _ask(self, prompt: str, sampling: SamplingParams) -> Usage:
        messages = ({"role": "user", "content": prompt},)
        completion = await self._client.complete(messages, (), sampling)
        usage = completion.usage
        if (
            usage is None
            or usage.estimated
            or not (usage.prompt_tokens and usage.completion_tokens)
        ):
            raise EndpointError(
                "the server doesn't say how many tokens it read and wrote; measure one that does",
                retryable=False,
            )
        if completion.attempts > 1:
            raise EndpointError(
                "the server refused requests, so what it can do is less than was asked; "
                "lower --concurrency",
                retryable=False,
            )
        return usage


def _fresh(usage: Usage) -> int:
    return usage.prompt_tokens - usage.cached_tokens


def _prompts(words: random.Random, count: int, length: int) -> list[str]:
    """Texts that have nothing in common from the first word on."""
    return [
        " ".join(chain([f"{words.getrandbits(48):x}"], _words(words, length - 1)))
        for _ in range(count)
    ]


def _words(words: random.Random, count: int) -> list[str]:
    letters = "aeioubcdfglmnprst"
    return ["".join(words.choices(letters, k=4)) for _ in range(count)]
