"""docs/reference_results.md says what the result files say, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agentgym.evaluate.result import read_result

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks" / "results" / "reference").glob("*.json"))


def script() -> ModuleType:
    path = ROOT / "benchmarks" / "reference_results.py"
    spec = importlib.util.spec_from_file_location("reference_results", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_files_give() -> None:
    written = (ROOT / "docs" / "reference_results.md").read_text(encoding="utf-8")
    assert written == script().page(), "run python benchmarks/reference_results.py --page"


def test_the_page_shows_every_file() -> None:
    page = (ROOT / "docs" / "reference_results.md").read_text(encoding="utf-8")
    assert len(FILES) >= 3
    assert [str(f.relative_to(ROOT)) for f in FILES if str(f.relative_to(ROOT)) not in page] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_whole_and_small(path: Path) -> None:
    result = read_result(path)
    assert {len(column.attempts) for column in result.columns} == {result.n_planned}
    assert result.split == "validation"
    assert path.stat().st_size < 200_000


def test_who_knows_the_answer_solves_everything() -> None:
    for entry in script().ENTRIES:
        result = read_result(ROOT / f"benchmarks/results/reference/{entry.name}.json")
        best = result.column(entry.policies[-1])
        assert {attempt.correct for attempt in best.attempts} == {True}
        assert {attempt.correct for attempt in result.column("random").attempts} != {True}
