"""What may change when a run is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import ConfigError
from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import read_config
from agentgym.train.files import CONFIG_FILE
from agentgym.train.run_folder import claim, run_record

pytest.importorskip("transformers")


def config_of(out: Path, **changes: Any) -> TrainConfig:
    return read_config({"env": "e/E-v0", "model": "m", "out": out, **changes})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint of its fourth step."""
    folder = tmp_path / "run"
    (folder / "checkpoint-4").mkdir(parents=True)
    record = run_record(config_of(folder, lora={"rank": 8}))
    (folder / CONFIG_FILE).write_text(json.dumps(record))
    return folder


def resumed(out: Path, **changes: Any) -> Path | None:
    return claim(config_of(out, **{"lora": {"rank": 8}, **changes}), resume=True)


def test_same_run_continues_from_its_last_checkpoint(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert resumed(out) == out / "checkpoint-4"
    assert resumed(out, steps=200, **{"keep.checkpoints_every": 3}) == out / "checkpoint-4"
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"rank": 4}}, "another lora.*'rank': 8"),
        ({"lora": None}, "another lora"),
        ({"learning_rate": 1e-3}, "another learning_rate.*it was learning_rate=1e-06"),
        ({"group_size": 4}, "another group_size"),
        ({"seed": 1, "env": "f/F-v0"}, "another env, seed"),
        ({"steps": 3}, "at step 4 already, past steps=3"),
    ],
)
def test_what_would_not_continue_is_refused(
    out: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resumed(out, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective.algorithm": "rloo"}, {"objective.refill": 2},
        {"objective.truncated": "mask"}, {"sampling.temperature": 0.7},
        {"grpo": {"beta": 0.1}}, {"model": "n"},
    ],
)  # fmt: skip
def test_what_changes_the_objective_is_told(
    out: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert resumed(out, **changes) == out / "checkpoint-4"
    assert f"resumed with another {next(iter(changes))}: " in caplog.text


def test_evaluations_keep_their_tasks(out: Path) -> None:
    assert resumed(out, **{"eval.tasks": 3})
    with pytest.raises(ConfigError, match="another eval.tasks: .* it was eval.tasks=64$"):
        resumed(out, **{"eval.tasks": 3, "eval.every": 1})


def test_folder_that_is_no_run_or_another_ones_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already has a run .checkpoint-4.*--resume"):
        claim(config_of(out))
    with pytest.raises(ConfigError, match="no run to resume"):
        resumed(tmp_path / "elsewhere")
    (out / CONFIG_FILE).write_text('{"env":')
    with pytest.raises(ConfigError, match="can't read .*train.json"):
        resumed(out)


def test_model_is_recorded_so_that_it_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for model in ("policy", "./policy", "~/policy"):
        assert run_record(config_of(tmp_path, model=model))["model"] == str(tmp_path / "policy")
    assert run_record(config_of(tmp_path, model="org/policy"))["model"] == "org/policy"
