"""Full weights through a folder that the trainer and the servers share.

Works wherever there is such a folder: on a CPU, over machines, with servers of other parallelism
than the trainer's. It costs one write and one read of the model per sync, and the servers stand
still only for the read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agentgym.client import Endpoint
from agentgym.errors import ConfigError, TrainingError
from agentgym.train.sync.admin import AdminClient
from agentgym.train.sync.checkpoint import (
    SHARD_BYTES,
    check_version,
    check_writable,
    delete_versions,
    write_weights,
)
from agentgym.train.sync.claim import FolderClaim
from agentgym.train.sync.contract import InFlight, SyncListener, SyncReport, Weights
from agentgym.train.sync.fleet import Fleet

logger = logging.getLogger(__name__)


class FolderSync:
    """Writes safetensors under `folder/VERSION/` and has every server load them from there.

    Args:
        folder: Shared with the servers; one run's at a time, and what earlier runs left in it is
            deleted.
        server_folder: What the servers call it; None: the same.
        in_flight: What becomes of requests while weights change.
        dtype: Precision of the files, such as `bfloat16`; None: the servers', which halves the
            files of a trainer in float32 and loads the same weights.
        shard_bytes: Size of a file.
        drain_s: How long a server may take to finish what is in flight, seconds.
        load_s: How long it may take to load, seconds.
        retry_pause_s: Before a failed sync of a server is tried once more, seconds.

    Examples:
        >>> sync = FolderSync(Path("/shared/weights"))
        >>> sync.check([Endpoint(base_url="http://gpu1:8000/v1", model="policy")])
        >>> sync.push(Weights.of(trainer.vllm_generation), version="7").servers
        ('http://gpu1:8000',)
    """

    def __init__(
        self,
        folder: Path,
        *,
        server_folder: str | None = None,
        in_flight: InFlight = "pause",
        dtype: str | None = None,
        shard_bytes: int = SHARD_BYTES,
        drain_s: float = 600.0,
        load_s: float = 600.0,
        retry_pause_s: float = 1.0,
    ) -> None:
        self.listeners: list[SyncListener] = []
        self._folder = folder.absolute()
        self._claim = FolderClaim(self._folder)
        self._server_folder = PurePosixPath(server_folder or self._folder)
        self._dtype = dtype
        self._shard_bytes = shard_bytes
        self._load_s = load_s
        self._fleet = Fleet(
            self.listeners, in_flight=in_flight, drain_s=drain_s, retry_pause_s=retry_pause_s
        )

    def check(self, servers: Sequence[Endpoint]) -> None:
        """See `WeightSync.check`."""
        infos = self._fleet.take(servers, "folder")
        if self._dtype is None:
            self._dtype = infos[0].dtype
        _torch_dtype(self._dtype)
        check_writable(self._folder)
        self._claim.take()
        if left := delete_versions(self._folder):
            logger.info("deleted weights of earlier runs: %s", ", ".join(left))

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        """See `WeightSync.push`."""
        started = time.perf_counter()
        with weights.whole_pass() as tensors:
            self._claim.require()
            check_version(version)
            _check_whole(weights.model)
            written = write_weights(
                self._folder,
                version,
                tensors,
                dtype=_torch_dtype(self._dtype),
                shard_bytes=self._shard_bytes,
            )
        path = str(self._server_folder / version)

        async def load(server: AdminClient) -> None:
            await server.reload(path, timeout_s=self._load_s)

        held_s = self._fleet.swap(load, version=version)
        delete_versions(self._folder, keep=(version,))
        return SyncReport(
            version=version,
            model=None,
            servers=self._fleet.roots,
            lost=dict(self._fleet.lost),
            seconds=time.perf_counter() - started,
            held_s=held_s,
            bytes=written.bytes,
        )

    def take_part(self, weights: Weights) -> None:
        """See `WeightSync.take_part`."""
        for _ in weights.tensors():
            pass

    def stale(self) -> dict[str, str]:
        """See `WeightSync.stale`."""
        return self._fleet.stale()

    def close(self) -> None:
        """See `WeightSync.close`."""
        self._fleet.close()
        if self._claim.is_ours:
            delete_versions(self._folder)
        self._claim.release()


def _check_whole(model: Any) -> None:
    if any(getattr(model, f"is_loaded_in_{bits}bit", False) for bits in (4, 8)):
        raise TrainingError(
            "the trainer's weights are quantized, and servers load whole ones: sync the adapter "
            'alone (sync="lora"), to servers started with --quantization bitsandbytes'
        )


def _torch_dtype(name: str | None) -> Any:
    """The `torch.dtype` of a name; None stays None."""
    import torch

    if name is None:
        return None
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"dtype is float32, bfloat16 or float16, got {name!r}")
    return found
