"""Flags of `agentgym rollout`: what they mean is what runs, and what can't be is one line."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.request

import pytest
from fault_desk import answer, roles

from agentgym.cli._folder import RunFolder
from agentgym.testing.quirky import QuirkyServer
from agentgym.traces import read_traces

pytestmark = pytest.mark.thorough

DESK = ("rollout", "--env", "fault_desk:FaultDesk-v0")
RANDOM = (*DESK, "--policy", "random")
MODEL = (*DESK, "--base-url", "http://127.0.0.1:9/v1", "--model", "m")


@pytest.fixture
def server():
    with QuirkyServer(answer) as server:
        yield server


def desk(server, tmp_path, *more, **fields):
    (tmp_path / "roles.toml").write_text(roles(server.url, **fields))
    return [*DESK, "--roles", "roles.toml", "--out", "x", *more]


def config(tmp_path):
    return json.loads((tmp_path / "x" / "config.json").read_text())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*RANDOM, "--concurrency", "0"], "concurrency: .*got 0"),
        ([*RANDOM, "--init-concurrency", "0"], "init_concurrency"),
        ([*RANDOM, "--eval-concurrency", "-1"], "eval_concurrency"),
        ([*RANDOM, "--retries", "1"], r"--retries: expected KEY=VALUE, got '1' \(or 0 alone"),
        ([*RANDOM, "--retries", "polcy=1"], "--retries: unknown failure class 'polcy'"),
        ([*RANDOM, "--retries", "policy=1"], "env, simulator, infra, judge"),
        ([*RANDOM, "--retries", "env=-1"], "env: .*got -1"),
        ([*RANDOM, "--retries", "env=1", "env=2"], "env is given twice"),
        ([*RANDOM, "--retries", "0", "--retry-budget", "1"], "leaves no use for --retry-budget"),
        ([*RANDOM, "--min-group-size", "4"], "--min-group-size 4 is more than the 1 --samples"),
        ([*RANDOM, "--samples", "2", "--min-group-size", "1"], "min_group_size: .*got 1"),
        ([*RANDOM, "--enough", "0"], "episodes: .*got 0"),
        ([*RANDOM, "--enough-groups", "2"], "give --samples of 2 or more"),
        ([*RANDOM, "--max-failure-rate", "2"], "max_failure_rate"),
        ([*RANDOM, "--stuck-after", "-1"], "--stuck-after must be 0 or more, got -1"),
        ([*RANDOM, "--stuck-after", "nan"], "--stuck-after must be 0 or more, got nan"),
        ([*RANDOM, "--backend", "ray"], "--backend ray needs a policy that answers over HTTP"),
        ([*RANDOM, "--service", "http://h"], "--service needs a policy that answers over HTTP"),
        ([*MODEL, "--service", "http://h", "--backend", "ray"], "either --service or --backend"),
        ([*MODEL, "--service", "http://h", "--record", "f"], "--record is for episodes in this"),
        ([*MODEL, "--backend", "ray", "--replay", "f"], "--replay is for episodes in this process"),
        ([*MODEL, "--service", "http://h", "--canary", "g"], "--canary is for episodes in this"),
        ([*RANDOM, "--temperature", "0"], "--temperature is for a model"),
        ([*RANDOM, "--tool-calls", "text"], "--tool-calls is for a model"),
        ([*MODEL, "--out", "x", "--record", "x/traces.jsonl"], "is a file of the run itself"),
        ([*RANDOM, "--base-url", "http://a"], "either --policy, or --base-url"),
        ([*DESK, "--base-url", ",", "--model", "m"], "say who plays"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9/v1/"], "http://127.0.0.1:9/v1 is there twice"),
        ([*DESK, "--base-url", "http://a,ftp://b", "--model", "m"], "base_url must start with"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing_behind(
    agentgym_command, tmp_path, args, message
):
    code, out, err = agentgym_command(*args)
    assert (code, out) == (1, "")
    assert err.startswith("agentgym: error: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "init", "playing", "judged"),
    [
        ([], 16, 64, 64),
        (["--concurrency", "2"], 2, 2, 64),
        (["--concurrency", "200"], 16, 200, 200),
        (["--concurrency", "200", "--init-concurrency", "5", "--eval-concurrency", "7"], 5, 200, 7),
    ],
)
def test_slots_in_effect_are_told_and_kept(
    agentgym_command, server, tmp_path, flags, init, playing, judged
):
    code, _, err = agentgym_command(*desk(server, tmp_path, "-n", "1", *flags))
    assert code == 0, err
    assert (
        f"at once    {init} environments made or reset, {playing} episodes taking turns, "
        f"{judged} judged\n"
    ) in err
    limits = config(tmp_path)["limits"]
    kept = [limits[f"{stage}concurrency"] for stage in ("init_", "", "eval_")]
    assert kept == [init, playing, judged]
    assert f"player at {server.url}, {playing} requests at once" in err
    assert f"customer at {server.url}, {max(64, playing)} requests at once" in err
    assert f"critic at {server.url}, {max(64, judged)} requests at once" in err


def test_so_many_episodes_are_played_at_once(agentgym_command, server, tmp_path):
    args = desk(server, tmp_path, "-n", "12", "--concurrency", "3", "--quiet")
    assert agentgym_command(*args)[0] == 0
    assert server.most_in_flight <= 3 * 2 + 3  # turns, openings and verdicts


def test_room_that_an_endpoint_was_given_stays(agentgym_command, server, tmp_path):
    flags = ("-n", "1", "--concurrency", "50")
    _, _, err = agentgym_command(*desk(server, tmp_path, *flags, max_concurrency=4))
    assert f"player at {server.url}, 4 requests at once" in err


def test_several_servers_of_a_policy_share_the_episodes(agentgym_command, tmp_path):
    with QuirkyServer(answer) as first, QuirkyServer(answer) as second:
        flags = ["--base-url", f"{first.url}, {second.url}", "-n", "8", "--concurrency", "8"]
        code, _, err = agentgym_command(*desk(first, tmp_path, *flags))
        assert code == 0, err
        played = [
            sum(body["model"] == "player" for body in server.requests) for server in (first, second)
        ]
    assert min(played) > 3
    assert f"player at {first.url}, {second.url}, 16 requests at once" in err
    replicas = {
        t.replica for trace in read_traces(tmp_path / "x/traces.jsonl") for t in trace.turns
    }
    assert len(replicas) == 2
    assert config(tmp_path)["roles"]["replicas"][0]["base_url"] == second.url


def test_several_servers_are_recorded_and_replayed(agentgym_command, tmp_path):
    with QuirkyServer(answer) as first, QuirkyServer(answer) as second:
        flags = ["--base-url", f"{first.url},{second.url}", "-n", "4", "--quiet"]
        args = desk(first, tmp_path, *flags)
        assert agentgym_command(*args, "--record", "calls.jsonl")[0] == 0
    again = ["y" if arg == "x" else arg for arg in args]
    code, _, err = agentgym_command(*again, "--replay", "calls.jsonl")
    assert code == 0, err
    (summary, replayed) = (
        json.loads((tmp_path / out / "summary.json").read_text())["usage"] for out in ("x", "y")
    )
    assert replayed == summary


def test_metrics_are_served_while_the_run_goes_on(agentgym_command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/metrics"
    pages = []

    def reply(body):
        if body["model"] == "player" and len(body["messages"]) > 1 and not pages:  # no preflight
            with urllib.request.urlopen(url) as page:
                pages.append(page.read().decode())
        return answer(body)

    with QuirkyServer(reply) as server:
        port = url.removesuffix("/metrics").rpartition(":")[2]
        args = desk(server, tmp_path, "-n", "2", "--metrics-port", port)
        code, _, err = agentgym_command(*args)
    assert code == 0, err
    assert f"metrics    {url}\n" in err
    assert 'env="fault_desk:FaultDesk-v0"' in pages[0]


def test_port_in_use_is_one_line(agentgym_command, server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = agentgym_command(
            *desk(server, tmp_path, "-n", "1", "--metrics-port", str(port))
        )
    assert code == 1
    assert f"can't serve metrics on 127.0.0.1:{port}" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()
    assert server.requests == []


@pytest.mark.parametrize("text", ["notes\n", '{"schema_version": 1}\n', "[]"])
def test_file_that_is_no_recording_is_not_recorded_to(agentgym_command, server, tmp_path, text):
    (tmp_path / "notes").write_text(text)
    code, _, err = agentgym_command(*desk(server, tmp_path, "-n", "1", "--record", "notes"))
    assert (code, err.count("\n")) == (1, 1)
    assert "notes is there and no recording" in err
    assert (tmp_path / "notes").read_text() == text
    assert not (tmp_path / "x").exists()


def test_recording_that_can_take_no_more_stops_the_run(agentgym_command, server, tmp_path):
    args = desk(server, tmp_path, "-n", "12", "--concurrency", "1", "--quiet")
    code, _, err = agentgym_command(*args, "--record", "/dev/full")
    assert code == 1
    assert "can't write to /dev/full: No space left on device" in err
    assert "--resume --retry-masked" in err
    assert len(list(read_traces(tmp_path / "x/traces.jsonl"))) == 1
    code, _, err = agentgym_command(*args, "--resume", "--retry-masked")
    assert code == 0, err
    assert json.loads((tmp_path / "x/summary.json").read_text())["n_scored"] == 12


def test_journal_of_a_run_killed_after_its_last_trace_is_gone_when_it_goes_on(
    agentgym_command, server, tmp_path
):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    assert agentgym_command(*args)[0] == 0
    journal = tmp_path / "x/unjudged.jsonl"
    shutil.copy(tmp_path / "x/traces.jsonl", journal)
    assert agentgym_command(*args, "--resume")[0] == 0
    assert not journal.exists()


def test_run_that_breaks_off_says_why_even_if_its_figures_cannot_be_written(
    agentgym_command, server, tmp_path
):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    assert agentgym_command(*args)[0] == 0
    (tmp_path / "x/summary.json").unlink()
    (tmp_path / "x/summary.json").mkdir()
    (tmp_path / "x/unjudged.jsonl").mkdir()
    code, _, err = agentgym_command(*args, "--resume", "-n", "3")
    assert code == 1
    assert "unjudged.jsonl" in err


@pytest.mark.parametrize("begun", [True, False])
def test_two_runs_at_once_in_a_folder_are_refused(agentgym_command, server, tmp_path, begun):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    (tmp_path / "x").mkdir()
    if begun:
        assert agentgym_command(*args)[0] == 0
        args += ["--resume", "-n", "3"]
    other = RunFolder(tmp_path / "x")
    other.claim()
    code, _, err = agentgym_command(*args)
    assert (code, err.count("\n")) == (1, 1)
    assert "another process plays in x" in err
    other.release()
    assert agentgym_command(*args)[0] == 0


def test_enough_ends_the_run_and_a_resumed_one_knows_what_it_has(
    agentgym_command, server, tmp_path
):
    args = desk(server, tmp_path, "-n", "12", "--concurrency", "1", "--enough", "4", "--quiet")
    assert agentgym_command(*args)[0] == 0
    assert json.loads((tmp_path / "x/summary.json").read_text())["n_scored"] >= 4
    before, asked = len(list(read_traces(tmp_path / "x/traces.jsonl"))), len(server.requests)
    assert agentgym_command(*args, "--resume")[0] == 0
    assert len(server.requests) == asked
    more = ["7" if arg == "4" else arg for arg in args]
    assert agentgym_command(*more, "--resume")[0] == 0
    assert 7 <= len(list(read_traces(tmp_path / "x/traces.jsonl"))) < 12
    assert before < 7


def test_retries_0_plays_nothing_again(agentgym_command, server, tmp_path):
    (tmp_path / "crashes").mkdir()
    flags = ["-n", "2", "--env-kwargs", f"crashes={tmp_path / 'crashes'}", "--retries", "0"]
    code, out, _ = agentgym_command(*desk(server, tmp_path, *flags, "--quiet"))
    assert code == 1
    assert re.search(r"^masked by +2 × RuntimeError: the desk broke down$", out, re.MULTILINE)


def test_what_broke_is_played_again_and_its_cost_is_told(agentgym_command, server, tmp_path):
    (tmp_path / "crashes").mkdir()
    flags = ["-n", "2", "--env-kwargs", f"crashes={tmp_path / 'crashes'}", "--quiet"]
    code, out, _ = agentgym_command(*desk(server, tmp_path, *flags))
    assert code == 0
    assert "repeated" in out
    assert "2 attempts that count no more" in out
    assert config(tmp_path)["retry"]["env"] == 1
    summary = json.loads((tmp_path / "x/summary.json").read_text())
    assert (summary["reruns"], summary["n_scored"]) == (2, 2)
    assert summary["rerun_usage"]["simulator"]["calls"] == 2


@pytest.mark.parametrize("field", ["extra_body", "dialect"])
def test_resume_with_a_judge_asked_otherwise_is_refused(agentgym_command, server, tmp_path, field):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    assert agentgym_command(*args)[0] == 0
    text = {"extra_body": "{effort = 1}", "dialect": "{seed = false}"}[field]
    file = tmp_path / "roles.toml"
    file.write_text(file.read_text() + f"{field} = {text}\n")  # the last table is the judge's
    code, _, err = agentgym_command(*args, "--resume")
    assert code == 1
    assert f"was run with judge.{field}={{}}" in err


def test_resume_of_traces_of_another_version_is_one_line(agentgym_command, server, tmp_path):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    assert agentgym_command(*args)[0] == 0
    path = tmp_path / "x/traces.jsonl"
    path.write_text(path.read_text().replace('"schema_version":1', '"schema_version":7', 1))
    code, _, err = agentgym_command(*args, "--resume")
    assert code == 1
    assert err == (
        "agentgym: error: x/traces.jsonl, line 1: schema version 7; this agentgym reads version 1\n"
    )


def test_resume_with_what_is_no_recording_is_one_line(agentgym_command, server, tmp_path):
    args = desk(server, tmp_path, "-n", "2", "--quiet")
    assert agentgym_command(*args)[0] == 0
    (tmp_path / "x/traces.jsonl").rename(tmp_path / "calls.jsonl")
    more = [*["3" if arg == "2" else arg for arg in args], "--record", "calls.jsonl"]
    code, _, err = agentgym_command(*more, "--resume")
    assert code == 1
    assert err.count("\n") == 1
    assert "calls.jsonl, line 1: not a recorded call" in err


def test_retry_masked_with_the_same_recording_pays_only_for_what_is_new(agentgym_command, tmp_path):
    down = [True]

    def reply(body):
        if body["model"] == "critic" and down and "counter" in str(body["messages"]):
            return 400, {"error": {"message": "out of order"}}
        return answer(body)

    with QuirkyServer(reply) as server:
        args = desk(server, tmp_path, "-n", "3", "--quiet", "--record", "calls.jsonl")
        assert agentgym_command(*args, "--retries", "0")[0] == 1
        down.clear()
        before = [body["model"] for body in server.requests]
        code, _, err = agentgym_command(*args, "--resume", "--retry-masked")
        new = [body["model"] for body in server.requests][len(before) :]
    assert code == 0, err
    hello = ["player", "customer", "critic"]
    assert sorted(new) == sorted([*hello, *["critic"] * 3])
    summary = json.loads((tmp_path / "x/summary.json").read_text())
    recorded = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    for role in ("policy", "simulator", "judge"):
        paid = sum(
            usage["prompt_tokens"]
            for call in recorded
            for name, usage in call["spent"].items()
            if name == role
        )
        assert summary["usage"][role]["prompt_tokens"] == paid
    assert summary["usage"]["judge"]["failed_calls"] == 3


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("kept", [True, False], ids=["in the journal", "rolled out again"])
def test_group_that_was_cut_between_its_traces_tells_of_its_judge_once(
    agentgym_command, tmp_path, written, kept
):
    journal, traces = tmp_path / "x/unjudged.jsonl", tmp_path / "x/traces.jsonl"
    waiting = []

    def reply(body):
        if body["model"] == "critic" and journal.exists():
            waiting.append(journal.read_bytes())
        return answer(body)

    with QuirkyServer(reply) as server:
        ranks = ("--samples", "3", "--env-kwargs", "ranks=true")
        args = desk(server, tmp_path, "-n", "1", "--quiet", "--record", "calls.jsonl", *ranks)
        assert agentgym_command(*args)[0] == 0
        whole = json.loads((tmp_path / "x/summary.json").read_text())["usage"]
        for _ in range(2):  # a kill, and another one
            lines = traces.read_bytes().splitlines(keepends=True)
            traces.write_bytes(b"".join(lines[: len(lines) - 3 + written]))
            if kept:
                journal.write_bytes(waiting[0])
            code, _, err = agentgym_command(*args, "--resume")
            assert code == 0, err
        summary = json.loads((tmp_path / "x/summary.json").read_text())
    assert summary["n_scored"] == 3
    for role, usage in whole.items():
        again = summary["usage"][role]
        assert again.pop("cost_usd") == pytest.approx(usage.pop("cost_usd"))
        assert again == usage


def test_budget_is_the_runs_however_often_it_is_gone_on_with(agentgym_command, server, tmp_path):
    args = ("--quiet", "--concurrency", "1", "--max-tokens", "16")
    code, _, err = agentgym_command(*desk(server, tmp_path, "-n", "2", *args))
    assert code == 0, err
    spent = json.loads((tmp_path / "x/summary.json").read_text())["usage"]["policy"]["cost_usd"]
    asked = len(server.requests)
    again = desk(server, tmp_path, "-n", "3", *args, "--resume", budget_usd=spent)
    code, _, err = agentgym_command(*again)
    assert code == 1
    assert re.search(r"policy: .* \$0\.\d+ are spent; raise budget_usd to go on", err)
    assert len(server.requests) == asked
    again = desk(server, tmp_path, "-n", "3", *args, "--resume", budget_usd=1.0)
    assert agentgym_command(*again)[0] == 0


def test_servers_of_a_recorded_policy_can_be_watched(tmp_path):
    from agentgym.client import Endpoint
    from agentgym.clients import BalancedClient, RecordingClient

    servers = [Endpoint(base_url=f"http://{name}/v1", model="m") for name in "ab"]
    recorded = RecordingClient(BalancedClient(servers), tmp_path / "calls.jsonl")
    assert len(recorded.status()) == 2


def test_collector_that_is_not_there_costs_no_episode(
    agentgym_command, server, tmp_path, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    code, _, err = agentgym_command(*desk(server, tmp_path, "-n", "2", "--otel", "--quiet"))
    assert code == 0, err
    assert "OpenTelemetry got 0 of 2 episodes" in err
    assert len(list(read_traces(tmp_path / "x/traces.jsonl"))) == 2
