"""Full weights over NCCL, from the trainer's GPU to the servers' GPUs.

Not verified on GPUs: it needs CUDA on both sides, and the machines it was written on have none. Its
tests see the order of requests, and who joins the group with which rank.

It makes the calls that TRL 1.16 makes (`trl.generation.vllm_client.VLLMClient`, for vLLM 0.28 and
newer), with one difference: TRL opens a group with one server, and here one group has them all, so
that each tensor is gathered and broadcast once however many replicas there are. A group that loses
a member is lost with it: unlike with the other ways, a server that fails ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from agentgym.client import Endpoint
from agentgym.errors import TrainingError
from agentgym.train.sync.admin import AdminClient
from agentgym.train.sync.contract import InFlight, SyncListener, SyncReport, Weights
from agentgym.train.sync.fleet import Fleet

_JOIN_S = 300.0
"""How long the group may take to come together, seconds."""


class Broadcast(Protocol):
    """The trainer's side of the group."""

    @property
    def available(self) -> bool:
        """Whether this machine can be in one."""
        ...

    def address(self) -> str:
        """Where servers find this machine."""
        ...

    def join(self, init_info: dict[str, Any]) -> Any:
        """Join as rank 0; returns the group once all are in."""
        ...

    def send(self, group: Any, tensors: Iterator[tuple[str, Any]]) -> None:
        """Broadcast tensors in their order."""
        ...


class VllmBroadcast:
    """vLLM's own, as TRL uses it.

    Args:
        device: The trainer's CUDA device; None is the current one.
    """

    def __init__(self, device: Any = None) -> None:
        self._device = device

    @property
    def available(self) -> bool:
        """Whether there is CUDA."""
        import torch

        return torch.cuda.is_available()

    def address(self) -> str:
        """This machine's address, as vLLM finds it."""
        from vllm.utils.network_utils import get_ip

        return str(get_ip())

    def join(self, init_info: dict[str, Any]) -> Any:
        """Join as rank 0."""
        import torch
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        if self._device is not None and torch.device(self._device).index is not None:
            torch.cuda.set_device(torch.device(self._device))
        return trainer_init(init_info)

    def send(self, group: Any, tensors: Iterator[tuple[str, Any]]) -> None:
        """Broadcast in packed buffers."""
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=tensors, group=group, src=0, post_iter_func=lambda item: item[1]
        )


class NcclSync:
    """Broadcasts the weights to all servers at once.

    Args:
        group_port: Free port of this machine, where the group comes together.
        in_flight: What becomes of requests while weights change.
        device: The trainer's CUDA device; None is the current one.
        drain_s: How long a server may take to finish what is in flight, seconds.
        load_s: How long a transfer may take, seconds.
        broadcast: The trainer's side; None is vLLM's.
    """

    def __init__(
        self,
        *,
        group_port: int = 51216,
        in_flight: InFlight = "pause",
        device: Any = None,
        drain_s: float = 600.0,
        load_s: float = 600.0,
        broadcast: Broadcast | None = None,
    ) -> None:
        self.listeners: list[SyncListener] = []
        self._port = group_port
        self._load_s = load_s
        self._broadcast: Broadcast = broadcast or VllmBroadcast(device)
        self._fleet = Fleet(self.listeners, in_flight=in_flight, drain_s=drain_s)
        self._group: Any = None
        self._update_info: dict[str, Any] | None = None
        self._bytes = 0
        self._has_listed = False

    def check(self, servers: Sequence[Endpoint]) -> None:
        """See `WeightSync.check`; opens the group."""
        if not self._broadcast.available:
            raise TrainingError(
                "sync by NCCL needs a CUDA device for the trainer; without one sync through a "
                "shared folder"
            )
        self._fleet.take(servers, "nccl")
        sizes = self._all(lambda server: server.world_size(), "tell their size")
        first_rank, offset = {}, 1
        for root, size in sizes.items():
            first_rank[root], offset = offset, offset + size
        shared = {
            "master_address": self._broadcast.address(),
            "master_port": self._port,
            "world_size": offset,
            "packed": True,
        }

        async def join(server: AdminClient) -> None:
            info = {**shared, "rank_offset": first_rank[server.root]}
            await server.init_transfer(info, timeout_s=_JOIN_S)

        def ours() -> None:
            self._group = self._broadcast.join({**shared, "rank_offset": 1})

        self._meanwhile(ours, join, "join the NCCL group")

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        """See `WeightSync.push`.

        Raises:
            TrainingError: If any server did not take the weights: the group is broken then.
        """
        started = time.perf_counter()
        info = self._described(weights)

        async def receive(server: AdminClient) -> None:
            await server.receive(info, timeout_s=self._load_s)

        with weights.whole_pass() as tensors:
            self._all(self._fleet.hold, "pause")
            self._fleet.name(version)
            held = time.perf_counter()
            self._meanwhile(
                lambda: self._broadcast.send(self._group, tensors),
                receive,
                f"take weights {version}",
            )

        async def release(server: AdminClient) -> None:
            await self._fleet.release(server, version=version, model=None)

        self._all(release, f"go on under weights {version}")
        self._fleet.settle(dict.fromkeys(self._fleet.roots, 0), version=version)
        ended = time.perf_counter()
        return SyncReport(
            version=version,
            model=None,
            servers=self._fleet.roots,
            seconds=ended - started,
            held_s=ended - held,
            bytes=self._bytes,
        )

    def take_part(self, weights: Weights) -> None:
        """See `WeightSync.take_part`: as many passes over the weights as rank 0 makes."""
        for _ in range(1 if self._has_listed else 2):
            for _tensor in weights.tensors():
                pass
        self._has_listed = True

    def stale(self) -> dict[str, str]:
        """See `WeightSync.stale`."""
        return self._fleet.stale()

    def close(self) -> None:
        """See `WeightSync.close`."""
        self._fleet.close()
        if self._group is not None:
            # It holds a socket, for which the servers would keep waiting.
            inner = getattr(self._group, "group", None)
            if inner is not None:
                inner.store = inner.socket = None
            self._group = None

    def _described(self, weights: Weights) -> dict[str, Any]:
        """Names, dtypes and shapes of what is broadcast; constant, so listed once."""
        if self._update_info is None:
            names, dtypes, shapes = [], [], []
            for name, tensor in weights.tensors():
                names.append(name)
                dtypes.append(str(tensor.dtype).removeprefix("torch."))
                shapes.append(list(tensor.shape))
                self._bytes += tensor.numel() * tensor.element_size()
            self._update_info = {"names": names, "dtype_names": dtypes, "shapes": shapes}
        return self._update_info

    def _meanwhile(
        self, ours: Callable[[], None], theirs: Callable[[AdminClient], Any], what: str
    ) -> None:
        """Do our part in this thread, which owns the device, while the servers do theirs."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentgym-nccl") as pool:
            answers = pool.submit(self._all, theirs, what)
            ours()
            answers.result()

    def _all(self, action: Callable[[AdminClient], Any], what: str) -> dict[str, Any]:
        """What every server answers; one that fails ends the run."""
        found = self._fleet.each(action)
        faults = [str(outcome) for outcome in found.values() if isinstance(outcome, TrainingError)]
        if faults:
            raise TrainingError(f"policy servers did not {what}: {'; '.join(faults)}")
        return found
