"""Our weight syncs behind the protocol of TRL's asynchronous trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentgym.client import Endpoint
from agentgym.errors import TrainingError
from agentgym.train.async_transfer import SyncTransfer
from agentgym.train.sync import SyncReport, Weights

SERVERS = (Endpoint(base_url="http://one/v1", model="policy"),)
TENSORS = [("a", 1), ("b", 2)]


class Noting:
    """A sync that notes what it is asked."""

    def __init__(self, **report: Any) -> None:
        self.listeners: list[Any] = []
        self.checked: Sequence[Endpoint] = ()
        self.pushed: list[tuple[str, list[Any]]] = []
        self.closed = False
        self._report = report
        self.reads = 10

    def check(self, servers: Sequence[Endpoint]) -> None:
        self.checked = servers

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        named = zip(weights.tensors(), range(self.reads), strict=False)
        self.pushed.append((version, [pair for pair, _ in named]))
        facts = {"model": None, "servers": ("http://one",), **self._report}
        return SyncReport(version=version, **facts)

    def take_part(self, weights: Weights) -> None:
        raise AssertionError("the trainer's other processes walk the weights themselves")

    def stale(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_weights_go_out_under_a_new_name_each_time() -> None:
    sync = Noting()
    transfer = SyncTransfer(sync, SERVERS)
    transfer.init_weight_transfer()
    assert sync.checked == SERVERS
    for _ in range(2):
        transfer.pause()
        transfer.send_weights(iter(TENSORS))
        transfer.resume()
    assert [tensors for _, tensors in sync.pushed] == [TENSORS, TENSORS]
    first, second = (version for version, _ in sync.pushed)
    assert first.endswith("-1")
    assert second == f"{first[:-1]}2"
    transfer.destroy()
    assert sync.closed


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"lost": {"http://one": "it is down"}}, "http://one did not take .*it is down"),
        ({"model": "policy-v1"}, "LoRA"),
    ],
)
def test_what_the_worker_would_not_notice_stops_the_run(
    report: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        SyncTransfer(Noting(**report), SERVERS).send_weights(iter(TENSORS))


def test_weights_that_were_left_out_stop_the_run() -> None:
    sync = Noting()
    sync.reads = 0
    with pytest.raises(TrainingError, match="left out b"):
        SyncTransfer(sync, SERVERS).send_weights(iter(TENSORS))
