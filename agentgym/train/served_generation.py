"""TRL's vLLM backend, with servers of ours behind it.

In server mode TRL 1.16 opens an NCCL communicator the moment it makes its `VLLMGeneration`, and
asks the server's configuration for how log-probabilities are taken. A subclass in its place leaves
the trainer as it is: `use_vllm` stays on, and with it the importance-sampling correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from agentgym.errors import TrainingError
from agentgym.train.sync import Weights


class TakesWeights(Protocol):
    """What becomes of a trainer's weights."""

    def connect(self, accelerator: Any) -> None:
        """A trainer is being built."""
        ...

    def push(self, weights: Weights) -> None:
        """A trainer has new weights."""
        ...

    @property
    def logprobs_modes(self) -> Sequence[str]:
        """How the servers take log-probabilities."""
        ...


@dataclass(frozen=True)
class _ServersTold:
    """The part of TRL's `VLLMClient` that `GRPOTrainer` itself looks at."""

    logprobs_mode: str

    def get_server_info(self) -> dict[str, Any]:
        """As vLLM dumps it."""
        return {"model_config": {"logprobs_mode": self.logprobs_mode}}


def served_generation(policy: TakesWeights) -> Any:
    """A class to stand in for `trl.generation.vllm_generation.VLLMGeneration`."""
    from trl.generation.vllm_generation import VLLMGeneration

    class ServedGeneration(VLLMGeneration):
        """See the module."""

        policy_source = policy

        def _init_vllm(self) -> None:
            if self.mode != "server":
                raise TrainingError(
                    "a trainer whose policy is on servers needs "
                    f'GRPOConfig(use_vllm=True, vllm_mode="server"), got vllm_mode={self.mode!r}'
                )
            policy.connect(self.accelerator)
            self.vllm_client = _ServersTold(policy.logprobs_modes[0])
            self.accelerator.wait_for_everyone()

        def sync_weights(self) -> None:
            policy.push(Weights.of(self))

        def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
            raise TrainingError(
                "a policy on servers is asked by agentgym's rollouts only: pass "
                "rollout_func=agentgym.train.rollout_func(env_id) to the trainer"
            )

    return ServedGeneration
