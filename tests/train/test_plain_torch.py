"""The example of a training step in plain torch: it learns, and trains on what was sampled."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_torch_grpo.py"


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
