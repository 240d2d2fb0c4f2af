"""What `benchmarks/token_path.py` counts: it must see a wrong token, and what a cache could do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("token_path", BENCHMARKS / "token_path.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["token_path"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop("token_path", None)
        sys.path.remove(str(BENCHMARKS))


def batch(**rows):
    torch = pytest.importorskip("torch")
    return {name: torch.tensor(row) for name, row in rows.items()}


def test_trained_stretches_stand_behind_all_that_precedes_them(benchmark):
    turns = benchmark.trained_turns(
        batch(
            prompt_ids=[[0, 0, 7, 8]],  # padded on the left
            prompt_mask=[[0, 0, 1, 1]],
            completion_ids=[[1, 2, 9, 9, 3, 0]],
            completion_mask=[[1, 1, 1, 1, 1, 0]],
            tool_mask=[[1, 1, 0, 0, 1, 0]],
        )
    )
    assert turns == {((7, 8), (1, 2)): 1, ((7, 8, 1, 2, 9, 9), (3,)): 1}


def test_row_without_a_mask_trains_nothing(benchmark):
    turns = benchmark.trained_turns(
        batch(
            prompt_ids=[[7]],
            prompt_mask=[[1]],
            completion_ids=[[1, 2]],
            completion_mask=[[1, 1]],
            tool_mask=[[0, 0]],
        )
    )
    assert not turns


def test_match_sees_one_wrong_id_and_one_trained_id_too_many(benchmark):
    step = benchmark.Step()
    step.sampled.update([((7,), (1, 2)), ((7,), (1, 2)), ((8,), (3,))])
    step.trained.update([((7,), (1, 2)), ((7,), (1, 4)), ((8,), (3,))])
    logged = {f"{benchmark.GAP}/{part}": 0.0 for part in ("mean", "max")}
    step.prompt_tokens = 3
    found = benchmark.figures(step, {**logged, "reward": 0.0, "agentgym/masked": 0.0})
    assert (found["sampled_tokens"], found["matched_tokens"]) == (5, 3)
    assert found["trained_unsampled_tokens"] == 2


def test_unlimited_cache_knows_whole_blocks_of_what_began_alike(benchmark):
    cache = benchmark.BlockCache(2)
    assert cache.hit((1, 2, 3, 4)) == 0
    cache.add((1, 2, 3, 4, 5))
    assert cache.hit((1, 2, 3, 4)) == 2  # the last token has to be computed in any case
    assert cache.hit((1, 2, 3, 4, 6)) == 4
    assert cache.hit((9, 2, 3, 4, 6)) == 0  # a block is known by all that precedes it
    assert cache.hit((3, 4, 5)) == 0
    cache.clear()
    assert cache.hit((1, 2, 3)) == 0
