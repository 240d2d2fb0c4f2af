"""The page's requests run as they stand, in its order, against a real service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from service_process import ServiceProcess

from agentgym.serve.access import Tokens
from agentgym.serve.config import read_config
from agentgym.testing.quirky import QuirkyServer, answer

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")


def blocks(language, containing):
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [text for text in found if containing in text]


@pytest.mark.e2e
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_walk_through_in_curl(tmp_path):
    shown = "\n".join(blocks("sh", "curl"))
    with QuirkyServer(answer("search[shoes]")) as policy, ServiceProcess(tmp_path) as service:
        script = shown.replace("http://127.0.0.1:8800", service.url)
        script = script.replace("http://127.0.0.1:8000/v1", policy.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail"],
            input=script,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    traces = [json.loads(line) for line in lines[:4]]
    assert [cursor for cursor, _, _ in traces] == [1, 2, 3, 4]
    assert len({task for _, task, _ in traces}) == 2
    assert all(isinstance(reward, float | int) for _, _, reward in traces)
    assert json.loads(lines[4]) == [4, "finished", True, 2]
    counts = json.loads(lines[5])
    assert (counts["requested"], counts["finished"], counts["scored"]) == (4, 4, 4)
    assert lines[6] == "finished"  # a job that is over stays as it is
    assert json.loads(lines[7])[1] == "ready"
    assert lines[8:] == ['"step-18"', '"paused"', "[]"]


def test_files_shown_are_ones_that_the_service_takes(tmp_path):
    (tokens,) = blocks("toml", "[trainer]")
    (tmp_path / "tokens.toml").write_text(tokens.replace("…", "-"), encoding="utf-8")
    read = Tokens.read(tmp_path / "tokens.toml", environ={})
    assert read.named("evaluation").quota.usd_per_day == 20.0
    (config,) = blocks("toml", "[keeping]")
    assert tomllib.loads(config)["token_file"]
    config = config.replace("/etc/agentgym", str(tmp_path))
    (tmp_path / "service.toml").write_text(config, encoding="utf-8")
    assert read_config(tmp_path / "service.toml", {}).limits.eval_concurrency == 128


def test_numbers_in_the_table_are_the_defaults():
    from agentgym.serve.access import Quota
    from agentgym.serve.allowed import Allowed
    from agentgym.serve.config import Keeping, ServiceConfig
    from agentgym.types import MAX_NESTING

    config = ServiceConfig()
    assert (config.max_body_bytes, MAX_NESTING, config.drain_s) == (16 * 2**20, 100, 60)
    assert (Quota().open_jobs, Quota().episodes_per_job) == (32, 100_000)
    assert (Allowed().policy_hosts, Allowed().largest_number) == (("loopback",), 100_000)
    assert (Keeping().lease_s, Keeping().ended_job_s) == (600, 86400)
    assert Keeping().ended_jobs == 10_000
