from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentgym.cli import main
from agentgym.traces import read_traces


def test_help_teaches(capsys):
    assert main(["demo", "--help"]) == 0
    text = capsys.readouterr().out
    assert "held-out" in text
    assert "--quick" in text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--steps", "0"], "at least 1"),
        (["--seed", "-1"], "0 or more"),
        (["--model", "nowhere"], "agentgym.train.tiny.build"),
    ],
)
def test_bad_options_are_one_line_with_the_remedy(
    options, complaint, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *options]) == 1
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_something_in_it_is_left_alone(capsys, tmp_path):
    (tmp_path / "mine").write_text("")
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err


@pytest.mark.e2e
def test_quick_demo_from_start_to_end(tmp_path):
    command = [sys.executable, "-m", "agentgym.cli", "demo", "--quick"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    for name in ("before", "after"):
        traces = list(read_traces(folder / f"{name}.jsonl"))
        assert len(traces) == 16
        assert {trace.split for trace in traces} == {"validation"}
        assert all(trace.scored for trace in traces)
    assert {t.split for t in read_traces(folder / "train" / "traces-step000000.jsonl")} == {"train"}
    assert (folder / "train" / "model" / "config.json").is_file()
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == len(result["train_reward"]) == 2
    for said in ("1/3", "2/3", "3/3", "before.jsonl", "95 % intervals"):
        assert said in done.stdout
    assert "Traceback" not in done.stderr
