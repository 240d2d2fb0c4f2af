"""The figures of a run, against numbers worked by hand."""

from __future__ import annotations

import json
import math
import re

import pytest

from agentgym.cli._table import summary_table
from agentgym.rollout import summarize
from agentgym.rollout.summary import clustered_stderr
from agentgym.simulator import FAULTS
from agentgym.trace import Trace
from agentgym.types import ToolCall, Turn, Usage, Verdict


def trace(number: int, reward: float | None, *, task: str | None = "t", **fields) -> Trace:
    masked = reward is None
    verdict = {
        "reward": reward,
        "masked": masked,
        "failure_class": "infra" if masked else None,
        "correct": None if masked else reward == 1.0,
        "completed": not masked,
        **fields.pop("verdict", {}),
    }
    return Trace(
        trace_id=f"x{number}",
        env_spec="{}",
        task_id=task,
        failure_class=verdict["failure_class"] if masked else None,
        verdict=Verdict(**verdict),
        started_at="2026-01-01T00:00:00+00:00",
        **fields,
    )


def test_stderr_of_single_values_is_the_ordinary_one():
    # deviations -1, 0, 1: sum of squares 2; sqrt(2 * 3/2) / 3
    assert clustered_stderr([0, 1, 2], "abc") == pytest.approx(math.sqrt(3) / 3)


def test_stderr_counts_clusters_rather_than_values():
    # mean 0.5; cluster sums of deviations +1 and -1: sqrt((1 + 1) * 2/1) / 4
    assert clustered_stderr([1, 1, 0, 0], "aabb") == pytest.approx(0.5)
    assert clustered_stderr([1, 0, 1, 0], "aabb") == pytest.approx(0.0)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 0.0]])
def test_stderr_needs_two_clusters(values):
    assert clustered_stderr(values, "a" * len(values)) is None


def test_masked_episodes_are_no_zeros():
    found = summarize([trace(0, 1.0, task="a"), trace(1, 0.5, task="b"), trace(2, None)])
    assert (found.n_total, found.n_scored, found.n_failed, found.n_tasks) == (3, 2, 1, 2)
    assert found.reward.mean == 0.75
    assert (found.success.of_scored, found.success.of_total) == (0.5, pytest.approx(1 / 3))
    assert found.failures == {"infra": 1}


def test_rates_turns_and_tokens():
    bad = ToolCall(id="c", name="f", arguments=None, status="malformed")
    good = ToolCall(id="d", name="f", arguments={})
    message = {"role": "assistant", "content": ""}
    turns = (
        Turn(index=0, message=message, calls=(bad, good)),
        Turn(index=1, message=message, cut_off=True),
    )
    usage = {"policy": Usage(prompt_tokens=5, completion_tokens=2)}
    found = summarize(
        [
            trace(0, 0.0, turns=turns, usage=usage, truncated=True, truncation_reason="turns"),
            trace(1, 1.0, task="u", usage=usage, verdict={"gates": {"g": True}}),
            trace(2, None, usage=usage, truncated=True, truncation_reason="fault"),
        ]
    )
    assert (found.truncation.count, found.truncation_reasons) == (1, {"turns": 1})
    assert (found.malformed.count, found.malformed_calls, found.calls) == (1, 1, 2)
    assert (found.cut_off.count, found.turns.mean) == (1, 1.0)
    assert found.gates["g"].count == 1
    assert found.usage["policy"] == Usage(prompt_tokens=15, completion_tokens=6, calls=3)


def test_components_average_over_the_episodes_that_have_them():
    found = summarize(
        [
            trace(0, 0.0, verdict={"components": {"a": 1.0, "b": 0.5}}),
            trace(1, 1.0, task="u", verdict={"components": {"a": 0.0}}),
        ]
    )
    assert (found.components["a"].mean, found.components["a"].n) == (0.5, 2)
    assert (found.components["b"].mean, found.components["b"].n) == (0.5, 1)
    assert found.components["b"].stderr is None


def test_refused_replies_of_simulators_are_counted_over_all_episodes():
    refused = [{FAULTS: ["no JSON"]}, {FAULTS: ["twice", "twice"]}, {"changes": {}}]
    rewards = (1.0, None, 0.0)
    found = summarize(trace(n, r, outcome=refused[n]) for n, r in enumerate(rewards))
    assert found.simulator_faults == 3
    assert re.search(r"^simulator +3 replies refused$", summary_table(found), re.MULTILINE)
    assert "refused" not in summary_table(summarize([trace(0, 1.0)]))


def test_nothing_scored_has_no_mean():
    found = summarize([trace(0, None)])
    assert (found.reward.mean, found.success.of_scored, found.success.of_total) == (None, None, 0.0)
    assert summarize([]).n_total == 0


def test_summary_is_strict_json_with_both_denominators():
    values = json.loads(
        summarize([trace(0, 1.0), trace(1, None)]).model_dump_json(),
        parse_constant=pytest.fail,
    )
    assert values["success"] == {
        "count": 1,
        "n_scored": 1,
        "n_total": 2,
        "of_scored": 1.0,
        "of_total": 0.5,
    }
