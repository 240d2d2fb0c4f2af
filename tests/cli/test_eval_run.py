"""`agentgym eval run` and `export`: what a user sees, and what a second run does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym.traces import TraceFile

ENV = "agentgym/ToolWorld-v0"
BASE = ("eval", "run", "--env", ENV, "--policy", "expert", "--policy", "none")


def keys(folder: Path) -> list[tuple[str, str | None, int]]:
    files = sorted((folder / "traces").glob("*.jsonl"))
    return [(f.name, t.task_id, t.sample) for f in files for t in TraceFile(f)]


def test_columns_stand_side_by_side(agentgym_command, tmp_path: Path) -> None:
    code, out, err = agentgym_command(*BASE, "-n", "4", "--out", "r")
    assert code == 0
    assert "success, of all" in out
    assert "expert" in out
    assert out.rstrip().endswith("r/result.json")
    assert "8/8 episodes" in err
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert [column["name"] for column in result["columns"]] == ["expert", "none"]


def test_two_runs_without_out_have_two_folders(agentgym_command, tmp_path: Path) -> None:
    for _ in range(2):
        code, _, _ = agentgym_command(*BASE, "-n", "1", "--quiet")
        assert code == 0
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert all((folder / "result.json").exists() for folder in folders)


def test_the_same_command_again_plays_nothing(agentgym_command, tmp_path: Path) -> None:
    agentgym_command(*BASE, "-n", "3", "--out", "r", "--quiet")
    before = keys(tmp_path / "r")
    code, _, err = agentgym_command(*BASE, "-n", "3", "--out", "r")
    assert code == 0
    assert "6 episodes are there, 0 to play" in err
    assert keys(tmp_path / "r") == before


def test_other_parameters_use_no_old_episode(agentgym_command, tmp_path: Path) -> None:
    agentgym_command(*BASE, "-n", "2", "--out", "r", "--quiet")
    code, _, err = agentgym_command(*BASE, "-n", "2", "--seed", "3", "--out", "r")
    assert code == 0
    assert "of another configuration and not used" in err
    assert len(keys(tmp_path / "r")) == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--samples", "0"), "--samples must be at least 1"),
        (("-n", "10000"), "n must be 1 to"),
        (("--enough", "3"), "would bias an evaluation"),
        (("-n", "2", "--policy", "expart"), "has no policy 'expart'"),
        (("-n", "2", "--policy", "none"), "2 columns are called 'none'"),
        (("--model", "m"), "expected [NAME=]MODEL@URL"),
        (
            ("-n", "2", "--model", "m@http://127.0.0.1:9/v1"),
            "column m: http://127.0.0.1:9/v1",
        ),
        (
            ("-n", "2", "--score", "agentgym.envs.toolworld.judge:AnswerVerifier"),
            "the training reward itself",
        ),
        (("--columns", "none.toml"), "can't read none.toml"),
        (("--task", "toolworld/x/0"), "no task 'toolworld/x/0'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    agentgym_command, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    code, out, err = agentgym_command(*BASE, "--quiet", "--out", "r", *args)
    assert code == 1
    assert message in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_nobody_plays(agentgym_command) -> None:
    code, _, err = agentgym_command("eval", "run", "--env", ENV)
    assert code == 1
    assert "say who plays" in err


def test_a_model_is_asked_with_its_sampling(agentgym_command, model_server, tmp_path) -> None:
    def answer(body):
        message = {"role": "assistant", "content": "Answer: none"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return 200, {
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage,
        }

    server = model_server(answer)
    Path("columns.toml").write_text(
        f'[columns.big]\nkind = "baseline"\nbase_url = "{server.url}"\nmodel = "large"\n'
        "prices = {input = 1000.0, output = 0.0}\n"
    )
    code, out, _ = agentgym_command(
        *("eval", "run", "--env", ENV, "-n", "2", "--out", "r", "--temperature", "0.3"),
        *("--model", f"small=m@{server.url}", "--columns", "columns.toml"),
    )
    assert code == 0
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    small, big = result["columns"]
    assert (small["name"], small["kind"], small["model"]) == ("small", "policy", "m")
    assert (big["name"], big["kind"], big["model"]) == ("big", "baseline", "large")
    assert {body["temperature"] for body in server.bodies if body["max_tokens"] > 100} == {0.3}
    assert big["attempts"][0]["usage"]["policy"]["cost_usd"] == pytest.approx(0.009)
    assert small["attempts"][0]["external"] == 0.0
    assert "baseline" in out or "large" in out


def test_a_server_that_fails_leaves_rows_without_a_score(
    agentgym_command, model_server, tmp_path
) -> None:
    asked = []

    def answer(body):
        asked.append(body)
        if len(asked) == 1:  # the small request at the beginning
            message = {"role": "assistant", "content": "ok"}
            return 200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return 400, {"error": {"message": "no such thing"}}

    server = model_server(answer)
    code, out, _ = agentgym_command(
        *("eval", "run", "--env", ENV, "-n", "3", "--out", "r", "--retries", "0", "--quiet"),
        *("--policy", "expert", "--model", f"m@{server.url}"),
    )
    assert code == 0  # the other column has scores
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    attempts = result["columns"][1]["attempts"]
    assert len(attempts) == 3
    assert {attempt.get("external") for attempt in attempts} == {None}
    assert {attempt["failure_class"] for attempt in attempts} == {"infra"}
    code, out, _ = agentgym_command("eval", "show", "r/result.json")
    assert "no score" in out


@pytest.mark.thorough
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL in the middle: the next run plays exactly what is missing."""
    command = [
        *(sys.executable, "-m", "agentgym", "eval", "run", "--env", ENV, "--policy", "expert"),
        *("-n", "60", "--samples", "2", "--concurrency", "2", "--quiet", "--out", "r"),
    ]
    child = subprocess.Popen(command, cwd=tmp_path, env={**os.environ})
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and child.poll() is None:
            if (tmp_path / "r" / "traces").exists() and len(keys(tmp_path / "r")) >= 5:
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    before = keys(tmp_path / "r")
    assert 5 <= len(before) < 120
    ran = subprocess.run([a for a in command if a != "--quiet"], cwd=tmp_path, capture_output=True)
    assert ran.returncode == 0
    assert f"{len(before)} episodes are there" in ran.stderr.decode()
    after = keys(tmp_path / "r")
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 120


def test_export_writes_a_log_per_column(agentgym_command, tmp_path: Path) -> None:
    agentgym_command(*BASE, "-n", "2", "--out", "r", "--quiet")
    export = ("eval", "export", "r/result.json", "--format", "inspect", "--out")
    code, out, err = agentgym_command(*export, "logs")
    assert (code, err) == (0, "")
    assert out.split() == ["logs/expert.eval", "logs/none.eval"]
    code, _, err = agentgym_command(*export, "x.json")
    assert code == 1
    assert "choose one with --column (expert, none)" in err
    code, _, _ = agentgym_command(*export, "x.json", "--column", "none")
    assert code == 0
    assert json.loads((tmp_path / "x.json").read_text())["samples"][0]["messages"]
    (tmp_path / "r" / "traces").rename(tmp_path / "gone")
    _, _, err = agentgym_command(*export, "y.eval", "--column", "none")
    assert "has 0 of 2 conversations" in err


def test_calls_are_recorded_in_a_folder_and_replayed_without_a_server(
    agentgym_command, model_server, tmp_path: Path
) -> None:
    server = model_server(lambda _: (200, SAYS_NOTHING))
    models = [f"--model={name}=m@{server.url}" for name in ("one", "two")]
    play = ("eval", "run", "--env", ENV, *models, "-n", "2", "--max-turns", "2", "--quiet")
    code, _, err = agentgym_command(*play, "--out", "x", "--record", "calls")
    assert (code, err) == (0, "")
    assert sorted(f.name for f in (tmp_path / "calls").iterdir()) == ["one.jsonl", "two.jsonl"]
    asked = len(server.bodies)
    code, _, err = agentgym_command(*play, "--out", "y", "--replay", "calls")
    assert (code, err) == (0, "")
    assert len(server.bodies) == asked
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "xy"]
    rows = [[[a["usage"] for a in c["attempts"]] for c in r["columns"]] for r in results]
    assert rows[0] == rows[1]
    code, _, err = agentgym_command(*play, "--out", "x", "--record", "x/traces")
    assert code == 1
    assert "--record x/traces is where the traces go; record to another folder" in err
    code, _, err = agentgym_command(*play, "--record", "a", "--service", "http://h")
    assert (code, "not allowed with argument" in err) == (2, True)


SAYS_NOTHING = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "I don't know."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 20, "completion_tokens": 5},
}


def test_a_budget_that_is_used_up_says_how_many_there_are_and_what_to_raise(
    agentgym_command, model_server, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 3000, "completion_tokens": 5}
    server = model_server(lambda _: (200, {**SAYS_NOTHING, "usage": usage}))
    models = [f"--model={name}=m@{server.url}" for name in ("one", "two")]
    play = ("eval", "run", "--env", ENV, *models, "-n", "4", "--max-turns", "2", "--quiet")
    play = (*play, "--out", "x", "--max-tokens", "5", "--concurrency", "1")
    told = []
    for _ in range(2):
        code, _, err = agentgym_command(*play, "--budget-tokens", "policy=12000")
        assert code == 3, err
        told.append(err.splitlines()[-1])
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    there = sum(len(column["attempts"]) for column in result["columns"])
    assert 0 < there < 8
    assert f"{there} of 8 episodes are there (none of them new), {8 - there} are left" in told[1]
    assert (
        "plays the rest with --out x and a --budget-tokens policy=N above 12,000 (about " in told[1]
    )
    assert "(policy) are spent" in told[1]
