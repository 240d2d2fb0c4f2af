"""Folders as runs leave them: two real ones, and synthetic ones."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic_runs import Symptoms, score_of, steps_of

DATA = Path(__file__).parent / "data"
LEARNS = DATA / "learns"
"""24 steps of the demo's training that went well, resumed after step 12; without its traces."""
COLLAPSES = DATA / "collapses"
"""The same at twelve times the learning rate."""


def save(
    out: Path, symptoms: Symptoms, *, steps: int, eval_every: int | None = None, **extra: object
) -> Path:
    """A run without a model behind it; `extra` are metrics that every step has, too."""
    out.mkdir(parents=True)
    with (out / "metrics.jsonl").open("w") as file:
        for step, values, _ in steps_of(symptoms, steps=steps):
            file.write(json.dumps({"step": step, **values, **extra}) + "\n")
    if eval_every is not None:
        with (out / "evaluations.jsonl").open("w") as file:
            for step in range(0, steps + 1, eval_every):
                file.write(score_of(symptoms, step).model_dump_json() + "\n")
    return out
