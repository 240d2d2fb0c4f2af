"""`agentgym rollout --tokenizer`: a policy that is asked in token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from token_policy import counter_server, saved_tokenizer

from agentgym.cli import main
from agentgym.traces import read_traces

pytest.importorskip("transformers")

ENV = "serving:serving/Counter-v0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return saved_tokenizer(folder)


def test_traces_of_a_run_hold_the_ids(tokenizer, folder, tmp_path, capsys):
    args = ("rollout", "--env", ENV, "-n", "3", "--max-tokens", "400", "--out", str(tmp_path / "x"))
    tokens = ("--tokenizer", str(folder), "--template-kwargs", "enable_thinking=false")
    with counter_server(tokenizer) as server:
        where = ("--base-url", server.url, "--model", "policy")
        assert main([*args, *where, *tokens]) == 0
    err = capsys.readouterr().err
    assert f"in the ids of {folder}" in err
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    turns = [turn for trace in traces for turn in trace.turns]
    sent = {tuple(request["prompt"]) for request in server.requests[2:]}  # after the preflight
    assert {turn.prompt_ids for turn in turns} == sent
    assert all(len(turn.completion_ids) == len(turn.logprobs) for turn in turns)
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    expected = {"tokenizer": str(folder), "template_kwargs": {"enable_thinking": False}}
    assert config["roles"]["policy"]["tokens"] == expected


def test_server_without_ids_is_one_line_before_any_episode(tokenizer, folder, tmp_path, capsys):
    args = ("rollout", "--env", ENV, "-n", "3", "--out", str(tmp_path / "x"))
    with counter_server(tokenizer) as server:
        server.gives_ids = False
        where = ("--base-url", server.url, "--model", "policy", "--tokenizer", str(folder))
        assert main([*args, *where]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no token ids" in err
    assert not (tmp_path / "x").exists()
