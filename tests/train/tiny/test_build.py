from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


def test_a_build_of_two_steps_is_a_policy_that_loads_as_it_was(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    command = [sys.executable, "-m", "agentgym.train.tiny.build", "--out", str(tmp_path / "p")]
    command += ["--steps", "2", "--batch", "4"]
    for folder in ("p", "again"):
        command[4] = str(tmp_path / folder)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert "step 2/2" in done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype="auto")
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) < 600_000
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype="auto")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensor.half().float())
        assert torch.equal(tensor, again.state_dict()[name]), f"{name}: not reproducible"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "p")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Search"}], add_generation_prompt=True, return_dict=False
    )
    assert len(ids) == 4
