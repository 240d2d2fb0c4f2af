"""Ctrl-C in plain code: clean, and nothing that has finished is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from agentgym.traces import read_traces

SCRIPT = """
import asyncio, sys
from agentgym.clients import ScriptedClient
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.testing.envs import CounterEnv
from agentgym.traces import TraceWriter

submit = {"role": "assistant", "tool_calls": [{"function": {"name": "submit", "arguments": ""}}]}
released = []

class Client(ScriptedClient):
    async def release(self, session):
        released.append(session)

async def policy(messages, info):
    if info["task_id"] != "counter/1":
        print("waiting", flush=True)
        await asyncio.get_running_loop().create_future()
    return submit

engine = Engine(CounterEnv, client=Client(policy), writer=TraceWriter(sys.argv[1]))
try:
    engine.run_blocking([EpisodeRequest(task_id=f"counter/{k}") for k in (1, 2)])
except KeyboardInterrupt:
    print("stopped", len(released), flush=True)
"""


@pytest.mark.thorough
def test_interrupt_cancels_waits_and_keeps_finished_traces(tmp_path):
    path = tmp_path / "t.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waiting\n"
    while not path.exists() or not path.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("stopped 2\n", "", 0)
    assert [trace.task_id for trace in read_traces(path)] == ["counter/1"]
