"""The command that starts a server, and what is read from the one that it started."""

from __future__ import annotations

import shlex

import pytest

from agentgym.train.sync import server_command
from agentgym.train.sync.info import ServerInfo, differences


def info(**fields) -> ServerInfo:
    usual = {
        "root": "http://a", "served": ("policy",), "dtype": "bfloat16", "device": "cuda",
        "logprobs_mode": "processed_logprobs", "max_model_len": 512, "quantization": None,
        "chunked_prefill": True, "max_lora_rank": None, "transfer_backend": None,
    }  # fmt: skip
    return ServerInfo(**{**usual, **fields})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "m", "--dtype", "bfloat16",
              "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]),
        ({"served_name": "policy"}, ["--served-model-name", "policy"]),
        ({"max_context": 99}, ["--max-model-len", "99"]),
        ({"kind": "lora", "rank": 8}, ["--enable-lora", "--max-lora-rank", "8"]),
        ({"kind": "lora", "rank": 9}, ["--enable-lora", "--max-lora-rank", "16"]),
        ({"kind": "nccl"}, ["--weight-transfer-config", '{"backend": "nccl"}']),
        ({"cpu": True}, ["--no-enable-chunked-prefill"]),
        ({"cpu": True}, ["VLLM_CPU_KVCACHE_SPACE=4"]),
    ],
)  # fmt: skip
def test_the_command_has_what_a_sync_needs(options, words):
    command = shlex.split(server_command("m", **options))
    assert [word for word in command if word in words] == words
    assert ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in command) == (options.get("kind") == "lora")


def test_a_path_with_spaces_stays_one_word():
    assert "/my models/m" in shlex.split(server_command("/my models/m", served_name="a b"))


def test_what_vllm_dumps_is_read():
    found = ServerInfo.of(
        "http://a",
        ["policy"],
        {
            "model_config": {
                "dtype": "torch.bfloat16", "logprobs_mode": "raw_logprobs", "max_model_len": 512,
                "quantization": "fp8",
            },
            "device_config": {"device": "cuda"},
            "scheduler_config": {"enable_chunked_prefill": True},
            "lora_config": {"max_lora_rank": 16},
            "weight_transfer_config": {"backend": "nccl"},
        },
    )  # fmt: skip
    assert found == info(
        logprobs_mode="raw_logprobs", quantization="fp8", max_lora_rank=16, transfer_backend="nccl"
    )
    assert ServerInfo.of("http://a", [], {}).max_lora_rank is None


def test_a_good_server_has_no_faults():
    assert info().faults("folder", model="policy") == []
    assert info(max_lora_rank=16, quantization="bitsandbytes").faults(
        "lora", model="policy", rank=16
    ) == []  # fmt: skip
    assert info(transfer_backend="nccl").faults("nccl", model="policy") == []


def test_replicas_may_differ_in_nothing_that_training_sees():
    assert differences([info(), info(root="http://b", device="cpu")]) == []
    (told,) = differences([info(), info(root="http://b", max_model_len=256)])
    assert told == (
        "replicas of one policy differ in --max-model-len: http://a has 512, http://b has 256"
    )
