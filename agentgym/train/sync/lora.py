"""LoRA adapters, each version under a name of its own.

An adapter is a thousandth of the model, and a server holds several at once, so nothing has to wait:
requests in flight finish under the adapter they began with, new ones name the new one, and vLLM's
prefix cache tells adapters apart by name and path. The version before stays loaded for calls that
are on their way; what is older is unloaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agentgym.client import Endpoint
from agentgym.errors import TrainingError
from agentgym.train.sync.admin import AdminClient, ServerFault
from agentgym.train.sync.checkpoint import (
    check_version,
    check_writable,
    delete_versions,
    write_adapter,
)
from agentgym.train.sync.claim import FolderClaim
from agentgym.train.sync.contract import SyncListener, SyncReport, Weights
from agentgym.train.sync.fleet import Fleet
from agentgym.train.sync.info import ServerInfo


class LoraSync:
    """Saves the adapter under `folder/VERSION/` and has every server serve it as `MODEL@VERSION`.

    The trainer's model is a `PeftModel` that every process holds whole (one process, or DDP).

    Args:
        folder: Shared with the servers; one run's at a time, and what earlier runs left in it is
            deleted.
        rank: Of the adapter, so that a server which takes no such rank is refused at the start.
        server_folder: What the servers call the folder; None: the same.
        load_s: How long a server may take to load an adapter, seconds.
        retry_pause_s: Before a failed sync of a server is tried once more, seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        server_folder: str | None = None,
        load_s: float = 120.0,
        retry_pause_s: float = 1.0,
    ) -> None:
        self.listeners: list[SyncListener] = []
        self._folder = folder.absolute()
        self._claim = FolderClaim(self._folder)
        self._rank = rank
        self._server_folder = PurePosixPath(server_folder or self._folder)
        self._load_s = load_s
        self._fleet = Fleet(self.listeners, retry_pause_s=retry_pause_s)
        self._infos: list[ServerInfo] = []
        self._versions: list[str] = []
        self._given: set[str] = set()  # names of all adapters that this run had loaded

    def check(self, servers: Sequence[Endpoint]) -> None:
        """See `WeightSync.check`."""
        self._infos = self._fleet.take(servers, "lora", rank=self._rank)
        check_writable(self._folder)
        self._claim.take()
        delete_versions(self._folder)

        async def begin(server: AdminClient) -> None:
            for name, path in (await server.adapters()).items():
                if PurePosixPath(path).parent == self._server_folder:  # of a run that was killed
                    await server.unload_adapter(name)

        found = self._fleet.each(begin).values()
        if faults := [str(fault) for fault in found if isinstance(fault, ServerFault)]:
            raise TrainingError("; ".join(faults))

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        """See `WeightSync.push`."""
        started = time.perf_counter()
        self._claim.require()
        check_version(version)
        self._check_adapter(weights.model)
        written = write_adapter(self._folder, version, weights.model)
        kept = [*self._versions[-1:], version]
        name, path = self._name(version), str(self._server_folder / version)
        in_use = {self._name(each) for each in kept}

        async def once(server: AdminClient) -> None:
            if (base := await server.version()) != self._fleet.began_with[server.root]:
                raise ServerFault(
                    f"{server.root} has other base weights than at the start ({base!r}): another "
                    "run changed them, and an adapter fits its own; give each run its own servers"
                )
            there = await server.models()
            if name in there:  # the first attempt's
                await server.unload_adapter(name)
            await server.load_adapter(name, path, timeout_s=self._load_s)
            await self._fleet.tell("synced", server.endpoint, version=version, model=name)
            for old in there:
                if old in self._given and old not in in_use:
                    await server.unload_adapter(old)

        self._given.add(name)
        self._fleet.settle(self._fleet.each(self._fleet.or_lost(once)), version=version)
        self._versions = kept
        delete_versions(self._folder, keep=kept)
        return SyncReport(
            version=version,
            model=name,
            servers=self._fleet.roots,
            lost=dict(self._fleet.lost),
            seconds=time.perf_counter() - started,
            bytes=written.bytes,
        )

    def take_part(self, weights: Weights) -> None:
        """Nothing: the adapter is whole in every process."""

    def stale(self) -> dict[str, str]:
        """See `WeightSync.stale`."""
        if not self._versions:
            return {}
        name = self._name(self._versions[-1])

        async def serves_it(server: AdminClient) -> str | None:
            return None if name in await server.models() else f"{server.root} lacks {name}"

        return self._fleet.faults(serves_it)

    def close(self) -> None:
        """See `WeightSync.close`."""

        async def forget(server: AdminClient) -> None:
            for name in await server.models():
                if name in self._given:
                    await server.unload_adapter(name)

        self._fleet.each(forget)  # a server that is gone has forgotten them
        self._fleet.close()
        if self._claim.is_ours:
            delete_versions(self._folder)
        self._claim.release()

    def _name(self, version: str) -> str:
        return f"{self._fleet.model}@{version}"

    def _check_adapter(self, model: Any) -> None:
        """Refuse what vLLM would serve as something else than what is trained."""
        configs = getattr(model, "peft_config", None)
        if not isinstance(configs, dict) or set(configs) != {"default"}:
            raise TrainingError(
                "LoRA sync needs a PeftModel with one adapter, named 'default'; for other models "
                "sync full weights through a folder"
            )
        if any(hasattr(p, "ds_id") or hasattr(p, "full_tensor") for p in model.parameters()):
            raise TrainingError(
                "LoRA sync needs the adapter whole in every process; with ZeRO-3 or FSDP sync full "
                "weights through a folder"
            )
        config = configs["default"]
        unserved = [
            name
            for name, is_set in {
                "use_dora": getattr(config, "use_dora", False),
                "modules_to_save": getattr(config, "modules_to_save", None),
                "bias": getattr(config, "bias", "none") != "none",
            }.items()
            if is_set
        ]
        if unserved:
            raise TrainingError(
                f"vLLM serves no adapters with {', '.join(unserved)}: train without, or sync full "
                "weights through a folder"
            )
        rank = max([config.r, *(getattr(config, "rank_pattern", None) or {}).values()])
        faults = [f"{x.root}: {f}" for x in self._infos for f in x.faults_of_rank(rank)]
        if faults:
            raise TrainingError("; ".join(faults))
