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
from agentgym.rollout.watch import may_block
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations
from agentgym.types import Message, ToolSpec, Usage

_TURNS_OF_THE_LOOP = 4
"""How often the loop runs between two engine steps: a finished request resolves a future, wakes its
episode, steps its environment and asks for the next completion, each in a turn of its own."""


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
        self.weight_version: str | None = None
        """The weights that the engine has, for the completions."""
        self._engine = llm_engine
        self._codec = codec
        self._conversations = Conversations(codec)
        self._max_context = max_context
        self._seeded = seeded
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._driver: asyncio.Task[None] | None = None

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
        prompt = self._conversations.prompt(session, messages, tools, most=self._max_context)
        room = self._max_context - len(prompt.ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(prompt.ids)} tokens, the context is {self._max_context}"
            )
        output = await self._generate(prompt.ids, sampling, min(sampling.max_tokens, room))
        answer = output.outputs[0]
        sampled = tuple(answer.token_ids)
        self._conversations.answered(session, prompt, sampled)
        reply = self._codec.parse(sampled, prompt.ids, tools)
        return Completion(
            message=reply.message,
            usage=Usage(
                prompt_tokens=len(prompt.ids),
                cached_tokens=output.num_cached_tokens or 0,
                completion_tokens=len(sampled),
            ),
            finish_reason=answer.finish_reason,
            cut_off=answer.finish_reason == "length",
            reasoning=reply.reasoning,
            prompt_ids=prompt.ids,
            completion_ids=sampled,
            logprobs=_logprobs(answer),
            weight_version=self.weight_version,
        )

    async def release(self, session: str) -> None:
        """Forget a session."""
        self._conversations.forget(session)

    async def aclose(self) -> None:
        """Forget everything; the engine stays the trainer's."""
        self._conversations.clear()
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None

    async def _generate(self, prompt: Sequence[int], sampling: SamplingParams, room: int) -> Any:
        request = f"agentgym-{next(self._numbers)}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._engine.add_request(
                request, {"prompt_token_ids": list(prompt)}, self._vllm_params(sampling, room)
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

    @may_block
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
