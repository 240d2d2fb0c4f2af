"""What an operating system and a network do to a run: clocks that jump, answers that get lost."""

from __future__ import annotations

import ast
import asyncio
import itertools
import time
from contextlib import aclosing
from pathlib import Path

import pytest

import agentgym
from agentgym.client import Endpoint
from agentgym.clients import ChatClient
from agentgym.rollout import Engine, EpisodeRequest, Limits, Retry, summarize
from agentgym.testing.envs import CounterEnv
from agentgym.testing.faulty import FAULT_KINDS, FaultProxy
from agentgym.testing.quirky import QuirkyServer, answer

PACKAGE = Path(agentgym.__file__).parent
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
WALL_CLOCK_IS_MEANT = {
    "evaluate/harness.py": "EvaluationResult.created_at",
    "report/run/evaluations.py": "when the page was made",
    "report/run/record.py": "how long ago a run last wrote",
    "report/run/rollouts.py": "how long ago a run last wrote",
    "report/viewer/shelf.py": "a number that no earlier viewer had",
    "rollout/cluster_parcel.py": "Trace.started_at",
    "serve/accounts.py": "the day that a quota is for",
    "serve/job_player.py": "when a job ended",
    "serve/jobs.py": "when a job came",
    "serve/session_episode.py": "Trace.started_at",
    "serve/session_state.py": "when a session was made",
    "serve/store.py": "when a row was written, which outlives a process",
    "testing/fleet/http.py": "a completion's date, as OpenAI has it",
    "cli/_inputs.py": "the name of a run's folder",
    "clients/failures.py": "a date that a server asks to wait for",
    "rollout/episode.py": "Trace.started_at",
    "train/starts.py": "when a run was started, resumed and ended",
    "train/async_worker.py": "TRL's own clock for a worker's heartbeat and a row's age",
    "wrappers/trace_logger.py": "Trace.started_at",
}
"""Files that may look at the wall clock, and what for; a deadline is never a reason."""


def wall_clocks_of(path: Path) -> set[str]:
    """The wall clocks that a file reads."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            found |= {clock for clock in WALL_CLOCKS if name.endswith(clock)}
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{name.name}" for name in node.names} & WALL_CLOCKS
    return found


def test_no_deadline_goes_by_the_wall_clock():
    readers = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if wall_clocks_of(path)
    }
    unknown = readers - WALL_CLOCK_IS_MEANT.keys()
    assert not unknown, "use time.monotonic for durations, or say here what the date is for"
    assert {name.split("/")[0] for name in readers} >= {"clients", "rollout"}  # it sees something


def test_audit_notices_a_wall_clock(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("import time\ndeadline = time.time() + 5\n")
    assert wall_clocks_of(path) == {"time.time"}
    path.write_text("from time import time\n")
    assert wall_clocks_of(path) == {"time.time"}
    path.write_text("import time\ntime.monotonic()\n")
    assert wall_clocks_of(path) == set()


def play(url: str, count: int = 12, **fields):
    """Episodes against a server, with little patience."""
    given = {"timeout_s": 0.3, "deadline_s": 30.0, "max_retries": 10, **fields}
    endpoint = Endpoint(base_url=url, model="m", **given)

    async def main():
        limits = Limits(concurrency=4, episode_timeout_s=30.0, init_timeout_s=10.0)
        client = ChatClient(endpoint, sleep=lambda seconds: asyncio.sleep(seconds / 100))
        engine = Engine(CounterEnv, client=client, limits=limits, retry=Retry())
        async with engine, aclosing(client):
            return [t async for t in engine.run(EpisodeRequest(seed=k) for k in range(count))]

    return asyncio.run(main())


SUBMIT = answer(
    None,
    message={
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
        ]
    },
    finish_reason="tool_calls",
)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0, 1e9])
def test_clock_that_jumps_ends_no_episode_and_holds_up_none(monkeypatch, jump_s):
    steps = itertools.count()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s * (next(steps) % 2))
    with QuirkyServer(
        (429, {"error": {"message": "busy"}}, {"Retry-After": "0"}), SUBMIT
    ) as server:
        traces = play(server.url)
    assert [trace.failure_class for trace in traces if not trace.scored] == []
    assert {trace.terminated for trace in traces} == {True}
    assert max(seconds for trace in traces for seconds in trace.stage_s.values()) < 3600


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.thorough] * (k == "half_open")) for k in FAULT_KINDS],
)
def test_no_kind_of_fault_becomes_a_score_or_is_counted_twice(kind):
    with QuirkyServer(SUBMIT) as server, FaultProxy(server.url, {kind: 0.3}, seed=5) as proxy:
        # Only what is never answered has to run into the limit; a slow machine's answers must not.
        traces = play(proxy.url, timeout_s=2.0 if kind == "half_open" else 20.0)
    counted = proxy.counted["m"]
    assert proxy.faults[kind] > 0
    assert len({trace.seed for trace in traces}) == len(traces) == 12
    assert all(trace.terminated and trace.scored for trace in traces)
    usage = summarize(traces).usage["policy"]
    assert usage.calls == counted.delivered == 12
    assert usage.prompt_tokens == counted.delivered_usage.prompt_tokens
    assert usage.retries == counted.asked - counted.delivered
    assert usage.failed_calls == 0


@pytest.mark.parametrize("kind", [k for k in FAULT_KINDS if k not in ("delay", "drip")])
def test_server_that_only_fails_scores_nothing(kind):
    with QuirkyServer(SUBMIT) as server, FaultProxy(server.url, {kind: 1.0}) as proxy:
        traces = play(proxy.url, 2, max_retries=1, timeout_s=0.1)
    assert {(trace.reward, trace.failure_class) for trace in traces} == {(None, "infra")}
    usage = summarize(traces).usage["policy"]
    assert (usage.failed_calls, usage.prompt_tokens) == (2, 0)
