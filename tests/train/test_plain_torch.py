"""The example of a training step in plain torch: it learns, and trains on what was sampled."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentgym.train.batches import PaddedBatch

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_torch_grpo.py"


class _Bigrams(torch.nn.Module):
    """A causal model of 5 ids, as far as a step looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 5)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(ids))


@pytest.mark.parametrize("masked", [True, False])
def test_step_learns_from_what_was_scored_and_from_nothing_else(masked: bool) -> None:
    step = runpy.run_path(str(EXAMPLE))["step"]
    ids = np.array([[0, 1, 2], [0, 3, 4]])
    batch = PaddedBatch(
        rewards=np.array([np.nan, np.nan] if masked else [0.0, 1.0]),
        groups=np.zeros(2, dtype=np.int64),
        episodes=np.arange(2),
        ids=ids,
        attention_mask=np.ones((2, 3), dtype=bool),
        mask=np.array([[False, not masked, not masked]] * 2),
        logprobs=np.full((2, 3), -1.6, dtype=np.float32),
    )
    model = _Bigrams()
    before = model.table.weight.detach().clone()
    step(model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0), batch)
    after = model.table.weight.detach()
    assert torch.equal(before, after) == masked
    assert after.isfinite().all()


@pytest.mark.e2e
def test_plain_torch_grpo_learns(tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(EXAMPLE)!r})['main'](steps=7)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    solved = [int(share) for share in re.findall(r"solved (\d+)%", done.stdout)]
    gaps = [float(gap) for gap in re.findall(r"gap (\S+)", done.stdout)]
    assert len(solved) == len(gaps) == 7
    assert sum(solved[-2:]) / 2 > solved[0] + 20
    assert max(gaps) < 1e-4
