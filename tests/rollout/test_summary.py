"""The figures of a run, against numbers worked by hand."""

from __future__ import annotations

import json
import re
import tracemalloc

import pytest

from agentgym.cli._table import summary_table
from agentgym.rollout import summarize
from agentgym.rollout.summary import summarize_file
from agentgym.simulator import FAULTS
from agentgym.trace import EarlierAttempt, Trace
from agentgym.traces import TraceWriter
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


# --- attempts that count no more --------------------------------------------------------------

PAID = {"policy": Usage(prompt_tokens=10, cost_usd=1.0)}


def written(path, *traces):
    with TraceWriter(path) as writer:
        for one in traces:
            writer.write(one)
    return path


def test_attempt_that_was_repeated_counts_for_its_cost_only(tmp_path):
    first = trace(0, None, usage=PAID).model_copy(update={"trace_id": "first"})
    found = summarize_file(written(tmp_path / "t.jsonl", first, trace(0, 1.0, usage=PAID)))
    assert (found.n_total, found.n_scored, found.n_failed, found.reruns) == (1, 1, 0, 1)
    assert found.usage["policy"].prompt_tokens == 20
    assert found.rerun_usage == PAID
    assert found.cost_usd == 2.0
    assert re.search(r"^repeated +1 attempts .*10 tokens, \$1", summary_table(found), re.MULTILINE)


def test_conversation_that_was_judged_again_is_paid_once(tmp_path):
    judging = {"judge": Usage(prompt_tokens=5, cost_usd=0.25)}
    failed = trace(0, None, usage=PAID | judging, verdict={"spent": judging})
    found = summarize_file(
        written(tmp_path / "t.jsonl", failed, trace(0, 1.0, usage=PAID | judging))
    )
    assert found.usage["policy"] == PAID["policy"]
    assert found.usage["judge"].prompt_tokens == 10
    assert found.rerun_usage == judging


def test_earlier_attempts_of_a_run_are_told_of_and_counted_once():
    earlier = EarlierAttempt(failure_class="env", failed_stage="run", error="broke", usage=PAID)
    twice = {"policy": PAID["policy"] + PAID["policy"]}
    found = summarize([trace(0, 1.0, usage=twice, earlier=(earlier,))])
    assert (found.n_total, found.reruns) == (1, 1)
    assert found.usage == twice
    assert found.rerun_usage == PAID


def test_summary_of_a_file_keeps_no_trace(tmp_path):
    text = "x" * 50_000
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        for number in range(200):
            one = trace(number, 1.0).model_copy(update={"trace_id": f"x{number}"})
            message = {"role": "user", "content": text}
            task = {"task_id": f"t{number}", "messages": (message,)}
            writer.write(one.model_copy(update=task))
    tracemalloc.start()
    found = summarize_file(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.n_total == 200
    assert most < 40 * len(text)  # of 200 such texts


def test_stage_times_leave_out_nobody():
    traces = [trace(k, None if k else 1.0, stage_s={"run": float(k + 1)}) for k in range(20)]
    found = summarize(traces)
    assert (found.stage_s["run"].mean_s, found.stage_s["run"].p95_s, found.stage_s["run"].n) == (
        *(10.5, 20.0, 20),
    )
    assert re.search(r"^stages +run 10\.5 s", summary_table(found), re.MULTILINE)


# --- figures beside failures ------------------------------------------------------------------


def test_where_many_failed_no_share_stands_alone():
    """H07: 80 right of 100, 10 without a score."""
    traces = [trace(k, 1.0 if k < 80 else 0.0 if k < 90 else None) for k in range(100)]
    found = summarize(traces)
    assert (found.success.of_total, round(found.success.of_scored, 3)) == (0.8, 0.889)
    assert (found.n_total, found.n_scored, found.n_failed) == (100, 90, 10)
    table = summary_table(found)
    assert re.search(r"^success +80\.0% of all 100, 88\.9% of the 90 scored", table, re.MULTILINE)
    assert re.search(
        r"^reward +0\.8889.* over 90 of 100 only: 10 have no score", table, re.MULTILINE
    )


def test_where_few_failed_both_shares_are_there_all_the_same():
    traces = [trace(k, 1.0 if k < 99 else None) for k in range(100)]
    table = summary_table(summarize(traces))
    assert re.search(r"^success +100\.0% \(99/99; 99\.0% of all 100\)", table, re.MULTILINE)
    assert re.search(r"^reward +1\.0000( ±.*)?$", table, re.MULTILINE)


def test_commonest_reasons_of_failures_are_told():
    traces = [
        trace(k, None, error=f"Traceback\nBoom: {'often' if k else 'once'}") for k in range(4)
    ]
    found = summarize(traces)
    assert found.failure_reasons == {"Boom: often": 3, "Boom: once": 1}
    assert re.search(r"^masked by +3 × Boom: often$", summary_table(found), re.MULTILINE)
