from __future__ import annotations

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch
from agentgym.train.metrics import batch_metrics
from agentgym.train.rows import TrainingRow
from agentgym.types import Turn, Usage, Verdict

ROW = TrainingRow([1], [2], [1], [-1.0])


def trace(group: str, verdict: Verdict, **fields: Any) -> Trace:
    ends = {"terminated": True} if not fields.get("truncated") else {}
    return Trace(trace_id="t", env_spec="{}", started_at="now", group=group, verdict=verdict,
                 **ends, **fields)  # fmt: skip


def turn(prompt: int, cached: int, sampled: int) -> Turn:
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=sampled)
    return Turn(index=0, message={"role": "assistant", "content": ""}, usage=usage)


def test_figures_by_hand() -> None:
    good = Verdict(reward=1.0, components={"solved": 1.0}, gates={"cap": False}, completed=True,
                   correct=True)  # fmt: skip
    bad = Verdict(reward=0.0, components={"solved": 0.0}, gates={"cap": True}, correct=False)
    unscored = Verdict(reward=None, masked=True, failure_class="judge", judge_failed=True)
    traces = [
        trace("a", good, turns=(turn(10, 0, 4), turn(20, 10, 6))),
        trace("a", bad, turns=(turn(10, 0, 10),), truncated=True, truncation_reason="turns"),
        trace("b", good),
        trace("b", unscored),
    ]
    metrics = batch_metrics(
        PlayedBatch(0, True, traces, [ROW] * 4, [1.0, 0.0, 1.0, None], seconds=2.0)
    )
    assert metrics["masked"] == 0.25
    assert metrics["masked/judge"] == 0.25
    assert metrics["masked/env"] == 0.0
    assert metrics["correct"] == metrics["completed"] == pytest.approx(2 / 3)
    assert metrics["components/solved"] == pytest.approx(2 / 3)
    assert metrics["gates/cap"] == metrics["truncated/turns"] == pytest.approx(1 / 3)
    assert metrics["groups_without_signal"] == 0.5  # b has one scored episode, no baseline
    assert metrics["tokens"] == 5.0
    assert metrics["tokens_per_s"] == 10.0
    assert metrics["prefix_cache_share"] == 0.25


def test_groups_by_hand() -> None:
    def one(group: str, said: str, right: bool, reward: float) -> tuple[Trace, float]:
        message = {"role": "assistant", "content": said}
        verdict = Verdict(reward=reward, correct=right, completed=True)
        return trace(group, verdict, turns=(Turn(index=0, message=message),)), reward

    pairs = [
        one("same", "x", False, 0.0), one("same", "x", False, 0.0),
        one("lost", "x", False, 0.0), one("lost", "y", False, 0.0),
        one("won", "x", True, 1.0), one("won", "x", True, 1.0),
        one("split", "x", True, 1.0), one("split", "y", False, 0.0),
    ]  # fmt: skip
    traces, rewards = zip(*pairs, strict=True)
    metrics = batch_metrics(PlayedBatch(0, True, traces, [ROW] * 8, rewards, seconds=1.0))
    assert (metrics["groups"], metrics["group_size"]) == (4, 2)
    assert metrics["groups_equal"] == metrics["groups_without_signal"] == 0.75
    assert (metrics["groups_all_failed"], metrics["groups_all_solved"]) == (0.5, 0.25)
    assert metrics["groups_identical"] == 0.25  # of those that won all alike, nothing is missing
    p = 3 / 8
    assert metrics["groups_equal_expected"] == pytest.approx(p**2 + (1 - p) ** 2)
    assert (metrics["reward/min"], metrics["reward/max"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("versions", "lag", "mixed"),
    [
        (("9", "9"), 0.0, 0.0),
        (("7", "8->9"), 1.5, 1.0),
        (("r-3-step8", "r-3-step8"), 1.0, 0.0),
        (("main", None), None, None),
    ],
)
def test_age_of_the_weights_by_hand(
    versions: tuple[str | None, str | None], lag: float | None, mixed: float | None
) -> None:
    turns = tuple(
        Turn(index=i, message={"role": "assistant", "content": ""}, weight_version=version)
        for i, version in enumerate(versions)
    )
    traces = [trace("a", Verdict(reward=1.0, correct=True), turns=turns)]
    metrics = batch_metrics(PlayedBatch(9, True, traces, [ROW], [1.0], seconds=1.0))
    assert (metrics.get("weights/lag"), metrics.get("weights/mixed")) == (lag, mixed)


def test_limits_and_costs_by_hand() -> None:
    def capped(completed: bool) -> Trace:
        return trace(
            "a", Verdict(reward=0.0, correct=completed, completed=completed), truncated=True,
            truncation_reason="turns", stage_s={"run": 3.0, "eval": 1.0},
            usage={"judge": Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.25),
                   "policy": Usage(prompt_tokens=7, completion_tokens=3)},
        )  # fmt: skip

    traces = [capped(False), capped(True)]
    metrics = batch_metrics(PlayedBatch(0, True, traces, [ROW] * 2, [0.0, 0.0], seconds=1.0))
    assert metrics["truncated/turns"] == 1.0
    assert metrics["turn_cap_unanswered"] == 0.5
    assert metrics["correct_if_completed"] == 1.0
    assert (metrics["stage_s/run"], metrics["stage_s/eval"]) == (3.0, 1.0)
    assert (metrics["usage/judge/tokens_in"], metrics["usage/judge/usd"]) == (20.0, 0.5)
    assert metrics["usage/policy/tokens_out"] == 6.0
    assert "usage/policy/usd" not in metrics  # an unknown price is no zero


def test_episodes_without_a_group_are_none() -> None:
    def alone(reward: float) -> Trace:
        verdict = Verdict(reward=reward, correct=bool(reward))
        return trace("a", verdict).model_copy(update={"group": None})

    traces = [alone(0.0), alone(1.0)]
    metrics = batch_metrics(PlayedBatch(0, True, traces, [ROW] * 2, [0.0, 1.0], seconds=1.0))
    assert metrics["correct"] == 0.5
    assert not [name for name in metrics if name.startswith("group")]


def test_no_value_of_an_episode_is_too_large_to_count() -> None:
    huge = trace(
        "a", Verdict(reward=1e308, components={"x": 1.7e308}, correct=True),
        stage_s={"run": 1.7e308}, turns=(
            turn(10**400, 0, 10**400).model_copy(update={"weight_version": "step" + "9" * 5000}),
        ), usage={"judge": Usage(prompt_tokens=10**400, cost_usd=1.7e308)},
    )  # fmt: skip
    metrics = batch_metrics(PlayedBatch(0, True, [huge] * 4, [ROW] * 4, [1e308] * 4, seconds=1.0))
    assert metrics["components/x"] == metrics["tokens"] == metrics["usage/judge/usd"] == math.inf
    assert metrics["correct"] == 1.0


def test_batch_without_a_scored_episode_has_no_means() -> None:
    unscored = Verdict(reward=None, masked=True, failure_class="env")
    metrics = batch_metrics(
        PlayedBatch(0, True, [trace("a", unscored)] * 2, [ROW] * 2, [None, None], seconds=0.0)
    )
    assert metrics["masked"] == 1.0
    assert metrics["groups_without_signal"] == 1.0
    assert "correct" not in metrics


def test_report_keeps_every_metric_and_shows_a_few(tmp_path: Path) -> None:
    from agentgym.train.progress import RunLine, RunReport

    stream = io.StringIO()
    report = RunReport(tmp_path / "metrics.jsonl", RunLine(stream=stream))
    state = SimpleNamespace(global_step=0, max_steps=4, is_world_process_zero=True)
    report.on_train_begin(None, state, None)
    state.global_step = 1
    report.on_log(None, state, None, logs={"reward": 0.5, "kl": float("nan")})
    report.on_log(None, state, None, logs={"train_runtime": 3.0})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, "reward": 0.5, "kl": None}
    assert stream.getvalue().startswith("step 1/4  reward 0.5")


def test_report_of_a_trainer_of_ones_own_makes_its_folder(tmp_path: Path) -> None:
    from agentgym.train.monitors import diagnose
    from agentgym.train.progress import RunReport

    report = RunReport(tmp_path / "mine" / "metrics.jsonl")
    state = SimpleNamespace(global_step=0, max_steps=1, is_world_process_zero=True)
    report.on_train_begin(None, state, None)
    state.global_step = 1
    report.on_log(None, state, None, logs={"reward": 0.5})
    assert diagnose(tmp_path / "mine").steps == 1
