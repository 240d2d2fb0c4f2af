"""A model client over the vLLM engine that lives inside TRL's trainer.

Episodes ask for completions whenever they are ready; each request joins the batch that is decoding
at that moment, so an episode in its first turn decodes together with one in its fifth and none
waits for a round to end. One task steps the engine on the event loop and lets the loop run between
steps: handing each step to a thread costs a switch per token and was never faster, since the engine
holds Python's lock between its kernels.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from agentgym.client import Completion, SamplingParams
from agentgym.errors import ContextOverflow, EndpointError
from agentgym.train.tokens import ChatCodec
from agentgym.types import Message, ToolSpec, Usage

_TURNS_OF_THE_LOOP = 4
"""How often the loop runs between two engine steps: a finished request resolves a future, wakes its
episode, steps its environment and asks for the next completion, each in a turn of its own."""


class _Session:
    """What has been said in one episode, as ids."""

    __slots__ = ("ids", "sampled", "seen")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.sampled: tuple[int, ...] = ()
        self.seen = 0

    def extended(
        self, codec: ChatCodec, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int]:
        """Ids of the next prompt: everything so far, plus the messages added since."""
        if not self.seen:
            return codec.prompt_ids(messages, tools)
        if len(messages) <= self.seen or messages[self.seen].get("role") != "assistant":
            raise EndpointError(
                "a session's conversation must continue with the message that was sampled",
                retryable=False,
            )
        suffix = codec.suffix_ids(
            self.sampled, messages[self.seen], messages[self.seen + 1 :], tools
        )
        return [*self.ids, *self.sampled, *suffix]


class ColocatedClient:
    """Implements `ModelClient` on a vLLM engine in this process.

    Not thread-safe: use it from one event loop at a time.

    Args:
        llm_engine: vLLM's `LLMEngine`, built with `logprobs_mode="processed_logprobs"`, so that
            log-probabilities are those of the distribution sampled from, at any temperature.
        codec: Renders and parses.
        max_context: Tokens of prompt plus completion that fit.
        seeded: Whether to honour `SamplingParams.seed`. Repeatable, at some cost: vLLM draws seeded
            requests one by one (about 20 µs each per step on a CPU).
    """

    def __init__(
        self, llm_engine: Any, *, codec: ChatCodec, max_context: int, seeded: bool = True
    ) -> None:
        self._engine = llm_engine
        self._codec = codec
        self._max_context = max_context
        self._seeded = seeded
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._driver: asyncio.Task[None] | None = None
        self._sessions: dict[str, _Session] = {}

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; with a session, by extending the ids of its last answer.

        Raises:
            ContextOverflow: If no token fits behind the prompt.
            EndpointError: If the engine fails.
        """
        state = self._sessions.get(session) if session is not None else None
        state = state or _Session()
        prompt = state.extended(self._codec, messages, tools)
        room = self._max_context - len(prompt)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context is {self._max_context}"
            )
        output = await self._generate(prompt, sampling, min(sampling.max_tokens, room))
        answer = output.outputs[0]
        sampled = tuple(answer.token_ids)
        state.ids, state.sampled, state.seen = prompt, sampled, len(messages)
        if session is not None:
            self._sessions[session] = state
        reply = self._codec.parse(sampled, prompt, tools)
        return Completion(
            message=reply.message,
            usage=Usage(
                prompt_tokens=len(prompt),
                cached_tokens=output.num_cached_tokens or 0,
                completion_tokens=len(sampled),
            ),
            finish_reason=answer.finish_reason,
            cut_off=answer.finish_reason == "length",
            reasoning=reply.reasoning,
            prompt_ids=tuple(prompt),
            completion_ids=sampled,
            logprobs=_logprobs(answer),
        )

    async def release(self, session: str) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)

    async def aclose(self) -> None:
        """Forget everything; the engine stays the trainer's."""
        self._sessions.clear()
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None

    async def _generate(self, prompt: list[int], sampling: SamplingParams, room: int) -> Any:
        request = f"agentgym-{next(self._numbers)}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._engine.add_request(
                request, {"prompt_token_ids": prompt}, self._vllm_params(sampling, room)
            )
        except ValueError as error:
            raise EndpointError(f"vLLM refused a request: {error}", retryable=False) from error
        self._waiting[request] = future
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive(), name="agentgym-vllm")
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(request, None) is not None:
                self._engine.abort_request([request])
            raise

    async def _drive(self) -> None:
        """Step the engine until nothing is waiting."""
        try:
            while self._waiting:
                for output in self._engine.step():
                    future = self._waiting.pop(output.request_id, None)
                    if future is not None and not future.done():
                        future.set_result(output)
                for _ in range(_TURNS_OF_THE_LOOP):
                    await asyncio.sleep(0)
        except Exception as error:  # whatever broke the engine breaks every request in it
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(
                        EndpointError(
                            f"vLLM failed: {type(error).__name__}: {error}", retryable=False
                        )
                    )
            self._waiting.clear()

    def _vllm_params(self, sampling: SamplingParams, room: int) -> Any:
        """vLLM's parameters, all of them, so that no model's generation_config slips in."""
        from vllm import SamplingParams as VllmSampling
        from vllm.sampling_params import RequestOutputKind

        return VllmSampling(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            max_tokens=room,
            seed=sampling.seed if self._seeded else None,
            stop=list(sampling.stop) or None,
            stop_token_ids=list(self._codec.stop_ids),
            logprobs=0,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _logprobs(answer: Any) -> tuple[float, ...]:
    """The sampled ids' log-probabilities; NaN where vLLM has none."""
    if answer.logprobs is None:
        return (float("nan"),) * len(answer.token_ids)
    return tuple(
        float("nan") if (found := at.get(token)) is None else float(found.logprob)
        for token, at in zip(answer.token_ids, answer.logprobs, strict=True)
    )
