"""The order of requests of a sync over NCCL, and who joins with which rank; the rest needs GPUs."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from aiohttp import web

from agentgym.errors import TrainingError
from agentgym.train.sync import NcclSync, Weights
from tests.support.vllm_admin import AdminServer


class GpuServer(AdminServer):
    """Takes part in weight transfer."""

    def __init__(self, workers: int, **options) -> None:
        super().__init__(
            weight_transfer_config={"backend": "nccl"}, device_config={"device": "cuda"}, **options
        )
        self.workers = workers
        self.joined: dict = {}
        self.announced: dict = {}
        self.everybody = threading.Event()

    async def _get_world_size(self, request, body):
        return web.json_response({"world_size": self.workers})

    async def _init_weight_transfer_engine(self, request, body):
        self.joined = body["init_info"]
        return web.json_response({})

    async def _start_weight_update(self, request, body):
        self.log.append("start")
        return web.json_response({})

    async def _update_weights(self, request, body):
        self.announced = body["update_info"]
        self.log.append("update")
        self.everybody.set()
        return web.json_response({})

    async def _finish_weight_update(self, request, body):
        self.log.append("finish")
        return web.json_response({})


class Group:
    """Stands in for NCCL: a broadcast ends only once the servers receive."""

    available = True

    def __init__(self, servers: list[GpuServer]) -> None:
        self.servers = servers
        self.sent: list[str] = []
        self.rank_0: dict = {}

    def address(self) -> str:
        return "10.0.0.1"

    def join(self, init_info):
        self.rank_0 = init_info
        return SimpleNamespace(group=SimpleNamespace(store=1, socket=1))

    def send(self, group, tensors):
        for server in self.servers:
            assert server.everybody.wait(30)
        self.sent += [name for name, _ in tensors]


def weights(passes: list[int]) -> Weights:
    model = torch.nn.Linear(3, 2, dtype=torch.bfloat16)

    def named():
        passes.append(1)
        yield from ((name, p.data) for name, p in model.named_parameters())

    return Weights(model, named)


def test_all_servers_are_in_one_group_and_get_each_tensor_at_once():
    with GpuServer(workers=2) as one, GpuServer(workers=4) as two:
        group = Group([one, two])
        sync = NcclSync(broadcast=group)
        sync.check([one.endpoint, two.endpoint])
        shared = {"master_address": "10.0.0.1", "master_port": 51216, "world_size": 7}
        assert one.joined == {**shared, "rank_offset": 1, "packed": True}
        assert two.joined == {**shared, "rank_offset": 3, "packed": True}
        passes: list[int] = []
        report = sync.push(weights(passes), version="7")
        assert len(passes) == 2  # names and shapes, then the tensors
        assert report.servers == (one.root, two.root)
        assert report.bytes == 2 * (3 * 2 + 2)
        for server in (one, two):
            assert server.announced == {
                "names": ["weight", "bias"],
                "dtype_names": ["bfloat16", "bfloat16"],
                "shapes": [[2, 3], [2]],
            }
            assert server.steps == [
                *("pause wait", "start", "update", "finish", "reset", "version 7", "resume")
            ]
        assert group.sent == ["weight", "bias"]
        assert not sync.stale()
        sync.push(weights(passes), version="8")
        assert len(passes) == 3
        sync.close()


def test_other_processes_make_as_many_passes_as_the_first():
    passes: list[int] = []
    sync = NcclSync(broadcast=Group([]))
    sync.take_part(weights(passes))
    assert len(passes) == 2
    sync.take_part(weights(passes))
    assert len(passes) == 3


def test_a_push_that_fails_before_it_sends_makes_as_many_passes_too():
    passes: list[int] = []
    with GpuServer(workers=1) as server:
        sync = NcclSync(broadcast=Group([server]))
        sync.check([server.endpoint])
        server.faults["/pause"] = [(500, "oh")]
        with pytest.raises(TrainingError, match="did not pause"):
            sync.push(weights(passes), version="7")
    assert len(passes) == 2


def test_a_server_that_fails_ends_the_run():
    with GpuServer(workers=1) as one, GpuServer(workers=1) as two:
        sync = NcclSync(broadcast=Group([one]))
        sync.check([one.endpoint, two.endpoint])
        two.faults["/update_weights"] = [(500, "oh")]
        with pytest.raises(TrainingError, match="did not take weights 7: .*HTTP 500: oh"):
            sync.push(weights([]), version="7")


def test_a_server_without_weight_transfer_is_refused_with_the_remedy():
    with AdminServer() as server, pytest.raises(TrainingError, match="--weight-transfer-config"):
        NcclSync(broadcast=Group([])).check([server.endpoint])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_trainer_without_cuda_is_told_to_use_the_folder():
    with AdminServer() as server, pytest.raises(TrainingError, match="through a shared folder"):
        NcclSync().check([server.endpoint])
