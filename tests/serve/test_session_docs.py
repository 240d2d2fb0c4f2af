"""The page's examples in other languages run as they stand, against the service they talk about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from session_stage import served

from agentgym.serve.app import create_app
from agentgym.serve.config import ServiceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text(encoding="utf-8")
THERE = "http://127.0.0.1:8800"


@pytest.fixture(scope="module")
def url():
    with served(create_app(ServiceConfig())) as found:
        yield found


def block(language, containing):
    (found,) = [
        text
        for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        if containing in text
    ]
    return found


def run(command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_episode_in_curl(url):
    out = run(["bash", "-e"], block("sh", "curl").replace(THERE, url))
    answers = []
    decoder, at = json.JSONDecoder(), 0
    while at < len(out.rstrip()):
        answer, at = decoder.raw_decode(out, at)
        answers.append(answer)
        at += len(out[at:]) - len(out[at:].lstrip())
    first, last, trace = answers
    assert "no tool 'look_around'" in first["observation"][0]["content"]
    assert last["terminated"] is True
    assert trace["verdict"]["reward"] == last["reward"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_episode_in_javascript(url):
    script = block("js", "fetch").replace(THERE, url)
    out = run(["node", "--input-type=module"], script)
    assert re.match(r"-?[\d.]+ false \{", out)


def test_the_settings_shown_are_those_there_are():
    import tomllib

    from agentgym.serve.session_limits import SessionLimits

    shown = tomllib.loads(block("toml", "[sessions]"))["sessions"]
    assert SessionLimits(**shown) == SessionLimits()
