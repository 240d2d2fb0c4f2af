"""The benchmark that is prepared for a GPU, in its tiny form on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
def test_both_loops_play_the_same_turns_and_the_parts_make_up_the_step(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "gpu_step.py"
    tiny = ["--shape", "tiny", "--steps", "1", "--episodes", "8", "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(script), *tiny], check=True, timeout=480)
    loops = json.loads((tmp_path / "gpu_step.json").read_text())["loops"]
    ours, theirs = loops["rollout_func"]["steps"], loops["environment_factory"]["steps"]
    assert len(ours) == len(theirs) == 1
    assert [(s["turns"], s["sampled"]) for s in ours] == [
        (s["turns"], s["sampled"]) for s in theirs
    ]
    for step in (*ours, *theirs):
        parts = ("rollout_s", "sync_s", "logprobs_s", "update_s")
        assert sum(step[part] for part in parts) == pytest.approx(step["step_s"], abs=0.01)
        assert step["turns"] >= 8
    assert "| rollout_func |" in (tmp_path / "gpu_step.md").read_text()
