"""`agentgym view` and `agentgym show`, as they are called."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from made_results import attempt, column, result

from agentgym.evaluate import write_result
from agentgym.trace import Trace
from agentgym.traces import TraceWriter
from agentgym.types import Turn, Verdict


def make_trace(trace_id: str, task: str, text: str = "hello") -> Trace:
    message = {"role": "assistant", "content": text}
    return Trace(
        trace_id=trace_id,
        env_spec='{"id": "My-v0"}',
        task_id=task,
        messages=({"role": "user", "content": "say hello"}, message),
        turns=(Turn(index=0, message=message),),
        terminated=True,
        termination_reason="answered",
        verdict=Verdict(reward=1.0, completed=True, correct=True),
        started_at="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "run" / "traces.jsonl"
    with TraceWriter(path) as writer:
        for k, trace_id in enumerate(("aaa1", "aab2", "ccc3")):
            writer.write(make_trace(trace_id, f"task/{k}", f"hello {k}"))
    return path


def test_view_writes_a_page(agentgym_command, traces, tmp_path):
    code, out, err = agentgym_command("view", traces.parent, "--html", "x.html")
    assert (code, err) == (0, "")
    assert out.startswith("x.html: 3 episodes, 0.")
    assert (tmp_path / "x.html").read_text(encoding="utf-8").count("<title>") == 1


def test_view_says_what_was_left_out(agentgym_command, traces):
    traces.write_text(traces.read_text() + "{\n" * 9)
    code, out, err = agentgym_command("view", traces, "--html", "x.html")
    assert code == 0
    assert "3 episodes" in out
    assert err.splitlines()[0] == "agentgym: traces.jsonl, line 4 is left out: torn: no JSON"
    assert err.splitlines()[-1] == "agentgym: and 1 more remarks, which the page has"


@pytest.mark.parametrize("more", [(), ("--html", "x.html")])
def test_view_of_nothing_is_one_line(agentgym_command, tmp_path, more):
    (tmp_path / "empty").mkdir()
    code, out, err = agentgym_command("view", "empty", "--no-browser", *more)
    assert (code, out) == (1, "")
    assert err == "agentgym: error: no traces in empty: there is no *.jsonl file\n"
    code, _, err = agentgym_command("view", "nowhere", "--no-browser", *more)
    assert (code, err) == (1, "agentgym: error: no such file or folder: nowhere\n")


@pytest.mark.thorough
def test_view_serves_until_interrupted(traces):
    command = [sys.executable, "-m", "agentgym.cli", "view", str(traces), "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        with urllib.request.urlopen(url, timeout=30) as reply:
            assert b"data-served" in reply.read()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    ("which", "shown"),
    [
        (None, "hello 0"),
        ("2", "hello 1"),
        ("-1", "hello 2"),
        ("-3", "hello 0"),
        ("aab2", "hello 1"),
        ("cc", "hello 2"),
        ("task/1", "hello 1"),
    ],
)
def test_show_finds_the_episode(agentgym_command, traces, which, shown):
    args = [] if which is None else ["--episode", which]
    code, out, err = agentgym_command("show", traces, *args)
    assert code == 0
    assert f"  {shown}\n" in out
    assert "\x1b" not in out, "plain without a terminal"
    first = (
        "agentgym: the first of several episodes; --episode shows another, `agentgym view` all\n"
    )
    assert err == ("" if which else first)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--episode", "4"), "no episode 4: there are 3, numbered from 1; -1 is the last"),
        (("--episode", "0"), "no episode 0: there are 3"),
        (("--episode", "-4"), "no episode -4: there are 3"),
        (("--episode", "aa"), "several trace ids begin with 'aa'; give more of it"),
        (("--episode", "z\x1b"), r"none of 3 episodes has the trace id or task 'z\x1b'"),
        (("--width", "3"), "--width takes at least 20 columns, got 3"),
    ],
)
def test_show_says_what_is_wrong(agentgym_command, traces, args, complaint):
    code, out, err = agentgym_command("show", traces, *args)
    assert (code, out) == (1, "")
    assert err.startswith(f"agentgym: error: {complaint}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("which", [(), ("--episode", "1"), ("--episode", "x")])
def test_show_of_an_empty_file_is_one_line(agentgym_command, tmp_path, which):
    (tmp_path / "t.jsonl").touch()
    code, out, err = agentgym_command("show", "t.jsonl", *which)
    assert (code, out) == (1, "")
    assert err == (
        "agentgym: error: no traces in t.jsonl: no episode has finished yet, the files are empty\n"
    )


def test_show_folds_unless_told_otherwise(agentgym_command, tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(make_trace("a", "t", "word " * 2000))
    assert "more characters (--full shows all)" in agentgym_command("show", "t.jsonl")[1]
    whole = agentgym_command("show", "t.jsonl", "--full", "--width", "40")[1]
    assert whole.count("word") == 2000
    assert max(map(len, whole.splitlines())) <= 40


@pytest.mark.parametrize("out", ["", ".", "run"])
def test_page_that_would_be_a_folder_is_one_line(agentgym_command, traces, out):
    code, _, err = agentgym_command("view", traces, "--html", out)
    assert code == 1
    assert err.startswith("agentgym: error: can't write a page to ")
    assert err.count("\n") == 1


def test_name_of_a_file_is_no_command_to_the_terminal(agentgym_command, traces, tmp_path):
    odd = tmp_path / "a\x1b[31m\udcff.jsonl"
    traces.rename(odd)
    code, out, err = agentgym_command("view", odd, "--html", odd.with_suffix(".html"))
    assert (code, err) == (0, "")
    assert r"a\x1b[31m\udcff.html: 3 episodes" in out
    code, _, err = agentgym_command("show", "no\x1b[31m")
    assert (code, err) == (1, "agentgym: error: no such file or folder: no\\x1b[31m\n")


@pytest.fixture
def evaluation(tmp_path):
    """Three episodes that the reward calls solved; the external score says yes, no, and nothing."""
    traces = tmp_path / "run" / "traces" / "rule-0123.jsonl"
    with TraceWriter(traces) as writer:
        for k, trace_id in enumerate(("aaa1", "aab2", "ccc3", "old4")):
            writer.write(make_trace(trace_id, f"task/{k}", f"hello {k}"))
    rows = [
        attempt(f"task/{k}", correct, trace_id=trace_id)
        for k, (trace_id, correct) in enumerate([("aaa1", True), ("aab2", False), ("ccc3", None)])
    ]
    found = result(column("rule", rows, trace_file="traces/rule-0123.jsonl"))
    write_result(tmp_path / "run" / "result.json", found)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("aaa1", "solved, score 1 by test/exact"),
        ("aab2", "not solved, score 0 by test/exact; the reward's verdict disagrees"),
        ("ccc3", "no score by test/exact: something other than the policy broke"),
        ("old4", None),
    ],
)
def test_show_has_the_external_score_beside_the_reward(agentgym_command, evaluation, which, told):
    code, out, err = agentgym_command("show", evaluation, "--episode", which)
    assert (code, err) == (0, "")
    assert ("external score: what the evaluation counts" in out) == (told is not None)
    assert ("verdict of the reward: what policies are trained on" in out) == (told is not None)
    assert told is None or f"  {told}\n" in out
    assert "reward 1, solved, completed" in out


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("solved", "hello 0"), ("unsolved", "hello 1"), ("unscored", "hello 2")],
)
def test_show_finds_by_the_external_score(agentgym_command, evaluation, wanted, shown):
    code, out, err = agentgym_command("show", evaluation, "--external", wanted)
    assert (code, err) == (0, "")
    assert f"  {shown}\n" in out
    again = agentgym_command("show", evaluation, "--external", "disagreed", "--episode", "-1")
    assert "hello 1" in again[1]


def test_show_says_where_no_external_score_is(agentgym_command, traces):
    code, _, err = agentgym_command("show", traces, "--external", "solved")
    assert code == 1
    assert err.startswith("agentgym: error: --external solved is none of the 3 episodes;")


def test_show_says_that_a_result_can_not_be_read(agentgym_command, evaluation):
    (evaluation / "result.json").write_text("{")
    code, out, err = agentgym_command("show", evaluation, "--episode", "1")
    assert code == 0
    assert "external" not in out
    assert err.startswith("agentgym: no external scores: ")
