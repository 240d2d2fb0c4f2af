"""The committed figures of `benchmarks/cost_prediction.py`, and what the docs say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "cost_prediction.json").read_text())


@pytest.mark.parametrize("run", RESULTS)
def test_a_handful_of_episodes_predicts_the_bill_within_a_fifth(run):
    for role, found in RESULTS[run]["roles"].items():
        assert abs(found["off_by"]) <= 0.2, (run, role)
        off_by = found["predicted_usd"] / found["actual_usd"] - 1
        assert found["off_by"] == pytest.approx(off_by)


@pytest.mark.parametrize("run", RESULTS)
def test_the_docs_have_these_figures(run):
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    for role, found in RESULTS[run]["roles"].items():
        cells = f"| ${found['actual_usd']:.4f} | {found['off_by']:+.1%} |"
        assert f"| {role} | ${found['predicted_usd']:.4f} |" in page
        assert cells in page
