"""Bills from traces: what is counted, once, and what is said of what nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.client import Prices
from agentgym.cost.actual import actual_of, priced_by
from agentgym.cost.against import against
from agentgym.cost.plan import plan_priced
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, RoleLoad, Workload
from agentgym.errors import DataError
from agentgym.price_book import PriceBook, PricedModel, PriceEntry
from agentgym.trace import EarlierAttempt, Trace
from agentgym.traces import TraceWriter
from agentgym.types import Turn, Usage, Verdict


def usage(prompt: int, output: int, usd: float | None, **more: Any) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=output, cost_usd=usd, **more)


def trace(task: str, used: dict[str, Usage], **more: Any) -> Trace:
    fields = {
        "trace_id": f"{task}-{len(more)}-{id(used)}",
        "env_spec": json.dumps({"id": "X-v0", "kwargs": {}}),
        "policy": {"model": "org/Actor"},
        "task_id": task,
        "terminated": True,
        "termination_reason": "finished",
        "verdict": Verdict(reward=1.0, correct=True, completed=True),
        "started_at": "2026-11-30T00:00:00Z",
        "usage": used,
    }
    return Trace(**{**fields, **more})


def write(path: Path, *traces: Trace) -> Path:
    with TraceWriter(path) as writer:
        for one in traces:
            writer.write(one)
    return path


def test_everything_that_was_paid_for_counts_once(tmp_path):
    """I03: failed and repeated calls; superseded lines; a verdict made again; cancelled."""
    failed = EarlierAttempt(
        failure_class="env", failed_stage="run", error="E", usage={"policy": usage(5, 1, 0.01)}
    )
    judged_again = trace(
        "c", {"policy": usage(30, 3, 0.3), "judge": usage(9, 1, 0.09)}, trace_id="same"
    )
    again = judged_again.model_copy(
        update={"usage": {"policy": usage(30, 3, 0.3), "judge": usage(9, 1, 0.09)}}
    )
    spent = {"judge": usage(7, 1, 0.07)}
    masked = Verdict(reward=None, masked=True, judge_failed=True, spent=spent)
    first_verdict = again.model_copy(update={"verdict": masked, "usage": {**again.usage, **spent}})
    write(
        tmp_path / "traces.jsonl",
        trace("a", {"policy": usage(10, 2, 0.1, retries=2, failed_calls=1)}),
        trace("b", {"policy": usage(99, 9, 0.9)}),  # superseded by the next
        trace("b", {"policy": usage(25, 3, 0.21)}, earlier=(failed,)),
        first_verdict,
        judged_again,
    )
    cancelled = {"policy": usage(3, 1, 0.04).model_dump(mode="json")}
    (tmp_path / "cancelled.jsonl").write_text(json.dumps(cancelled) + "\n{torn\n")
    actual = actual_of([tmp_path])
    assert (actual.episodes, actual.scored, actual.solved, actual.reruns) == (3, 3, 3, 4)
    policy, judge = actual.roles["policy"], actual.roles["judge"]
    assert policy.input_tokens == 10 + 99 + 25 + 30 + 3
    assert (policy.retries, policy.failed_calls) == (2, 1)
    assert policy.usd == pytest.approx(0.1 + 0.9 + 0.21 + 0.3 + 0.04)
    assert judge.usd == pytest.approx(0.07 + 0.09)
    assert policy.rerun_usd == pytest.approx(0.94)
    assert actual.usd == pytest.approx(1.71)
    assert actual.usd_per_episode == pytest.approx(0.57)
    assert actual.usd_per_solved_task == pytest.approx(0.57)


def test_an_unpriced_role_is_named_and_never_free(tmp_path):
    """I05: opik#7312; I01: the estimated share is told."""
    file = write(
        tmp_path / "traces.jsonl",
        trace("a", {"policy": usage(10, 0, 0.1), "judge": usage(30, 10, None)}),
        trace("b", {"policy": usage(30, 0, 0.3, estimated=True), "judge": usage(5, 5, 0.5)}),
    )
    actual = actual_of([file])
    assert actual.unpriced == ("judge",)
    assert (actual.usd, actual.usd_per_episode, actual.usd_per_solved_task) == (None, None, None)
    assert (actual.roles["judge"].unpriced_tokens, actual.roles["judge"].priced_usd) == (40, 0.5)
    assert actual.priced_usd == pytest.approx(0.9)
    assert actual.roles["policy"].estimated_share == 0.75


def test_tokens_are_priced_anew_by_the_model_that_the_trace_names(tmp_path):
    """I02: cached tokens are billed once, at their own price."""
    judge = {"role": "judge", "model": "org/Judge", "base_url": "http://h/v1"}
    spec = json.dumps({"id": "X-v0", "kwargs": {"judge": judge}})
    used = {
        "policy": usage(2006, 300, None, cached_tokens=1920, reasoning_tokens=200),
        "judge": usage(1000, 0, 9.0),
        "simulator": usage(1000, 0, 0.25),
    }
    file = write(tmp_path / "t.jsonl", trace("a", used, env_spec=spec))
    actual = actual_of([file], pricing=priced_by(book(), needed=False))
    assert actual.roles["policy"].usd == pytest.approx((86 * 2.5 + 1920 * 1.25 + 300 * 10) / 1e6)
    assert (actual.roles["policy"].model, actual.roles["judge"].model) == ("org/Actor", "org/Judge")
    assert actual.roles["judge"].usd == pytest.approx(0.004)
    assert actual.roles["simulator"].usd == 0.25  # whose model no trace names
    given = priced_by(book(), models={"simulator": "judge"}, needed=False)
    assert actual_of([file], pricing=given).roles["simulator"].usd == pytest.approx(0.004)


def book() -> PriceBook:
    def row(name: str, **prices: float) -> PricedModel:
        entry = PriceEntry(**prices, as_of="2026-11", source="test")
        return PricedModel(name=name, entry=entry, file="test")

    return PriceBook(
        row("Actor", input=2.5, cached=1.25, output=10), row("Judge", input=4, output=8)
    )


def test_a_training_run_is_told_per_step(tmp_path):
    write(tmp_path / "traces-step000000.jsonl", trace("a", {"policy": usage(10, 2, 0.25)}))
    write(tmp_path / "traces-step000001.jsonl", trace("a", {"policy": usage(10, 2, 0.5)}))
    write(tmp_path / "traces-step000001.unused1.jsonl", trace("a", {"policy": usage(1, 2, 0.25)}))
    write(tmp_path / "traces-held-out000000.jsonl", trace("z", {"policy": usage(10, 2, 9.0)}))
    actual = actual_of([tmp_path])
    assert (actual.training_steps, actual.episodes, actual.reruns) == (2, 3, 1)
    assert actual.by_kind == {"training": 2, "evaluation": 1}
    assert actual.usd_per_step == pytest.approx(0.5)  # what was thrown away included
    assert actual.usd == pytest.approx(10.0)


def test_every_column_of_an_evaluation_is_in_its_bill(tmp_path):
    (tmp_path / "traces").mkdir()
    for column in ("base-1a2b", "trained-1a2b"):
        write(tmp_path / "traces" / f"{column}.jsonl", trace("a", {"policy": usage(1, 1, 0.25)}))
    (tmp_path / "notes.jsonl").write_text('{"not": "a trace"}\n')
    actual = actual_of([tmp_path])
    assert (actual.by_kind, actual.usd) == ({"evaluation": 2}, 0.5)
    assert actual.usd_per_solved_task == 0.5  # one task, whoever solved it


def test_a_file_that_is_named_twice_is_paid_once(tmp_path):
    file = write(tmp_path / "traces.jsonl", trace("a", {"policy": usage(1, 1, 0.25)}))
    (tmp_path / "link.jsonl").symlink_to(file)
    actual = actual_of([tmp_path, file, tmp_path / "link.jsonl"])
    assert (actual.episodes, actual.usd) == (1, 0.25)


def test_tasks_of_two_envs_are_two_whatever_their_names(tmp_path):
    for name in ("X-v0", "Y-v0"):
        (tmp_path / name).mkdir()
        spec = json.dumps({"id": name, "kwargs": {}})
        used = {"policy": usage(1, 1, 0.25)}
        write(tmp_path / name / "traces.jsonl", trace("1", used, env_spec=spec))
    assert actual_of([tmp_path]).tasks_solved == 2


def test_lines_of_cancelled_episodes_that_are_no_bills_are_left_out(tmp_path, caplog):
    write(tmp_path / "traces.jsonl", trace("a", {"policy": usage(1, 1, 0.25)}))
    good = json.dumps({"policy": usage(1, 1, 0.5).model_dump(mode="json")}).encode()
    bad = b'\xff\xfe\n[1]\n5\nnull\n{"policy": 3}\n'
    (tmp_path / "cancelled.jsonl").write_bytes(bad + good + b"\n")
    assert actual_of([tmp_path]).usd == 0.75
    assert len(caplog.records) == 5


def test_a_folder_without_traces_is_no_bill_of_zero(tmp_path):
    with pytest.raises(DataError, match="has no traces to add up"):
        actual_of([tmp_path])
    with pytest.raises(DataError, match="there is no"):
        actual_of([tmp_path / "nowhere"])
    (tmp_path / "traces.jsonl").write_text("")
    with pytest.raises(DataError, match="has no traces to add up"):
        actual_of([tmp_path])


def test_a_plan_is_held_against_the_bill_per_episode(tmp_path):
    """Two turns of 100 + 10·t in, 10 out, at $1 and $2: 230 in, 20 out per episode."""
    file = write(
        tmp_path / "t.jsonl",
        *(trace(t, {"policy": usage(460, 40, 540e-6), "judge": usage(9, 1, None)}) for t in "ab"),
    )
    workload = Workload(
        groups=100,
        group_size=1,
        steps=1,
        turns=2,
        tokens=EpisodeTokens(setup=100, output=10, reply=20),
        policy=PolicyLoad(prices=Prices(input=1, output=2)),
        roles={"simulator": RoleLoad(prices=Prices(input=1, output=1), calls_per_reply=1)},
    )
    held = against(plan_priced(workload), actual_of([file]))
    policy = held.roles[0]
    assert (policy.planned_input, policy.planned_output) == (230, 20)
    assert policy.usd_ratio == pytest.approx(2.0)
    assert policy.tokens_ratio == pytest.approx(2.0)
    assert held.left_out == ("judge",)
    assert held.usd_ratio == pytest.approx(2.0)
    assert (held.planned_episodes, held.actual_episodes) == (100, 2)


def test_turns_are_kept_for_the_fit(tmp_path):
    turn = Turn(index=0, message={"role": "assistant"}, usage=usage(5, 1, 0.1))
    file = write(tmp_path / "t.jsonl", trace("a", {"policy": usage(5, 1, 0.1)}, turns=(turn,)))
    assert actual_of([file]).roles["policy"].calls == 1
