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
