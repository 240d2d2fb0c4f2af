from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from agentgym.cli import main
from agentgym.cli._report import ReportCommand

DATA = Path(__file__).parent.parent / "report" / "data"


def line(step: int) -> str:
    return json.dumps({"step": step, "reward": 0.1 * step, "agentgym/correct": 0.2}) + "\n"


def begin(out: Path, *, steps: int) -> Path:
    out.mkdir()
    (out / "train.json").write_text(json.dumps({"env": "e", "model": "m", "steps": steps}))
    return out


def test_page_lies_in_the_runs_folder_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = begin(tmp_path / "x", steps=2)
    (out / "metrics.jsonl").write_text(line(1))
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"
    assert main(["report", str(out), "--html", str(tmp_path / "y" / "z.html")]) == 0
    assert (tmp_path / "y" / "z.html").read_text().startswith("<!doctype html>")


def test_a_page_replaces_pages_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = begin(tmp_path / "x", steps=2)
    metrics = out / "metrics.jsonl"
    metrics.write_text(line(1))
    assert main(["report", str(out), "--html", str(metrics)]) == 1
    assert metrics.read_text() == line(1)
    assert "is there and no HTML page" in capsys.readouterr().err
    assert main(["report", str(out), "--html", str(out)]) == 1
    assert "it is no file" in capsys.readouterr().err


def test_text_says_the_same_without_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(DATA / "collapses"), "--text"]) == 0
    text = capsys.readouterr().out
    for part in (
        "Finished: 24 of 24 steps", "environment  agentgym/WebShop-v0", "trl 1.16.0",
        "ALARM turn_cap (step 7)", "max_turns = ceil(1.5", "held-out tasks, by verdict.correct:",
    ):  # fmt: skip
        assert part in text
    assert main(["report", str(DATA / "collapses")]) == 1
    error = capsys.readouterr().err
    assert 'pip install "agentgym-envs[report]"' in error
    assert len(error.splitlines()) == 1


def test_text_of_a_resumed_run_names_the_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(DATA / "learns"), "--text"]) == 0
    assert "R1 resumed   after step 12" in capsys.readouterr().out


def test_what_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("")
    begin(tmp_path / "runs", steps=2)
    for path, error in (
        (tmp_path / "none", "there is no"),
        (tmp_path, "has no run, but its folder 'runs' may"),
        (tmp_path / "a.jsonl", "agentgym view"),
        (tmp_path / "runs", "no step is done yet"),
    ):
        for more in ([], ["--text"]):
            assert main(["report", str(path), *more]) == 1
            said = capsys.readouterr().err
            assert error in said
            assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "error"),
    [(["--watch", "0"], "1 second or more"), (["--text", "--watch"], "--text prints")],
)
def test_flags_that_do_not_go_together(
    tmp_path: Path, flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), *flags]) == 1
    assert error in capsys.readouterr().err


def test_watch_waits_for_the_first_step_and_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = begin(tmp_path / "x", steps=2)
    page, seen = out / "report.html", []

    def sleep(seconds: float) -> None:
        """Another step is done meanwhile."""
        assert seconds == 7
        seen.append("refresh" in page.read_text() if page.exists() else None)
        with (out / "metrics.jsonl").open("a") as file:
            file.write(line(len(seen)))

    args = argparse.Namespace(run_path=out, html=None, text=False, watch=7)
    assert ReportCommand(args, sleep=sleep).run() == 0
    assert seen == [None, True]  # nothing yet, then one step with a page that refreshes itself
    assert 'http-equiv="refresh"' not in page.read_text()
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{out}: waiting for a first step or episode",
        f"{page}, anew every 7 s",
        "the run is over",
    ]
