"""Our weight syncs as the `weight_transfer` of TRL's asynchronous trainer.

TRL's own goes over NCCL to one server. With a `WeightSync` the weights reach any number of servers,
and by a shared folder also where there is no CUDA.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym.client import Endpoint
from agentgym.errors import TrainingError
from agentgym.train.sync import Weights, WeightSync


class SyncTransfer:
    """Implements TRL's `WeightTransferProtocol` with one of our syncs.

    Args:
        sync: How weights travel; full weights, since the worker asks for one model all along.
        servers: The policy's servers, the same as the worker's.

    Examples:
        >>> transfer = SyncTransfer(FolderSync(Path("/shared/weights")), endpoints)
        >>> trainer = AsyncGRPOTrainer(…, rollout_worker=worker, weight_transfer=transfer)
    """

    def __init__(self, sync: WeightSync, servers: Sequence[Endpoint]) -> None:
        self._sync = sync
        self._servers = tuple(servers)
        self._run = uuid.uuid4().hex[:8]
        self._pushes = 0

    def init_weight_transfer(self) -> None:
        """Find out what is wrong with the servers before training.

        Raises:
            TrainingError: With the server and the remedy.
        """
        self._sync.check(self._servers)

    def pause(self) -> None:
        """Nothing: a sync holds each server for as long as that one needs."""

    def resume(self) -> None:
        """Nothing: see `pause`."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Bring weights to every server.

        Args:
            iterator: Names and tensors, each valid until the next one; it is read once.

        Raises:
            TrainingError: If a server didn't take them. The worker, in a process of its own, would
                go on asking it, and call its old weights new.
        """
        self._pushes += 1
        report = self._sync.push(
            Weights(None, lambda: iterator), version=f"{self._run}-{self._pushes}"
        )
        for rest in iterator:  # gathering is collective: the other processes walk all of it
            raise TrainingError(f"the weight sync left out {rest[0]}")
        if report.lost:
            server, why = next(iter(report.lost.items()))
            raise TrainingError(
                f"{server} did not take the weights of version {report.version}: {why}; mend it "
                "and resume from the last checkpoint"
            )
        if report.model is not None:
            raise TrainingError(
                "LoRA adapters change the model's name at every sync, which TRL's worker protocol "
                "can't pass on; use FolderSync or NcclSync, which send merged weights"
            )

    def destroy(self) -> None:
        """Free what is the sync's."""
        self._sync.close()
