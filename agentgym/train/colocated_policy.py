"""The policy in the trainer's own process: the vLLM that TRL builds in its colocated mode."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.errors import TrainingError
from agentgym.rollout import Engine
from agentgym.tokens.codec import ChatCodec
from agentgym.train.colocated import ColocatedClient
from agentgym.train.live_weights import require_live_weights_on_cpu
from agentgym.train.policy_source import EngineSettings, ProbeAnswer

logger = logging.getLogger(__name__)


class ColocatedPolicy:
    """A `PolicySource` over one vLLM engine in this process.

    Args:
        llm: vLLM's `LLM`, as TRL holds it.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._engine = llm.llm_engine
        self._clients: weakref.WeakSet[ColocatedClient] = weakref.WeakSet()
        self._version: str | None = None

    @property
    def max_context(self) -> int:
        """Tokens of prompt plus completion that fit."""
        return int(self._engine.vllm_config.model_config.max_model_len)

    def check(self, codec: ChatCodec, opening: Sequence[int]) -> None:
        """See that vLLM takes new weights here, and that a task fits."""
        require_live_weights_on_cpu()
        if len(opening) >= self.max_context:
            raise TrainingError(
                f"a task's opening has {len(opening)} tokens and the context is "
                f"{self.max_context}; raise max_context (vllm_max_model_length), or take a model "
                "with a longer one"
            )

    def engine(self, settings: EngineSettings, codec: ChatCodec) -> Engine:
        """An engine over the colocated vLLM."""
        client = ColocatedClient(
            self._engine,
            codec=codec,
            max_context=self.max_context,
            seeded=settings.seeded and not self._seeds_would_crash(),
        )
        client.weight_version = self._version
        self._clients.add(client)
        return settings.engine(client)

    def after_sync(self, version: str) -> None:
        """Reset the prefix cache, and see that it was.

        TRL resets it when it syncs and doesn't look at the answer, which is False while a block is
        in use. Old blocks would be reused under the new weights.
        """
        if self._llm.reset_prefix_cache() is False:
            raise TrainingError(
                "vLLM could not reset its prefix cache after the weight sync, since a request is "
                "still running: let nobody but the rollouts ask the trainer's engine"
            )
        self._version = version
        for client in self._clients:
            client.weight_version = version

    def probe(
        self, prompt_ids: Sequence[int], *, tokens: int, temperature: float
    ) -> list[ProbeAnswer]:
        """Continue a prompt from a fixed seed; no request may be running."""
        import torch
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
            max_tokens=tokens, seed=0, ignore_eos=True, logprobs=0, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        prompt = {"prompt_token_ids": list(prompt_ids)}
        self._engine.add_request("agentgym-probe", prompt, params)
        finished: list[Any] = []
        while not finished:
            finished = self._engine.step()
        answer = finished[0].outputs[0]
        ids = list(answer.token_ids)
        logprobs = [float(at[i].logprob) for i, at in zip(ids, answer.logprobs, strict=True)]
        float32 = self._engine.vllm_config.model_config.dtype == torch.float32
        return [ProbeAnswer(None, ids, logprobs, float32)]

    def stale(self) -> Mapping[str, str]:
        """None: the engine has no life of its own."""
        return {}

    def close(self) -> None:
        """Nothing: the engine is the trainer's."""

    def _seeds_would_crash(self) -> bool:
        """Whether vLLM 0.31 would fail on seeded requests; see `colocated_engine_for_cpu`."""
        from vllm.platforms import current_platform

        config = self._engine.vllm_config.scheduler_config
        crash = bool(current_platform.is_cpu() and config.enable_chunked_prefill)
        if crash:
            logger.warning(
                "sampling is not repeatable: build the trainer inside "
                "agentgym.train.colocated_engine_for_cpu(), which makes vLLM take seeds on a CPU"
            )
        return crash
