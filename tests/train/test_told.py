"""What `benchmarks/told.py` says of failed judgements, against shares worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from agentgym.trace import Trace
from agentgym.traces import TraceWriter
from agentgym.types import Verdict

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "told.py"


@pytest.fixture(scope="module")
def told():
    spec = importlib.util.spec_from_file_location("told", BENCHMARK)
    module = sys.modules["told"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["told"]


def steps(*group, n=500):
    return [np.array([group] * n)]


def test_without_failures_nothing_changes(told):
    for failed in ("masked", "zero"):
        found = told.told(steps(0.5, 1.0, 0.0, n=4), failing=0.0, failed=failed)
        assert (found.wrong_sign, found.false_groups) == (0.0, 0.0)
        assert found.cosine == pytest.approx(1.0)
        assert found.reward == pytest.approx(found.true_reward) == pytest.approx(0.5)


def test_a_pair_with_equal_rewards_gets_a_false_signal_where_one_of_them_is_scored_0(told):
    masked = told.told(steps(1.0, 1.0), failing=0.3, failed="masked")
    zero = told.told(steps(1.0, 1.0), failing=0.3, failed="zero")
    assert masked.false_groups == 0.0
    assert masked.reward == 1.0
    assert zero.false_groups == pytest.approx(2 * 0.3 * 0.7, abs=0.02)
    assert zero.reward == pytest.approx(0.7, abs=0.02)


def test_a_pair_is_pushed_the_wrong_way_where_the_better_one_alone_is_scored_0(told):
    masked = told.told(steps(0.5, 1.0), failing=0.3, failed="masked")
    zero = told.told(steps(0.5, 1.0), failing=0.3, failed="zero")
    assert masked.wrong_sign == 0.0
    assert zero.wrong_sign == pytest.approx(0.3 * 0.7, abs=0.02)
    # Of the pairs, one share keeps its advantages, one has none and one the opposite ones.
    assert masked.cosine == pytest.approx(np.sqrt(0.7**2), abs=0.02)
    kept, turned = 0.7, 0.3 * 0.7
    assert zero.cosine == pytest.approx((kept - turned) / np.sqrt(kept + turned), abs=0.02)


def test_a_run_with_failures_of_its_own_is_refused(told, tmp_path):
    def write(step, *rewards):
        with TraceWriter(tmp_path / f"traces-step{step:06d}.jsonl") as writer:
            for reward in rewards:
                verdict = Verdict(reward=reward, masked=reward is None)
                writer.write(Trace(trace_id="t", env_spec="{}", started_at="now", group="0.0",
                                   verdict=verdict, terminated=True))  # fmt: skip

    write(0, 0.25, 1.0)
    (groups,) = told.steps_of(tmp_path)
    assert groups.tolist() == [[0.25, 1.0]]
    write(1, 1.0, None)
    with pytest.raises(ValueError, match="t has no reward"):
        told.steps_of(tmp_path)
