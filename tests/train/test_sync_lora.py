"""Adapters by versioned load: requests name the version, and nothing waits for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import ChatClient
from agentgym.errors import EndpointError, TrainingError
from agentgym.train.sync import LoraSync, Weights
from agentgym.train.sync.claim import LOCK
from tests.support.vllm_admin import DIE, START, AdminServer

LORA = {"max_lora_rank": 16}


def adapter(rank: int = 8, **config) -> Weights:
    """A model as PEFT's are seen from here."""

    class Model(torch.nn.Linear):
        peft_config = {  # noqa: RUF012
            "default": SimpleNamespace(r=rank, **{"bias": "none", "rank_pattern": {}, **config})
        }

        def save_pretrained(self, folder: str, *, safe_serialization: bool) -> None:
            Path(folder, "adapter_config.json").write_text(json.dumps({"r": rank}))
            Path(folder, "adapter_model.safetensors").write_bytes(b"12345678")

    return Weights(Model(2, 2), lambda: pytest.fail("adapters are not merged"))


def lora_sync(tmp_path: Path, servers: list[AdminServer], rank: int = 8) -> LoraSync:
    sync = LoraSync(tmp_path / "shared", rank=rank, retry_pause_s=0)
    sync.check([server.endpoint for server in servers])
    return sync


def ask(server: AdminServer, model: str) -> list[str]:
    """What the tokens of one answer were computed with."""
    endpoint = server.endpoint.model_copy(update={"model": model, "max_retries": 0})
    completion = asyncio.run(ChatClient(endpoint).complete(USER, (), SamplingParams()))
    return json.loads(completion.message["content"])["of"]


USER = [{"role": "user", "content": "hi"}]


def test_each_version_is_served_under_its_own_name_and_the_one_before_stays(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        report = sync.push(adapter(), version="1")
        assert report.model == "policy@1"
        assert report.bytes == 8
        assert report.held_s == 0
        sync.push(adapter(), version="2")
        assert ask(server, "policy@1") == ["policy@1"] * 4  # a call that is on its way
        assert ask(server, "policy@2") == ["policy@2"] * 4
        sync.push(adapter(), version="3")
        with pytest.raises(EndpointError, match="does not exist"):
            ask(server, "policy@1")
        assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [LOCK, "2", "3"]
        assert ask(server, "policy") == [START] * 4
        assert not sync.stale()
        sync.close()
        assert not server.adapters
    assert server.steps == [
        *("load policy@1", "load policy@2", "load policy@3", "unload policy@1"),
        *("unload policy@2", "unload policy@3"),
    ]
    assert not list((tmp_path / "shared").iterdir())


def test_listeners_are_told_the_name_to_ask_for(tmp_path):
    told: list[tuple] = []

    class Listener:
        def holding(self, server: Endpoint) -> None:
            pytest.fail("adapters hold nobody up")

        def synced(self, server: Endpoint, *, version: str, model: str | None) -> None:
            told.append((version, model))

        def lost(self, server: Endpoint, why: str) -> None:
            told.append(("lost", why))

    with AdminServer(lora_config=LORA) as one, AdminServer(lora_config=LORA) as two:
        sync = lora_sync(tmp_path, [one, two])
        sync.listeners.append(Listener())
        sync.push(adapter(), version="1")
        assert told == [("1", "policy@1")] * 2
        two.faults["/v1/load_lora_adapter"] = [DIE]
        assert sync.push(adapter(), version="2").servers == (one.root,)
        assert sorted(name for name, _ in told[2:]) == ["2", "lost"]
        two.restart()
        assert sync.push(adapter(), version="3").servers == (one.root, two.root)


def test_a_load_that_failed_half_way_is_done_again(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        server.faults["/v1/models"] = [None, (500, "oh")]  # after the adapter was loaded
        assert sync.push(adapter(), version="1").servers == (server.root,)
    assert server.steps == ["load policy@1", "unload policy@1", "load policy@1"]


def test_adapters_of_a_run_that_crashed_are_unloaded(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        left = str(tmp_path / "shared" / "old")
        server.adapters = {"policy@old": left, "somebody-else": "/y"}
        lora_sync(tmp_path, [server]).push(adapter(), version="1")
        assert sorted(server.adapters) == ["policy@1", "somebody-else"]


def test_two_runs_with_one_server_keep_each_other_s_adapters(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        one, two = lora_sync(tmp_path / "one", [server]), lora_sync(tmp_path / "two", [server])
        for step in range(3):
            one.push(adapter(), version=f"one-{step}")
            two.push(adapter(), version=f"two-{step}")
            assert not one.stale() | two.stale()
        assert sorted(server.adapters) == [
            f"policy@{x}-{n}" for x in ("one", "two") for n in (1, 2)
        ]
        one.close()
        assert sorted(server.adapters) == ["policy@two-1", "policy@two-2"]
        two.close()


def test_adapters_are_not_loaded_over_base_weights_that_another_run_changed(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        server.version = "somebody-elses"
        with pytest.raises(TrainingError, match="other base weights than at the start") as caught:
            sync.push(adapter(), version="1")
        assert not server.steps
    assert "\n" not in str(caught.value)


def test_a_server_that_came_back_lacks_the_adapter(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        assert not sync.stale()
        sync.push(adapter(), version="1")
        server.restart()
        assert sync.stale() == {server.root: f"{server.root} lacks policy@1"}


@pytest.mark.parametrize(
    ("options", "rank", "said"),
    [
        ({}, 8, "takes no adapters: start it with --enable-lora --max-lora-rank 8"),
        ({"lora_config": LORA}, 17, "rank 17 is above .* start it with --max-lora-rank 32, or"),
        ({"lora_config": LORA, "dev_mode": False}, 8, "VLLM_SERVER_DEV_MODE=1"),
    ],
)  # fmt: skip
def test_a_server_that_takes_no_such_adapter_is_refused_at_the_start(tmp_path, options, rank, said):
    with AdminServer(**options) as server, pytest.raises(TrainingError, match=said):
        lora_sync(tmp_path, [server], rank)


def test_a_server_without_runtime_loading_is_refused_with_the_remedy(tmp_path):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        server.faults["/v1/load_lora_adapter"] = [(404, {"detail": "Not Found"})] * 2
        with pytest.raises(TrainingError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
            sync.push(adapter(), version="1")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (Weights(torch.nn.Linear(2, 2), dict), "needs a PeftModel"),
        (adapter(rank=32), "rank 32 is above"),
        (adapter(rank_pattern={"q_proj": 64}), "rank 64 is above"),
        (adapter(use_dora=True), "no adapters with use_dora"),
        (adapter(modules_to_save=["lm_head"]), "no adapters with modules_to_save"),
        (adapter(bias="all"), "no adapters with bias"),
    ],
)
def test_an_adapter_that_vllm_would_serve_as_something_else_is_refused(tmp_path, weights, said):
    with AdminServer(lora_config=LORA) as server:
        sync = lora_sync(tmp_path, [server])
        with pytest.raises(TrainingError, match=said):
            sync.push(weights, version="1")
        assert not server.steps
