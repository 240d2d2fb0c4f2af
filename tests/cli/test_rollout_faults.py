"""`agentgym rollout` while everything around it goes wrong.

Calls fail in every role, the process is killed at any moment, the disk is full: nothing is lost,
nothing counts twice, no fault becomes a score, and the run's own count of tokens is the server's.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fault_desk import ROLES, answer, roles
from killable import Command

from agentgym.testing.faulty import FaultProxy, evenly
from agentgym.testing.quirky import QuirkyServer
from agentgym.traces import TraceFile, read_traces

pytestmark = pytest.mark.e2e

SHARE = 0.2
TASKS = 6


@pytest.fixture
def server():
    with QuirkyServer(answer) as server:
        yield server


class Run:
    """A run in a folder, begun and gone on with as often as need be."""

    def __init__(self, folder: Path, url: str, *more: object, timeout_s: float = 0.5) -> None:
        self.folder = folder
        self.traces = folder / "x" / "traces.jsonl"
        self.calls = folder / "calls.jsonl"
        fields = {"timeout_s": timeout_s, "deadline_s": 60.0, "max_retries": 12}
        (folder / "roles.toml").write_text(roles(url, **fields))
        self.args = [
            *("rollout", "--env", "fault_desk:FaultDesk-v0", "--roles", "roles.toml", "--quiet"),
            *("--out", "x", "-n", TASKS, *more),
        ]

    def begin(self, *more: object, largest_file: int | None = None) -> Command:
        """Begin it, or go on with it if it was begun before."""
        resume = ["--resume"] if (self.folder / "x" / "config.json").exists() else []
        return Command(*self.args, *resume, *more, folder=self.folder, largest_file=largest_file)

    def lines(self) -> int:
        """Lines of all files so far."""
        files = [self.traces, self.calls, self.folder / "x" / "unjudged.jsonl"]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def summary(self) -> dict:
        return json.loads((self.folder / "x" / "summary.json").read_text())

    def recorded(self) -> list[dict]:
        """The calls on record, torn lines left out."""
        found = []
        for line in self.calls.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def check(self, samples: int = 1) -> None:
        """Each episode is there exactly once, whole, and with the score that it deserves."""
        traces = list(read_traces(self.traces, on_torn=lambda number: None))
        episodes = Counter((trace.task_id, trace.sample) for trace in traces)
        assert set(episodes.values()) == {1}
        assert len(episodes) == TASKS * samples
        assert {trace.reward for trace in traces} == {1.0}
        assert {len(trace.turns) for trace in traces} == {3}


def tokens(usage: dict) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def test_a_fifth_of_all_calls_faulty_changes_no_score_and_no_count(tmp_path, server):
    with FaultProxy(server.url, {}, seed=4, retry_after_s=0.01) as proxy:
        # An answer that comes too late is delivered and counted by nobody.
        run = Run(tmp_path, proxy.url, "--samples", 2, timeout_s=1.0)
        command = run.begin()
        assert command.until(lambda: "critic" in proxy.counted)  # the last preflight's
        proxy.shares = evenly(SHARE)
        assert command.wait() == 0, command.output
    assert proxy.faults.total() > 5
    run.check(samples=2)
    for model, role in ROLES.items():
        counted, ours = proxy.counted[model], run.summary()["usage"][role]
        delivered = counted.delivered_usage
        assert tokens(ours) == (delivered.prompt_tokens, delivered.completion_tokens)
        assert counted.executed >= counted.delivered
        hello = 1  # the preflight's
        assert ours["calls"] == counted.delivered - hello
        assert ours["failed_calls"] == 0


def killed_until_done(
    run: Run, proxy: FaultProxy, rng: random.Random, *, longest: int = 16
) -> tuple[int, int]:
    """Begin a run again and again, and kill it, until it is through.

    Args:
        run: The run.
        proxy: Between it and the server.
        rng: When it is killed.
        longest: Lines or calls after which it is killed at the latest.

    Returns:
        Kills, and starts.
    """
    code, kills, starts = 1, 0, 0
    while code != 0:
        starts += 1
        assert starts < 80
        command = run.begin()
        # At the end of a write, or in the middle of a call.
        progress = rng.choice([run.lines, lambda: asked(proxy)])
        until = progress() + rng.randint(1, longest)
        if command.until(lambda progress=progress, until=until: progress() >= until):
            command.kill()
            kills += 1
        else:
            code = command.wait()  # 1 where a fault met the preflight
    return kills, starts


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_goes_on_and_pays_for_nothing_twice(tmp_path, server, seed):
    crashes = tmp_path / "crashes"
    crashes.mkdir()
    with FaultProxy(server.url, evenly(SHARE), seed=seed, retry_after_s=0.01) as proxy:
        more = ("--samples", 2, "--record", "calls.jsonl", "--env-kwargs", f"crashes={crashes}")
        run = Run(tmp_path, proxy.url, *more)
        kills, starts = killed_until_done(run, proxy, random.Random(seed))
    assert kills > 3
    run.check(samples=2)
    check_paid_once(run)
    torn = len(run.calls.read_bytes().splitlines()) - len(run.recorded())
    for model, role in ROLES.items():
        ours = run.summary()["usage"][role]["calls"]
        # What was delivered and not seen any more: calls in flight at a kill, and preflights.
        unseen = proxy.counted[model].delivered - ours
        assert 0 <= unseen <= starts + torn + kills * 2 * TASKS


@pytest.mark.parametrize("recorded", [True, False])
def test_groups_that_are_judged_together_are_whole_after_any_number_of_kills(
    tmp_path, server, recorded
):
    with FaultProxy(server.url, evenly(SHARE), seed=7, retry_after_s=0.01) as proxy:
        more = ("--samples", 3, "--env-kwargs", "ranks=true")
        record = ("--record", "calls.jsonl") if recorded else ()
        run = Run(tmp_path, proxy.url, *more, *record)
        kills, _ = killed_until_done(run, proxy, random.Random(7), longest=60)
    assert kills > 1
    entries = TraceFile(run.traces, on_torn=lambda number: None).latest().values()
    assert Counter(entry.task_id for entry in entries).total() == TASKS * 3
    assert {entry.reward for entry in entries} == {1.0}
    attempts = {trace.trace_id for trace in read_traces(run.traces, on_torn=lambda number: None)}
    assert len(attempts) == TASKS * 3  # judged again, perhaps, and never rolled out again
    if recorded:
        check_all_told(run)


def asked(proxy: FaultProxy) -> int:
    return sum(counted.asked for counted in proxy.counted.values())


def check_paid_once(run: Run) -> None:
    """What was answered was asked for once per attempt, and every recorded token is in the sum."""
    calls = run.recorded()
    asked = Counter((c["role"], c["episode"], c["request"]) for c in calls if "completion" in c)
    attempts = Counter(
        f"{trace.task_id}@{trace.seed}.{trace.sample}"
        for trace in read_traces(run.traces, on_torn=lambda number: None)
        for _ in (trace, *trace.earlier)
    )
    # An attempt that broke down is asked for anew; the crash itself may have been cut by a kill.
    for (role, episode, _), count in asked.items():
        assert count <= attempts[episode] + (role == "simulator")
    check_all_told(run)


def check_all_told(run: Run) -> None:
    """Every recorded token is in the sum, once."""
    recorded: Counter[str] = Counter()
    for call in run.recorded():
        for role, usage in call["spent"].items():
            recorded[role] += usage["prompt_tokens"]
    ours = {role: usage["prompt_tokens"] for role, usage in run.summary()["usage"].items()}
    assert ours == recorded


def test_killed_while_judging_it_rolls_nothing_out_again(tmp_path, server):
    with FaultProxy(server.url, {}, only={"critic"}) as proxy:
        run = Run(tmp_path, proxy.url)
        unjudged = tmp_path / "x" / "unjudged.jsonl"
        command = run.begin()
        assert command.until(lambda: "critic" in proxy.counted)  # the preflight's
        proxy.shares = {"half_open": 1.0}  # no verdict comes any more
        assert command.until(lambda: unjudged.exists() and run.lines() >= TASKS)
        command.kill()
        judged = run.lines() - TASKS
        players, customers = (proxy.counted[model].asked for model in ("player", "customer"))
        proxy.shares = {}
        command = run.begin()
        assert command.wait() == 0, command.output
    run.check()
    assert proxy.counted["player"].asked == players + 1  # the preflight's
    assert proxy.counted["customer"].asked == customers + 1
    assert judged == 0
    assert not unjudged.exists()


def test_recording_of_a_run_that_was_killed_replays_to_the_same_traces(tmp_path, server):
    run = Run(tmp_path, server.url, "--record", "calls.jsonl")
    command = run.begin()
    assert command.until(lambda: run.lines() >= 9)
    command.kill()
    assert run.begin().wait() == 0
    replayed = Command(
        *("rollout", "--env", "fault_desk:FaultDesk-v0", "--roles", "roles.toml", "--quiet"),
        *("--out", "y", "-n", TASKS, "--replay", "calls.jsonl"),
        folder=tmp_path,
    )
    assert replayed.wait() == 0, replayed.output
    again = {trace.task_id: trace for trace in read_traces(tmp_path / "y" / "traces.jsonl")}
    for trace in read_traces(run.traces, on_torn=lambda number: None):
        assert again[trace.task_id].messages == trace.messages
        assert again[trace.task_id].usage == trace.usage


def test_full_disk_is_one_line_and_the_run_goes_on_where_there_is_room(tmp_path, server):
    run = Run(tmp_path, server.url, "--samples", 2, "--concurrency", 2)
    command = run.begin(largest_file=40_000)
    assert command.wait() == 1
    (line,) = command.output.splitlines()
    assert re.search(r"can't write to x/\w+.jsonl: File too large; the lines before", line)
    whole = list(read_traces(run.traces))
    assert 0 < len(whole) < TASKS * 2
    command = run.begin()
    assert command.wait() == 0, command.output
    run.check(samples=2)
    assert [t.trace_id for t in read_traces(run.traces)][: len(whole)] == [
        trace.trace_id for trace in whole
    ]


SMALL_DISK = """
mount -t tmpfs -o size={size} tmpfs disk || exit 77
"$@"; code=$?
cp -r disk/x kept
exit $code
"""


def test_disk_that_really_is_full_leaves_whole_files_only(tmp_path, server):
    if shutil.which("unshare") is None:
        pytest.skip("a small disk needs unshare")
    (tmp_path / "disk").mkdir()
    run = Run(tmp_path, server.url)
    command = [sys.executable, "-m", "agentgym", *map(str, run.args), "--out", "disk/x"]
    found = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", SMALL_DISK.format(size="48k"), "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 77 or "unshare" in found.stderr:
        pytest.skip("a small disk can't be mounted here")
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert "No space left on device" in line
    shutil.copytree(tmp_path / "kept", tmp_path / "x")
    for file in (tmp_path / "x").glob("*.jsonl"):
        assert len(list(read_traces(file))) == file.read_bytes().count(b"\n")
    assert run.begin().wait() == 0
    run.check()


def in_the_middle(proxy: FaultProxy) -> bool:
    """Whether an episode has taken a turn."""
    return "player" in proxy.counted and proxy.counted["player"].asked > 2


@pytest.fixture
def held(tmp_path, server):
    """A run with one episode in the middle of its turns, and the proxy that holds it there."""
    with FaultProxy(server.url, {}) as proxy:
        run = Run(tmp_path, proxy.url, "--concurrency", 1)
        command = run.begin()
        assert command.until(
            lambda: "player" in proxy.counted and proxy.counted["player"].asked > 2
        )
        proxy.shares = {"half_open": 1.0}
        yield run, command, proxy
        if not command.is_over:
            command.kill()


def test_first_interrupt_lets_finish_what_has_begun(held):
    run, command, proxy = held
    command.signal(signal.SIGINT)
    assert command.until(lambda: "that have begun finish (again: stop now)" in command.output)
    proxy.shares = {}
    assert command.wait() == 130
    assert "the same command plays the rest with --out x --resume" in command.output
    traces = list(read_traces(run.traces))
    assert 0 < len(traces) < TASKS
    assert {trace.reward for trace in traces} == {1.0}
    assert run.begin().wait() == 0
    run.check()


@pytest.mark.parametrize(
    ("options", "signals", "code"),
    [
        ([], [signal.SIGINT, signal.SIGINT], 130),
        (["--on-interrupt", "stop"], [signal.SIGINT], 130),
        ([], [signal.SIGTERM], 143),
    ],
    ids=["second", "chosen", "sigterm"],
)
def test_stopped_at_once_it_can_be_gone_on_with(tmp_path, server, options, signals, code):
    with FaultProxy(server.url, {}) as proxy:
        run = Run(tmp_path, proxy.url, "--concurrency", 1)
        command = run.begin(*options)
        assert command.until(
            lambda: "player" in proxy.counted and proxy.counted["player"].asked > 2
        )
        proxy.shares = {"half_open": 1.0}
        for number in signals:
            said = command.output
            command.signal(number)
            assert command.until(lambda said=said: command.output != said) or command.is_over
        assert command.wait() == code
        assert "Traceback" not in command.output
        assert "--resume" in command.output
        proxy.shares = {}
        assert run.begin().wait() == 0
    run.check()


@pytest.fixture
def service(tmp_path):
    """A service that plays the desk; gives its URL."""
    (tmp_path / "service").mkdir()
    command = Command(
        *("serve", "--port", 0, "--env", "fault_desk:FaultDesk-v0"), folder=tmp_path / "service"
    )
    assert command.until(lambda: "serves at" in command.output)
    yield re.search(r"serves at (\S+)", command.output)[1]
    command.kill()


def test_service_plays_the_same_run(tmp_path, server, service):
    run = Run(tmp_path, server.url, "--samples", 2)
    command = run.begin("--service", service)
    assert command.wait() == 0, command.output
    run.check(samples=2)
    assert json.loads((tmp_path / "x/config.json").read_text())["service"] == service


def test_service_that_is_not_there_is_one_line_and_leaves_nothing_behind(tmp_path, server):
    command = Run(tmp_path, server.url).begin("--service", "http://127.0.0.1:9")
    assert command.wait() == 1
    (line,) = command.output.splitlines()
    assert "is the service running there?" in line
    assert not (tmp_path / "x").exists()
