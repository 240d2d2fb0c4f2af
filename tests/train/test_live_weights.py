"""What is done to vLLM on a CPU, where it needs no engine to be seen."""

from __future__ import annotations

import sys

import pytest

from agentgym.train import live_weights


@pytest.mark.parametrize(("prefix", "disabled"), [("/opt/my venv", True), ("/opt/venv", False)])
def test_nothing_is_compiled_under_a_path_with_spaces(
    monkeypatch: pytest.MonkeyPatch, prefix: str, disabled: bool
) -> None:
    import torch._dynamo

    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(live_weights.sysconfig, "get_path", lambda name: "/usr/include")
    with torch._dynamo.config.patch(disable=False):
        live_weights._compile_nothing_under_a_path_with_spaces()
        assert torch._dynamo.config.disable is disabled


def test_a_step_may_have_more_episodes_than_vllm_takes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl.generation import vllm_generation

    from agentgym.train.live_weights import colocated_engine_for_cpu

    monkeypatch.setattr(vllm_generation, "LLM", lambda **kwargs: kwargs)
    with colocated_engine_for_cpu(max_context=512):
        asked = vllm_generation.LLM(max_num_seqs=8192, max_num_batched_tokens=4096)
        few = vllm_generation.LLM(max_num_seqs=64, max_num_batched_tokens=4096)
    assert (asked["max_num_seqs"], few["max_num_seqs"]) == (4096, 64)
    assert vllm_generation.LLM(max_num_seqs=8192) == {"max_num_seqs": 8192}
