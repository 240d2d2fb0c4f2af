"""Where a trainer's rollouts have their policy: in its own process, on servers, behind a service.

TRL makes its vLLM once, while the trainer is built, and hands its weights to it before each batch.
What a rollout needs of it then is the same everywhere: an engine to play with, a word that the old
weights are forgotten, and an answer to the question whether it has the new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentgym.client import ModelClient, SamplingParams
from agentgym.rollout import Engine, EpisodeRequest, Ledger, Limits, Progress
from agentgym.tokens.codec import ChatCodec
from agentgym.trace import Trace
from agentgym.traces import TraceSink


class RolloutEngine(Protocol):
    """What plays episodes: `agentgym.rollout.Engine`, or its twin on a service."""

    def run_blocking(self, requests: Iterable[EpisodeRequest]) -> list[Trace]:
        """Play them all; the traces in the order in which the episodes finished."""
        ...

    def close(self) -> None:
        """Free environments and connections."""
        ...


@dataclass(frozen=True)
class EngineSettings:
    """What an engine plays and how, whatever policy it gets."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    sampling: SamplingParams
    limits: Limits
    writer: TraceSink | None = None
    progress: bool | Progress | None = None
    policy_name: str | None = None
    """As the traces name it."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template, as the codec has them."""
    seeded: bool = True
    """Whether requests carry the seeds that make sampling repeatable."""
    ledger: Ledger | None = None
    """What episodes are paid from; None where nobody minds."""

    def engine(self, client: ModelClient) -> Engine:
        """An engine of this process that plays with a client's policy."""
        return Engine(
            self.env_id,
            client=client,
            sampling=self.sampling,
            env_kwargs=self.env_kwargs,
            limits=self.limits,
            writer=self.writer,
            progress=self.progress,
            policy_name=self.policy_name,
            ledger=self.ledger,
        )


@dataclass(frozen=True)
class ProbeAnswer:
    """How one replica continued a prompt from a fixed seed."""

    replica: str | None
    """The server; None where there is only the trainer's own engine."""
    ids: Sequence[int]
    """Shape `(C,)`, sampled."""
    logprobs: Sequence[float]
    """Shape `(C,)`, nats, at the temperature asked for."""
    float32: bool
    """Whether it computes in float32."""


class PolicySource(Protocol):
    """The policy of a trainer, as its rollouts see it."""

    @property
    def max_context(self) -> int:
        """Tokens of prompt plus completion that fit."""
        ...

    def check(self, codec: ChatCodec, opening: Sequence[int]) -> None:
        """See, before the first episode, that it can be asked what the trainer will ask.

        Args:
            codec: Renders and parses for the trainer.
            opening: Shape `(P,)`, the ids of a task's opening.

        Raises:
            TrainingError: If it can't, with the remedy.
        """
        ...

    def engine(self, settings: EngineSettings, codec: ChatCodec) -> RolloutEngine:
        """An engine that plays with this policy; the caller closes it."""
        ...

    def after_sync(self, version: str) -> None:
        """TRL has handed over its weights: see that nothing the old ones computed is used again.

        Args:
            version: The new weights' name, for the traces.

        Raises:
            TrainingError: If what the old weights computed could still be used.
        """
        ...

    def probe(
        self, prompt_ids: Sequence[int], *, tokens: int, temperature: float
    ) -> list[ProbeAnswer]:
        """Continue a prompt from a fixed seed, on every replica that rollouts use.

        Args:
            prompt_ids: Shape `(P,)`.
            tokens: How many to sample; it must fit the context.
            temperature: Of the sampling, and of the log-probabilities.

        Raises:
            TrainingError: If no replica answers.
        """
        ...

    def stale(self) -> Mapping[str, str]:
        """Replicas that may have answered with other weights than the last ones, and why.

        What they said is of an unknown policy. All processes of a run must call together.
        """
        ...

    def close(self) -> None:
        """Free connections, and what was written to hand weights over."""
        ...


def played_by(trace: Trace, replicas: Collection[str]) -> bool:
    """Whether one of some replicas had a turn of an episode, or may have had one."""
    if not replicas:
        return False
    return any(turn.replica is None or turn.replica in replicas for turn in trace.turns)


def policy_source_of(trainer: Any) -> PolicySource:
    """The policy of a trainer, whichever way it was built.

    Raises:
        TrainingError: If the trainer has none that rollouts can use.
    """
    from agentgym.errors import TrainingError
    from agentgym.train.colocated_policy import ColocatedPolicy

    generation = getattr(trainer, "vllm_generation", None)
    source: PolicySource | None = getattr(generation, "policy_source", None)
    if source is not None:
        return source
    if generation is None or trainer.vllm_mode != "colocate":
        raise TrainingError(
            "agentgym's rollouts need colocated vLLM, "
            'GRPOConfig(use_vllm=True, vllm_mode="colocate"), or servers of which they know'
        )
    generation.policy_source = ColocatedPolicy(generation.llm)
    return generation.policy_source


def sampling_of(trainer: Any, max_turn_tokens: int) -> SamplingParams:
    """How a trainer wants to sample; its loss assumes just that."""
    return SamplingParams(
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k or -1,
        min_p=trainer.min_p or 0.0,
        repetition_penalty=trainer.repetition_penalty,
        max_tokens=max_turn_tokens,
    )
