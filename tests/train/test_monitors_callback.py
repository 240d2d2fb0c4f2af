"""The callback, on a trainer that only logs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic_runs import HEALTHY, SICK, Symptoms, ramp, score_of, steps_of

from agentgym.errors import ConfigError, TrainingError
from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch
from agentgym.train.monitors import diagnose
from agentgym.train.rows import TrainingRow

callback = pytest.importorskip(
    "agentgym.train.monitors.callback", reason="needs the training stack"
)


class Run:
    """A trainer that goes through a synthetic run, as TRL calls its callbacks."""

    def __init__(self, out: Path | None, **options: Any) -> None:
        self.lines: list[str] = []
        self.out = out
        self.generation = SimpleNamespace(sync_weights=lambda: None)
        self.trainer = SimpleNamespace(
            accelerator=SimpleNamespace(num_processes=1),
            rollout_func=SimpleNamespace(listeners=[]),
            vllm_generation=self.generation,
            _metrics={"train": defaultdict(list)},
        )
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.control = SimpleNamespace(should_save=False, should_training_stop=False)
        self.monitor = callback.RunMonitor(self.trainer, out=out, tell=self.lines.append, **options)

    def go(self, symptoms: Symptoms, *, steps: int, begin: int = 0) -> None:
        """Train from one step to another, or until the monitor stops it."""
        around = (None, self.state, self.control)
        self.state.global_step = begin
        self.monitor.on_train_begin(*around)
        for step, values, traces in steps_of(symptoms, steps=steps):
            if step <= begin:
                continue
            self.monitor.on_step_begin(*around)
            self.generation.sync_weights()
            self.play(step - 1, traces)
            self.state.global_step = step
            self.monitor.on_step_end(*around)
            logged = {**values, **self.flushed()}
            if self.out is not None:
                with (self.out / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"step": step, **logged}) + "\n")
            self.monitor.on_log(*around, logs=logged)
            if self.control.should_training_stop:
                return

    def play(self, step: int, traces: list[Trace], seconds: float = 0.0) -> None:
        rows = [TrainingRow([1], [2], [1], [-1.0])] * len(traces)
        rewards = [trace.reward for trace in traces]
        batch = PlayedBatch(step, True, traces, rows, rewards, seconds=seconds)
        for listener in self.trainer.rollout_func.listeners:
            listener(batch)

    def flushed(self) -> dict[str, float]:
        """What TRL would log of the values added to its own."""
        metrics = self.trainer._metrics["train"]
        found = {name: sum(values) / len(values) for name, values in metrics.items()}
        metrics.clear()
        return found


def test_alarm_is_told_and_kept_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(SICK["token_limit"], steps=8)
    (line,) = (tmp_path / "alarms.jsonl").read_text().splitlines()
    assert json.loads(line)["name"] == "token_limit"
    assert json.loads(line)["step"] == 5
    (told,) = run.lines
    assert told.startswith("alarm at step 5: token_limit: ")
    assert not run.control.should_training_stop


def test_healthy_run_is_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, stop_on=["token_limit", "no_signal"])
    run.go(HEALTHY, steps=12)
    assert (run.lines, run.monitor.alarms) == ([], [])
    assert not (tmp_path / "alarms.jsonl").exists()
    run.monitor.raise_if_stopped()


@pytest.mark.parametrize("stop_on", ["gate", "gate:polite"])
def test_chosen_alarm_stops_the_run_with_a_checkpoint(tmp_path: Path, stop_on: str) -> None:
    run = Run(tmp_path, stop_on=[stop_on])
    run.go(SICK["gate:polite"], steps=20)
    assert run.state.global_step == 5
    assert run.control.should_save
    with pytest.raises(TrainingError, match="stopped at step 5 by the alarm gate:polite"):
        run.monitor.raise_if_stopped()


def test_resumed_run_knows_its_past(tmp_path: Path) -> None:
    Run(tmp_path).go(SICK["token_limit"], steps=6)
    resumed = Run(tmp_path, stop_on=["token_limit"])
    resumed.go(SICK["token_limit"], steps=9, begin=6)
    assert [alarm.step for alarm in resumed.monitor.alarms] == [5]
    assert [step.step for step in resumed.monitor.history.steps] == list(range(1, 10))
    assert not resumed.control.should_training_stop  # it was raised, and the user went on


def test_alarms_of_an_attempt_that_counts_no_more_are_raised_again(tmp_path: Path) -> None:
    Run(tmp_path).go(SICK["token_limit"], steps=6)
    fresh = Run(tmp_path)
    fresh.go(SICK["token_limit"], steps=6)
    assert [line.split(":")[0] for line in fresh.lines] == ["alarm at step 5"]


def test_alarms_of_an_attempt_that_counts_no_more_leave_the_file(tmp_path: Path) -> None:
    Run(tmp_path).go(SICK["token_limit"], steps=6)
    Run(tmp_path).go(HEALTHY, steps=6)
    assert diagnose(tmp_path).alarms == ()
    Run(tmp_path).go(SICK["gate:polite"], steps=8, begin=6)
    assert (tmp_path / "alarms.jsonl").read_text() == ""


def test_held_out_gap_is_seen_while_it_runs() -> None:
    run = Run(None)
    sick = replace(SICK["held_out_gap"], bonus=ramp(0.0, 1.0, 25))
    run.monitor.take_score(score_of(sick, 0))
    run.go(sick, steps=30)
    assert run.lines == []
    run.monitor.take_score(score_of(sick, 30))
    run.go(sick, steps=31, begin=30)
    assert run.lines[0].startswith("alarm at step 31: held_out_gap")


def test_other_trainers_are_watched_by_what_they_log() -> None:
    lines: list[str] = []
    around = (None, SimpleNamespace(global_step=0, is_world_process_zero=True),
              SimpleNamespace(should_save=False, should_training_stop=False))  # fmt: skip
    monitor = callback.RunMonitor(
        SimpleNamespace(accelerator=SimpleNamespace(num_processes=1)), tell=lines.append
    )
    monitor.on_train_begin(*around)
    for step in range(1, 12):
        monitor.on_step_begin(*around)
        around[1].global_step = step
        monitor.on_step_end(*around)
        logged = {"reward": 0.0, "completions/clipped_ratio": 1.0, "frac_reward_zero_std": 1.0}
        monitor.on_log(*around, logs=logged)
    assert [line.split(": ")[1] for line in lines] == ["token_limit", "no_signal"]


def test_step_time_is_split_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[float] = iter([0.0, 1.0, 1.5, 10.0])  # step, sync, its end, step's end
    monkeypatch.setattr(callback.time, "perf_counter", lambda: next(ticks))
    run = Run(None)
    around = (None, run.state, run.control)
    run.monitor.on_train_begin(*around)
    run.monitor.on_step_begin(*around)
    run.generation.sync_weights()
    (_, _, traces) = next(steps_of(HEALTHY, steps=1))
    stages = {"init": 0.0, "run": 3.0, "eval": 1.0}
    run.play(0, [trace.model_copy(update={"stage_s": stages}) for trace in traces], seconds=6.0)
    run.monitor.on_step_end(*around)
    times = {k.rpartition("/")[2]: v for k, v in run.flushed().items() if "time_s" in k}
    assert times == {"step": 10.0, "sync": 0.5, "judge": 1.5, "rollout": 4.5, "update": 3.5}


def test_prediction_by_task_is_logged_once_tasks_come_again() -> None:
    run = Run(None)
    few = Symptoms(tasks=32)
    for step, (_, _, traces) in enumerate(steps_of(few, steps=3)):
        run.play(step, traces)
    found = run.trainer._metrics["train"]["agentgym/groups_equal_expected_by_task"]
    assert len(found) == 1  # the third step is the first to meet tasks again
    assert 0 < found[0] < 1


def test_other_logs_are_no_steps() -> None:
    run = Run(None)
    run.monitor.on_log(None, run.state, run.control, logs={"train_runtime": 3.0})
    run.monitor.on_log(None, run.state, run.control, logs=None)
    assert run.monitor.history.steps == []


def test_trackers_are_checked_before_anything_is_loaded() -> None:
    from agentgym.train.trackers import check_trackers

    check_trackers([])
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord'; did you mean 'tensorb"):
        check_trackers(["tensorbord"])


def test_tracker_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from agentgym.train import trackers

    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package trackio: pip install trackio"):
        trackers.check_trackers(["trackio"])


def test_note_stands_on_a_line_of_its_own() -> None:
    import io

    from agentgym.train.progress import RunLine

    stream = io.StringIO()
    RunLine(stream=stream).note("alarm at step 3: x")
    RunLine(stream=stream, show=False).note("not shown")
    assert stream.getvalue() == "alarm at step 3: x\n"
