"""The contract of weight syncs: how a trainer's weights get into the servers that sample.

A trainer in colocated mode writes into its own engine. With servers the weights travel, by a shared
folder, as LoRA adapters or over NCCL, and every way can fail half-done: a server that took half of
the tensors, or none, goes on answering, and nothing says so. So a sync here is one transaction per
server: hold what is in flight, load, forget the prefix cache, see that all of it happened, go on. A
server for which that fails is left out and told to whoever sends it requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from agentgym.client import Endpoint

InFlight: TypeAlias = Literal["pause", "through"]
"""What becomes of requests in flight while weights change.

`pause`: the server finishes them under the old weights and keeps new ones waiting, so every turn is
of one version. `through`: they are frozen, and go on under the new weights, with their prefix
computed anew; such a turn's `weight_version` reads `7->8`."""

NamedTensors: TypeAlias = Iterable[tuple[str, Any]]
"""Names and tensors, `Iterable[tuple[str, torch.Tensor]]`, as vLLM's `load_weights` takes them."""


@dataclass(frozen=True)
class Weights:
    """The trainer's weights, gathered only when they are asked for.

    Gathering a sharded model is collective: where there are several processes all of them call
    `WeightSync`, rank 0 `push` and the others `take_part`.
    """

    model: Any
    """The trainer's model, unwrapped; a `PeftModel` where LoRA is trained."""
    named_tensors: Callable[[], NamedTensors]
    """Yields the full weights, adapters merged, one at a time. Each tensor is valid until the next
    one is asked for."""

    @classmethod
    def of(cls, generation: Any) -> Weights:
        """The weights of a trainer's `trl.generation.vllm_generation.VLLMGeneration`.

        TRL 1.16 gathers plain, PEFT, FSDP and ZeRO-3 models in `_iter_named_params`.
        """
        return cls(generation.model, generation._iter_named_params)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """A pass over the full weights."""
        return iter(self.named_tensors())

    @contextmanager
    def whole_pass(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """A pass that goes to its end also if what is done with the tensors fails.

        Other processes gather along, and would wait for this one.
        """
        tensors = self.tensors()
        try:
            yield tensors
        except Exception:
            for _ in tensors:
                pass
            raise


@dataclass(frozen=True)
class SyncReport:
    """What one sync did."""

    version: str
    model: str | None
    """What requests must name from now on; None: what they named before."""
    servers: tuple[str, ...]
    """Roots of the servers that sample with the new weights."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Root of each server that does not, and why in one line. It is left paused, gets no requests,
    and is tried again at the next sync."""
    seconds: float = 0.0
    """Wall-clock time of the whole sync."""
    held_s: float = 0.0
    """The longest that any server answered nobody, seconds."""
    bytes: int = 0
    """Size of what travelled to each server."""


class SyncListener(Protocol):
    """Whoever sends requests to the servers, or lets others do so. Told from any thread."""

    def holding(self, server: Endpoint) -> None:
        """A server is about to answer nobody; requests had better wait or go elsewhere.

        Args:
            server: As it was given to `check`.
        """
        ...

    def synced(self, server: Endpoint, *, version: str, model: str | None) -> None:
        """A server has new weights; told before it answers with them.

        Args:
            server: Which.
            version: Of the weights.
            model: What requests must name from now on; None: what they named before.
        """
        ...

    def lost(self, server: Endpoint, why: str) -> None:
        """A server's weights are old or half-loaded; it must not be asked until it is synced."""
        ...


class WeightSync(Protocol):
    """One way to bring weights to servers; used from one thread, outside an event loop's."""

    listeners: list[SyncListener]
    """Told of each server at each sync."""

    def check(self, servers: Sequence[Endpoint]) -> None:
        """Take these servers, and find everything that can be known to be wrong before training.

        Args:
            servers: Replicas of one policy; the same `model` at each.

        Raises:
            TrainingError: With the server, what is wrong, and how to start it instead.
        """
        ...

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        """Bring weights to every server at once.

        Args:
            weights: The trainer's.
            version: A name for them, never used before; letters, digits, `.`, `-`, `_`.

        Raises:
            TrainingError: If no server took them.
        """
        ...

    def take_part(self, weights: Weights) -> None:
        """What the other processes of a training run do while rank 0 pushes."""
        ...

    def stale(self) -> dict[str, str]:
        """Roots of the servers that are not known to have the weights of the last push, and why.

        A server that died and came back has the weights that it was started with, and nothing
        else tells. Cheap; worth asking after a rollout, before its episodes are trained on.
        """
        ...

    def close(self) -> None:
        """Leave the servers running, free what is ours, delete what was written for them."""
        ...
