"""The command line: help that teaches, one clear line for what is wrong, nothing half-written."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import agentgym
from agentgym.cli import build_parser, command_names
from agentgym.cli._overview import GROUPS, overview
from agentgym.traces import read_traces

pytestmark = pytest.mark.thorough

ENV = "agentgym/WebShop-v0"
MODEL = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
SMALL = ["rollout", "--env", ENV, "--env-kwargs", "num_products=60", "--quiet"]
RULE = [*SMALL, "--policy", "rule"]


def assert_one_line(err: str) -> None:
    assert err.startswith("agentgym")
    assert err.count("\n") == 1
    assert "Traceback" not in err


# --- dispatch ---------------------------------------------------------------------------------


def test_every_command_has_help_with_an_example(agentgym_command):
    code, out, _ = agentgym_command("--help")
    assert code == 0
    for name in command_names():
        assert name in out
        code, text, _ = agentgym_command(name, "--help")
        assert code == 0
        assert f"agentgym {name}" in text.partition("xample")[2], f"{name} shows no example"


def test_help_is_one_page_of_all_commands_by_what_they_are_for(agentgym_command):
    code, out, _ = agentgym_command("--help")
    assert code == 0
    assert len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= 80
    listed = out.partition("Examples")[0].splitlines()
    titles = [line.split()[0] for line in listed if re.match(r"  [a-z]+ +[a-z]", line)]
    assert titles == ["play", "train", "evaluate", "look", "serve", "cost"]


def test_the_overview_names_every_command_and_action_once():
    there = [
        f"{name} {action}" if action else name
        for name, command in _choices(build_parser()).items()
        for action in _choices(command) or [""]
    ]
    told = [line for group in GROUPS.values() for line in group]
    assert sorted(told) == sorted(there)
    assert "others    brand-new" in overview([*command_names(), "brand-new"])


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return found[0].choices if found else {}


@pytest.mark.parametrize(
    "args", [[], ["nope"], ["rollout"], ["rollout", "--nope"], ["envs", "--env", "x"]]
)
def test_wrong_usage_is_one_line(agentgym_command, args):
    code, out, err = agentgym_command(*args)
    assert (code, out) == (2, "")
    assert_one_line(err)
    assert "--help" in err


def test_version(agentgym_command):
    assert agentgym_command("--version")[1] == f"agentgym {agentgym.__version__}\n"


@pytest.mark.parametrize("module", ["agentgym", "agentgym.cli"])
def test_runs_as_a_module(module):
    found = subprocess.run(
        [sys.executable, "-m", module, "envs"], capture_output=True, text=True, check=True
    )
    assert ENV in found.stdout


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from agentgym.cli import main; main(['rollout', '--help']); "
        "print(sorted({'openai', 'torch', 'vllm', 'trl', 'rich'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_reader_that_goes_away_is_no_error():
    found = subprocess.run(
        f"{sys.executable} -m agentgym webshop-stats --env-kwargs num_products=60 | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in found.stderr


# --- envs, webshop-stats ----------------------------------------------------------------------


def test_envs_lists_every_id(agentgym_command):
    code, out, _ = agentgym_command("envs")
    assert code == 0
    assert ENV in out


def test_webshop_stats(agentgym_command):
    code, out, _ = agentgym_command("webshop-stats", "--env-kwargs", "num_products=60")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "train",
        "validation",
        "test",
        "all",
    ]
    code, out, _ = agentgym_command("webshop-stats", "--json", "--env-kwargs", "num_products=60")
    assert json.loads(out)["n_products"] == 60


@pytest.mark.parametrize("pair", ["nope=1", "goals=odd", "num_products", "data=no/such/folder"])
def test_webshop_stats_refuses_what_it_does_not_know(agentgym_command, pair):
    code, _, err = agentgym_command("webshop-stats", "--env-kwargs", pair)
    assert code == 1
    assert_one_line(err)


# --- rollout ----------------------------------------------------------------------------------


def test_rollout_writes_traces_summary_and_config(agentgym_command, tmp_path):
    code, out, err = agentgym_command(*RULE, "--split", "validation", "-n", 8, "--out", "x")
    assert (code, err) == (0, "")
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    assert len({trace.task_id for trace in traces}) == len(traces) == 8
    assert {trace.split for trace in traces} == {"validation"}
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["n_total"] == summary["n_scored"] == 8
    assert 0 <= summary["reward"]["mean"] <= 1
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["env_kwargs"] == {"num_products": 60, "split": "validation"}
    for word in ("reward", "success", "completion", "truncation", "malformed", "masked", "tokens"):
        assert word in out
    assert f"{summary['reward']['mean']:.4f} ±" in out


def test_samples_of_each_task(agentgym_command, tmp_path):
    agentgym_command(*RULE, "-n", 2, "--samples", 3, "--out", "x")
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    assert sorted(trace.sample for trace in traces) == [0, 0, 1, 1, 2, 2]
    assert {trace.group for trace in traces} == {trace.task_id for trace in traces}


def test_named_tasks(agentgym_command, tmp_path):
    agentgym_command(*RULE, "--task", "webshop/human/3", "--out", "x")
    (trace,) = read_traces(tmp_path / "x" / "traces.jsonl")
    assert trace.task_id == "webshop/human/3"


def test_max_turns_caps_the_episode(agentgym_command, tmp_path):
    code, _, _ = agentgym_command(*RULE, "-n", 2, "--max-turns", 2, "--out", "x")
    assert code == 0
    for trace in read_traces(tmp_path / "x" / "traces.jsonl"):
        assert (trace.truncation_reason, len(trace.turns)) == ("turns", 2)


def test_two_runs_have_two_folders(agentgym_command, tmp_path):
    """H11."""
    for _ in range(2):
        assert agentgym_command(*RULE, "-n", 1)[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_progress_lines_go_to_stderr_where_there_is_no_terminal(agentgym_command):
    args = [arg for arg in RULE if arg != "--quiet"]
    code, out, err = agentgym_command(*args, "-n", 2, "--out", "x")
    assert code == 0
    assert "2/2 episodes" in err
    assert "2/2" not in out.splitlines()[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env", "agentgym/Webshop-v0", "--policy", "rule"], "did you mean"),
        (["--env", "nowhere/Nothing-v0", "--policy", "rule"], "no env 'nowhere/Nothing-v0'"),
        (["--env", "nomod:x/Nothing-v0", "--policy", "rule"], "can't import 'nomod'"),
        (["--env", ENV], "say who plays"),
        (["--env", ENV, "--model", "m"], "say who plays"),
        (["--env", ENV, "--policy", "rule", "--model", "m"], "either --policy"),
        (["--env", ENV, "--policy", "rule", "--extra-body", "a=1"], "--extra-body goes with"),
        (["--env", ENV, "--policy", "rule", "--no-request-seed"], "--no-request-seed goes with"),
        (["--env", ENV, "--policy", "rule", "--tokenizer", "t"], "--tokenizer is for a model"),
        (
            [
                *("--env", ENV, "--base-url", "http://localhost:1/v1", "--model", "m"),
                *("--template-kwargs", "enable_thinking=false"),
            ],
            "tokens.tokenizer: is missing",
        ),
        (
            [
                *("--env", ENV, "--base-url", "http://localhost:1/v1", "--model", "m"),
                *("--tokenizer", "/nonexistent"),
            ],
            "can't load the tokenizer '/nonexistent'",
        ),
        (["--env", ENV, "--policy", "wise"], "it has oracle, random, rule"),
        (["--env", ENV, "--policy", "rule", "--split", "nope"], "'train', 'validation', 'test'"),
        (["--env", ENV, "--policy", "rule", "--task", "webshop/human/x"], "no task"),
        (["--env", ENV, "--policy", "rule", "--task", "t", "-n", "2"], "either -n or --task"),
        (["--env", ENV, "--policy", "rule", "-n", "0"], "must be 1 to"),
        (["--env", ENV, "--policy", "rule", "-n", "999999"], "several rollouts"),
        (["--env", ENV, "--policy", "rule", "--samples", "0"], "--samples"),
        (["--env", ENV, "--policy", "rule", "--env-kwargs", "colour=1"], "no parameter 'colour'"),
        (["--env", ENV, "--policy", "rule", "--env-kwargs", "max_turns=0"], "max_turns"),
        (["--env", ENV, "--policy", "rule", "--env-kwargs", "max_turns"], "KEY=VALUE"),
        (["--env", ENV, "--policy", "rule", "--env-kwargs", "a=1", "a=2"], "given twice"),
        (["--env", ENV, "--policy", "rule", "--env-kwargs", "data=no/such"], "no/such"),
        (["--env", ENV, *MODEL, "--temperature", "-1"], "temperature: .*got -1.0"),
        (["--env", ENV, *MODEL, "--max-tokens", "0"], "max_tokens"),
        (["--env", ENV, "--policy", "rule", "--concurrency", "0"], "concurrency"),
        (["--env", ENV, "--policy", "rule", "--resume"], "--resume needs --out"),
        (["--env", ENV, "--policy", "rule", "--resume", "--out", "x"], "no run to go on with"),
        (["--env", ENV, "--policy", "rule", "--retry-masked"], "goes with --resume"),
        (["--env", ENV, "--base-url", "localhost:1", "--model", "m"], "http://"),
        (["--env", ENV, "--base-url", "http://[::1", "--model", "m"], "no usable URL"),
        (["--env", ENV, "--base-url", "http://h:port/v1", "--model", "m"], "no usable URL"),
        (["--env", ENV, "--base-url", "http://h:99999/v1", "--model", "m"], "no usable URL"),
        (["--env", ENV, "--policy", "rule", "--out", "x" * 300], "can't use x+ as a folder: File"),
        (["--env", ENV, "--policy", "rule", "--out", "/dev/null"], "can't use /dev/null"),
        (
            [*("--env", ENV, "--policy", "rule", "--split", "test", "--env-kwargs", "split=train")],
            "split is given twice",
        ),
        (["--env", ENV, "--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "is the server"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(agentgym_command, tmp_path, args, message):
    code, out, err = agentgym_command("rollout", *args)
    assert (code, out) == (1, "")
    assert_one_line(err)
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


HILO = """
import gymnasium

from agentgym.testing.envs import CounterEnv


class HiLo(CounterEnv):
    pass


gymnasium.register("HiLo-v0", entry_point="hilo:HiLo")
"""


def test_env_of_a_module_in_the_current_directory(tmp_path):
    (tmp_path / "hilo.py").write_text(HILO)
    # As the console script does it: without the current directory on the path.
    code = "import sys; sys.path.remove(''); from agentgym.cli import main; sys.exit(main())"
    args = ["rollout", "--env", "hilo:HiLo-v0", "--policy", "random", "-n", "1", "--quiet"]
    found = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(agentgym.__file__).parents[1])},
    )
    assert (found.returncode, found.stderr) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("hilo-v0-")


def test_folder_in_use_is_refused_without_resume(agentgym_command, tmp_path):
    agentgym_command(*RULE, "-n", 1, "--out", "x")
    before = (tmp_path / "x" / "traces.jsonl").read_text()
    code, _, err = agentgym_command(*RULE, "-n", 1, "--out", "x")
    assert code == 1
    assert_one_line(err)
    assert "--resume" in err
    assert (tmp_path / "x" / "traces.jsonl").read_text() == before


def test_env_kwargs_given_twice_add_up(agentgym_command, tmp_path):
    agentgym_command(*RULE, "--env-kwargs", "max_turns=2", "-n", 1, "--out", "x")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["env_kwargs"] == {"num_products": 60, "max_turns": 2}


def test_not_a_number_is_no_parameter(agentgym_command):
    args = ["rollout", "--env", ENV, "--policy", "rule", "--env-kwargs", "num_products=NaN"]
    code, _, err = agentgym_command(*args)
    assert code == 1
    assert "num_products='NaN'" in err


def test_file_system_error_is_one_line(agentgym_command, monkeypatch):
    def full(args):
        raise OSError(28, "No space left on device", "x/summary.json")

    monkeypatch.setattr("agentgym.cli.envs.run", full)
    code, _, err = agentgym_command("envs")
    assert (code, err) == (1, "agentgym: error: x/summary.json: No space left on device\n")


# --- train: only what it is asked -------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env", "agentgym/Webshop-v0", "--model", "nowhere/nothing"], "did you mean"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_train_refuses_before_it_loads_a_model(agentgym_command, tmp_path, args, message):
    pytest.importorskip("trl")
    code, out, err = agentgym_command("train", *args)
    assert (code, out) == (1, "")
    assert_one_line(err)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_demo_into_what_is_no_folder_is_one_line(agentgym_command, tmp_path):
    pytest.importorskip("trl")
    (tmp_path / "file").write_text("")
    code, _, err = agentgym_command("demo", "--out", "file")
    assert code == 1
    assert_one_line(err)


# --- resume -----------------------------------------------------------------------------------


def test_resume_runs_exactly_what_is_missing(agentgym_command, tmp_path):
    """H05: killed at 12 of 20, the 12th line torn."""
    agentgym_command(*RULE, "-n", 20, "--out", "x")
    path = tmp_path / "x" / "traces.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:11]) + lines[11][:100])
    (tmp_path / "x" / "summary.json").unlink()
    code, out, _ = agentgym_command(*RULE, "-n", 20, "--out", "x", "--resume")
    assert code == 0
    assert "20 (20 scored, 20 tasks)" in out
    traces = list(read_traces(path, on_torn=lambda number: None))
    assert len(traces) == len({trace.task_id for trace in traces}) == 20
    kept = [json.loads(line)["trace_id"] for line in lines[:11]]
    assert [trace.trace_id for trace in traces[:11]] == kept


def test_resume_may_ask_for_more_and_with_nothing_to_do_only_reports(agentgym_command, tmp_path):
    agentgym_command(*RULE, "-n", 2, "--out", "x")
    agentgym_command(*RULE, "-n", 4, "--out", "x", "--resume")
    before = (tmp_path / "x" / "traces.jsonl").read_text()
    code, out, _ = agentgym_command(*RULE, "-n", 4, "--out", "x", "--resume")
    assert code == 0
    assert "4 (4 scored" in out
    assert (tmp_path / "x" / "traces.jsonl").read_text() == before


def test_run_killed_before_its_first_episode_can_be_gone_on_with(agentgym_command, tmp_path):
    agentgym_command(*RULE, "-n", 2, "--out", "x")
    for name in ("traces.jsonl", "summary.json"):
        (tmp_path / "x" / name).unlink()
    code, out, _ = agentgym_command(*RULE, "-n", 2, "--out", "x", "--resume")
    assert code == 0
    assert "2 (2 scored" in out


@pytest.mark.parametrize("text", [None, "[]", "{", "null", '{"limits": 3}'])
def test_resume_of_a_folder_that_is_no_run_is_refused(agentgym_command, tmp_path, text):
    (tmp_path / "x").mkdir()
    if text is not None:
        (tmp_path / "x" / "config.json").write_text(text)
    code, _, err = agentgym_command(*RULE, "-n", 2, "--out", "x", "--resume")
    assert code == 1
    assert_one_line(err)
    assert "another --out" in err


def test_resume_under_another_turn_limit_is_refused(agentgym_command):
    agentgym_command(*RULE, "-n", 2, "--max-turns", 2, "--out", "x")
    code, _, err = agentgym_command(*RULE, "-n", 4, "--out", "x", "--resume")
    assert code == 1
    assert "max_turns=2, this is None" in err


def test_resume_of_another_run_is_refused(agentgym_command):
    agentgym_command(*RULE, "-n", 2, "--out", "x")
    code, _, err = agentgym_command(*RULE, "-n", 2, "--seed", 7, "--out", "x", "--resume")
    assert code == 1
    assert_one_line(err)
    assert "seed=0, this is 7" in err


# --- with a server ----------------------------------------------------------------------------


def says(text: str):
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    choices = [{"message": message, "finish_reason": "stop"}]
    return lambda body: (200, {"choices": choices, "usage": usage})


def with_server(server, *more: str) -> list[str]:
    return [*SMALL, "--base-url", server.url, "--model", "m", *more]


def test_rollout_against_a_server(agentgym_command, model_server, tmp_path):
    server = model_server(says("search[shoes]"))
    args = ["-n", "3", "--max-turns", "2", "--temperature", "0.5", "--max-tokens", "16"]
    args += ["--extra-body", "tool_choice=required"]
    code, out, err = agentgym_command(*with_server(server, *args, "--out", "x"))
    assert (code, err) == (0, "")
    assert len(server.bodies) == 1 + 6, "one request to see that the server is right, then turns"
    assert {body["temperature"] for body in server.bodies[1:]} == {0.5}
    assert all(body["tools"] for body in server.bodies)
    assert {body["tool_choice"] for body in server.bodies} == {"required"}
    assert "60 in (0 cached), 24 out" in out
    for trace in read_traces(tmp_path / "x" / "traces.jsonl"):
        assert trace.policy["model"] == "m"
        assert [turn.usage.completion_tokens for turn in trace.turns] == [4, 4]


def test_text_mode_sends_no_tools(agentgym_command, model_server):
    server = model_server(says("search[shoes]"))
    agentgym_command(*with_server(server, "-n", "1", "--max-turns", "1", "--tool-calls", "text"))
    assert not any("tools" in body for body in server.bodies)


def test_no_request_seed_sends_none(agentgym_command, model_server, tmp_path):
    server = model_server(says("search[shoes]"))
    args = ["-n", "2", "--max-turns", "1"]
    agentgym_command(*with_server(server, *args, "--out", "x"))
    assert all("seed" in body for body in server.bodies[1:])
    server = model_server(says("search[shoes]"))
    agentgym_command(*with_server(server, *args, "--no-request-seed", "--out", "y"))
    assert len(server.bodies) == 3
    assert not any("seed" in body for body in server.bodies)
    assert not json.loads((tmp_path / "y" / "config.json").read_text())["request_seed"]


def test_wrong_model_is_one_line_before_any_episode(agentgym_command, model_server, tmp_path):
    error = {"error": {"message": "The model `m` does not exist."}}
    server = model_server(lambda body: (404, error))
    code, out, err = agentgym_command(*with_server(server))
    assert (code, out) == (1, "")
    assert_one_line(err)
    assert "'m'" in err
    assert server.url in err
    assert list(tmp_path.iterdir()) == []


def test_server_that_dies_midway_stops_the_run_and_keeps_what_there_is(
    agentgym_command, model_server, tmp_path
):
    def answer(body):
        if len(server.bodies) > 7:
            return 400, {"error": {"message": "out of order"}}
        return says("search[shoes]")(body)

    server = model_server(answer)
    args = ["-n", "60", "--max-turns", "2", "--concurrency", "1", "--out", "x"]
    code, _, err = agentgym_command(*with_server(server, *args))
    assert code == 1
    assert_one_line(err)
    assert "out of order" in err
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert (summary["n_scored"], summary["failures"]["infra"] >= 20) == (3, True)
    server_again = model_server(says("search[shoes]"))
    code, out, _ = agentgym_command(*with_server(server_again, *args, "--resume", "--retry-masked"))
    assert code == 0
    assert "60 (60 scored, 60 tasks)" in out


def test_key_reaches_the_server_and_no_file(agentgym_command, model_server, tmp_path, monkeypatch):
    """J10."""
    monkeypatch.setenv("SOME_KEY", "sk-test-123456")
    server = model_server(says("search[sk-test-123456]"))
    url = server.url.replace("http://", "http://user:pa55word@")
    args = ["-n", "1", "--max-turns", "1", "--api-key-env", "SOME_KEY", "--out", "x"]
    code, out, err = agentgym_command(*SMALL, "--base-url", url, "--model", "m", *args)
    assert code == 0
    written = "".join(p.read_text() for p in (tmp_path / "x").iterdir())
    for secret in ("sk-test-123456", "pa55word"):
        assert secret not in written + out + err


def test_secrets_of_request_fields_and_url_reach_no_file(
    agentgym_command, model_server, tmp_path, monkeypatch
):
    """J10."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-123456")
    server = model_server(says("search[s3cret-9]"))
    url = f"{server.url}?key=s3cret-9"
    args = ["-n", "1", "--max-turns", "1", "--out", "x", "--extra-body", "user=sk-test-123456"]
    args += ["proxy_token=t0ken-of-mine"]
    code, out, err = agentgym_command(*SMALL, "--base-url", url, "--model", "m", *args)
    assert code == 0
    written = "".join(p.read_text() for p in (tmp_path / "x").iterdir())
    for secret in ("sk-test-123456", "s3cret-9", "t0ken-of-mine"):
        assert secret not in written + out + err
    code, out, _ = agentgym_command(*SMALL, "--base-url", url, "--model", "m", *args, "--resume")
    assert code == 0, "the redacted config is the same run's"


def test_refused_caller_stops_the_run_and_says_how_to_go_on(
    agentgym_command, model_server, tmp_path
):
    """E11."""

    def answer(body):
        if len(server.bodies) > 4:
            return 429, {"error": {"message": "pay", "code": "insufficient_quota"}}
        return says("search[shoes]")(body)

    server = model_server(answer)
    args = ["-n", "40", "--max-turns", "1", "--concurrency", "1", "--out", "x"]
    code, _, err = agentgym_command(*with_server(server, *args))
    assert code == 1
    assert_one_line(err)
    assert "no credit left" in err
    assert "--out x --resume --retry-masked" in err
    assert len(server.bodies) < 20
    again = with_server(model_server(says("search[shoes]")), *args, "--resume", "--retry-masked")
    code, out, _ = agentgym_command(*again)
    assert code == 0
    assert "40 (40 scored, 40 tasks)" in out


def test_reason_of_masked_episodes_is_on_the_screen(agentgym_command, model_server):
    def answer(body):
        if len(server.bodies) > 1:
            return 400, {"error": {"message": "out of order"}}
        return says("search[shoes]")(body)

    server = model_server(answer)
    code, out, _ = agentgym_command(*with_server(server, "-n", "3", "--out", "x"))
    assert code == 1
    assert re.search("masked by +3 × EndpointError: .*out of order", out)


def test_interrupt_keeps_what_has_finished_and_exits_130(tmp_path, model_server):
    release = threading.Event()

    def answer(body):
        if len(server.bodies) > 5:
            release.wait(60)
        return says("search[shoes]")(body)

    server = model_server(answer)
    args = with_server(server, "-n", "30", "--max-turns", "1", "--concurrency", "2", "--out", "x")
    args += ["--on-interrupt", "stop"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentgym", *args],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(agentgym.__file__).parents[1])},
    )
    path = tmp_path / "x" / "traces.jsonl"
    while process.poll() is None and not (
        path.exists() and path.read_text().count("\n") >= 4 and len(server.bodies) > 5
    ):
        time.sleep(0.01)  # leaves the processor to the process waited for
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    release.set()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "--resume" in err
    count = len(list(read_traces(path)))
    assert f"{count} ({count} scored" in out
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["n_total"] == count


def test_command_works_inside_a_program_that_has_run_a_loop(agentgym_command):
    asyncio.run(asyncio.sleep(0))
    assert agentgym_command(*RULE, "-n", 1, "--out", "x")[0] == 0
    assert agentgym_command(*RULE, "-n", 1, "--out", "y")[0] == 0
