from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import agentgym
from agentgym.errors import BudgetStop
from agentgym.train import grpo
from agentgym.train.config import TrainConfig
from agentgym.train.files import CONFIG_FILE, STARTS_FILE
from agentgym.train.starts import note_budget_end, note_start, read_budget_end, read_starts


def test_a_resumed_run_tells_from_where_and_what_was_changed(tmp_path: Path) -> None:
    settings = {"env": "agentgym/X-v0", "steps": 8, "temperature": 1.0}
    note_start(tmp_path, settings, checkpoint=None, processes=1)
    (tmp_path / "train.json").write_text(json.dumps(settings))
    longer = {**settings, "steps": 20}
    note_start(tmp_path, longer, checkpoint=tmp_path / "checkpoint-8", processes=2)
    first, second = read_starts(tmp_path)
    assert (first.step, first.processes, first.changed) == (0, 1, {})
    assert (second.step, second.processes) == (8, 2)
    assert second.changed == {"steps": (8, 20)}
    assert first.versions["agentgym"] == agentgym.__version__
    assert first.started_at.endswith("+00:00")


def test_fit_notes_each_start_before_it_replaces_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "watch", lambda *args, **how: SimpleNamespace(raise_if_stopped=int))
    monkeypatch.setattr(grpo, "stoppable", nullcontext)
    monkeypatch.setattr(grpo, "within_budget", lambda *args, **how: nullcontext(), raising=False)
    trainer = SimpleNamespace(
        rollout_func=None,
        accelerator=SimpleNamespace(is_main_process=True, num_processes=1),
        train=lambda **how: None,
        save_model=lambda path: None,
        state=SimpleNamespace(global_step=9, log_history=[]),
    )
    config = TrainConfig(env="agentgym/X-v0", model="m", out=tmp_path, steps=4)
    grpo.fit(trainer, config)
    longer = config.model_copy(update={"steps": 9})
    grpo.fit(trainer, longer, checkpoint=tmp_path / "checkpoint-4")
    assert [(start.step, start.changed) for start in read_starts(tmp_path)] == [
        (0, {}),
        (4, {"steps": (4, 9)}),
    ]


def test_fit_notes_that_the_budget_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "watch", lambda *args, **how: SimpleNamespace(raise_if_stopped=int))
    monkeypatch.setattr(grpo, "stoppable", nullcontext)
    monkeypatch.setattr(grpo, "within_budget", lambda *args, **how: nullcontext())

    def train(**how: object) -> None:
        raise BudgetStop("$0.08 of $0.10 are spent")

    trainer = SimpleNamespace(
        rollout_func=None,
        accelerator=SimpleNamespace(is_main_process=True, num_processes=1),
        train=train,
        state=SimpleNamespace(global_step=2),
    )
    with pytest.raises(BudgetStop):
        grpo.fit(trainer, TrainConfig(env="agentgym/X-v0", model="m", out=tmp_path, steps=4))
    end = read_budget_end(tmp_path)
    assert end is not None
    assert (end.step, end.budget) == (2, "$0.08 of $0.10 are spent")


def test_an_end_counts_until_the_run_is_resumed(tmp_path: Path) -> None:
    assert read_budget_end(tmp_path) is None
    note_start(tmp_path, {}, checkpoint=None, processes=1)
    assert read_budget_end(tmp_path) is None
    note_budget_end(tmp_path, step=3, budget="all spent")
    assert read_budget_end(tmp_path) is not None
    assert len(read_starts(tmp_path)) == 1
    note_start(tmp_path, {}, checkpoint=tmp_path / "checkpoint-3", processes=1)
    assert read_budget_end(tmp_path) is None
    assert [start.step for start in read_starts(tmp_path)] == [0, 3]


@pytest.mark.parametrize("before", ["{", "[1]", "3", ""])
def test_settings_that_cannot_be_compared_cost_no_start(tmp_path: Path, before: str) -> None:
    (tmp_path / "train.json").write_text(before)
    note_start(tmp_path, {"steps": 8}, checkpoint=None, processes=1)
    assert [start.changed for start in read_starts(tmp_path)] == [{}]


def test_lines_of_strangers_cost_themselves_alone(tmp_path: Path) -> None:
    note_start(tmp_path, {}, checkpoint=None, processes=1)
    with (tmp_path / STARTS_FILE).open("a") as file:
        file.write('{"step": -1}\n[3]\n{"started_at": 4}\n{"star')
    assert len(read_starts(tmp_path)) == 1
    assert read_starts(tmp_path / "none") == []


def test_a_setting_in_a_table_is_named_with_its_table(tmp_path: Path) -> None:
    before = {"eval": {"every": 5, "tasks": 64}, "grpo": {"beta": 0.1}}
    now = {"eval": {"every": 10, "tasks": 64}, "grpo": {"beta": 0.1, "epsilon": 0.2}}
    for settings in (before, now):
        note_start(tmp_path, settings, checkpoint=None, processes=1)
        (tmp_path / CONFIG_FILE).write_text(json.dumps(settings))
    assert read_starts(tmp_path)[-1].changed == {
        "eval.every": (5, 10),
        "grpo": (before["grpo"], now["grpo"]),
    }
