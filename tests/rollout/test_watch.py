"""A run that stands still says where; what blocks the event loop is told on, with its line."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agentgym
from agentgym.client import Endpoint
from agentgym.clients import ScriptedClient
from agentgym.clients.balanced import BalancedClient
from agentgym.clients.connect import connect
from agentgym.errors import ConfigError
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.rollout.observer import Observer
from agentgym.rollout.progress import NoProgress
from agentgym.rollout.status import waits
from agentgym.rollout.tally import LagSamples
from agentgym.rollout.watch import (
    LoopWatch,
    StuckWatch,
    _Sparingly,
    blocking_line,
    may_block,
    where,
)
from agentgym.rollout.whereabouts import Waiting, Whereabouts
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Stage

LOG = "agentgym.rollout.watch"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("agentgym.rollout.whereabouts.time", SimpleNamespace(monotonic=clock))
    return clock


@contextmanager
def heard(then: Any) -> Iterator[list[str]]:
    """The watch's warnings; each calls `then`, in the thread that warns."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            then()

    handler = Handler()
    logging.getLogger(LOG).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(LOG).removeHandler(handler)


def at(name: str, stage: Stage, waiting: Waiting, **facts: Any) -> Whereabouts:
    found = Whereabouts(name)
    found.moves(stage, waiting)
    for key, value in facts.items():
        setattr(found, key, value)
    return found


# --- nothing moves -------------------------------------------------------------------------------


def test_stuck_run_names_who_waits_for_what_for_how_long_and_where(clock, caplog):
    watch = StuckWatch(60, clock=clock)
    facts = {"turn": 3, "replica": "http://gpu1:8000/v1"}
    in_flight = [at(f"webshop/{k}@5.0", "run", "policy", **facts) for k in range(12)]
    in_flight[7].since -= 15
    in_flight += [at("webshop/99@5.0", "init", "env") for _ in range(3)]
    for second in range(61):
        clock.now = 1000.0 + second
        watch.look((4, 0), in_flight)
    (message,) = caplog.messages
    assert message == (
        "no progress for 60 s: 12 episodes wait for the policy (longest: webshop/7@5.0 for 75 s, "
        "turn 3, replica http://gpu1:8000/v1), 3 for an env to be ready (longest: webshop/99@5.0 "
        "for 60 s)"
    )


def test_warnings_come_at_growing_intervals(clock, caplog):
    watch, in_flight = StuckWatch(60, clock=clock), [at("a@0.0", "run", "policy")]
    for second in range(1000):
        clock.now = 1000.0 + second
        watch.look((0, 0), in_flight)
    told = [message.split(":")[0] for message in caplog.messages]
    assert told == [f"no progress for {n} s" for n in (60, 120, 240, 480, 960)]


@pytest.mark.parametrize("move", ["turn", "finish", "stage", "new"])
def test_any_move_counts_and_ends_the_silence(move, clock, caplog):
    watch, in_flight = StuckWatch(60, clock=clock), [at("a@0.0", "run", "policy")]
    watch.look((0, 0), in_flight)
    clock.now += 70
    watch.look((0, 0), in_flight)
    clock.now += 5
    if move == "stage":
        in_flight[0].moves("run", "env")
    if move == "new":
        in_flight.append(at("b@0.0", "init", "slot"))
    counters = {"turn": (1, 0), "finish": (0, 1)}.get(move, (0, 0))
    watch.look(counters, in_flight)
    clock.now += 59
    watch.look(counters, in_flight)
    assert [message.split(":")[0] for message in caplog.messages] == [
        "no progress for 70 s",
        "moving again after 75 s",
    ]


def test_a_run_that_moves_says_nothing(clock, caplog):
    watch = StuckWatch(60, clock=clock)
    for minute in range(100):
        clock.now += 59
        watch.look((minute, 0), [at("a@0.0", "run", "policy")])
    assert caplog.messages == []


def test_the_watch_can_be_off(clock, caplog):
    watch = StuckWatch(None, clock=clock)
    clock.now += 1e6
    watch.look((0, 0), [at("a@0.0", "run", "policy")])
    assert caplog.messages == []


def test_after_no_time_at_all_means_never(clock, caplog):
    watch = StuckWatch(0, clock=clock)
    clock.now += 5000
    watch.look((0, 0), [at("a", "run", "policy")])
    assert caplog.records == []


@pytest.mark.parametrize("after_s", [-1.0, float("nan")])
def test_what_is_no_time_is_refused(after_s):
    with pytest.raises(ConfigError, match=r"stuck_after_s must be 0 or more seconds, got (-1|nan)"):
        Engine(CounterEnv, client=ScriptedClient(["x"]), stuck_after_s=after_s)


def test_a_task_with_control_characters_in_its_name_stays_in_its_line(clock, caplog):
    watch = StuckWatch(60, clock=clock)
    where_it_is = at("a\nERROR fake\x1b[2J", "run", "policy")
    watch.look((0, 0), [where_it_is])
    clock.now += 61
    watch.look((0, 0), [where_it_is])
    assert r"longest: a\nERROR fake\x1b[2J for" in caplog.records[0].getMessage()


def test_nobody_is_stuck_while_no_episode_is_in_flight(clock, caplog):
    """A trainer that trains takes no traces for an hour; a service may have nothing to do."""
    watch = StuckWatch(60, clock=clock)
    for _ in range(3600):
        clock.now += 1
        watch.look((8, 8), [])
    watch.look((8, 8), in_flight := [at("a@0.0", "init", "env")])
    clock.now += 59
    watch.look((8, 8), in_flight)
    assert caplog.messages == []


def test_time_before_the_run_is_no_silence(clock, caplog):
    watch, in_flight = StuckWatch(60, clock=clock), [at("a@0.0", "run", "policy")]
    watch.look((0, 0), in_flight)
    clock.now += 3600  # a trainer trains
    watch.begin()
    watch.look((0, 0), in_flight)
    assert caplog.messages == []


def endpoint(url: str) -> Endpoint:
    return Endpoint(base_url=url, model="tiny")


def balanced() -> BalancedClient:
    client = BalancedClient([endpoint("http://gpu1/v1"), endpoint("http://gpu2/v1")])
    client.pause("gpu2")
    return client


@pytest.mark.parametrize(
    ("client", "about"),
    [
        (
            lambda: connect(endpoint("http://me:pw@gpu1/v1")),
            "; the policy is tiny at http://gpu1/v1",
        ),
        (balanced, "; replicas 1/2 ready, 0 to 0 requests in flight each; gpu2 paused"),
        (lambda: ScriptedClient(["x"]), ""),
    ],
)
def test_who_waits_for_the_policy_is_told_which_servers_that_is(client, about, clock, caplog):
    stuck = Observer(NoProgress(), client=client(), clock=clock)._stuck
    for waiting in ("policy", "env"):
        in_flight = [at("a@0.0", "run", waiting)]
        stuck.begin()
        stuck.look((0, 0), in_flight)
        clock.now += 61
        stuck.look((0, 0), in_flight)
    for_policy, for_env = caplog.messages
    assert for_policy.endswith("(longest: a@0.0 for 61 s, turn 0)" + about)
    assert for_env.endswith("(longest: a@0.0 for 61 s, turn 0)")


def test_where_of_one_that_is_played_again():
    again = at("a@0.0", "run", "slot", attempt=1)
    assert where(waits([again])) == (
        "1 episode waits for a slot of RUN (longest: a@0.0 for 0 s, turn 0, attempt 2)"
    )


async def test_an_engine_whose_policy_hangs_says_so_and_that_it_goes_on(monkeypatch):
    monkeypatch.setattr("agentgym.rollout.observer.TICK_S", 0)
    told = asyncio.Event()

    async def hang(messages: Any) -> str:
        await told.wait()
        return "no call"

    def hear() -> None:
        if "3 episodes wait for the policy" in lines[-1]:
            told.set()

    engine = Engine(CounterEnv, client=ScriptedClient(hang), stuck_after_s=0.01)
    with heard(hear) as lines:
        async with asyncio.timeout(60), engine:
            requests = [EpisodeRequest(task_id="counter/5", seed=k) for k in range(3)]
            traces = [trace async for trace in engine.run(requests)]
    assert len(traces) == 3
    stuck = next(line for line in lines if "3 episodes wait for the policy" in line)
    assert re.search(r"\(longest: counter/5@[012]\.0 for 0 s, turn 0\)$", stuck), stuck
    assert any(line.startswith("moving again after") for line in lines)


@pytest.mark.parametrize(("waiting", "warns"), [("siblings", False), ("judge", True)])
async def test_a_reader_who_is_busy_keeps_nobody_stuck(waiting, warns, clock, monkeypatch, caplog):
    """Siblings of what has begun can't begin until traces are taken."""
    monkeypatch.setattr("agentgym.rollout.observer.TICK_S", 0)
    where_it_is = at("a", "eval", waiting)
    backend = SimpleNamespace(in_flight=lambda: [where_it_is])
    observer = Observer(NoProgress(), stuck_after_s=60, blocked_after_s=None, clock=clock)
    async with observer.watching(backend, held_up=lambda: True):
        for _ in range(10):
            clock.now += 100
            await asyncio.sleep(0)
    assert bool(caplog.records) is warns


# --- the event loop ------------------------------------------------------------------------------


async def a_beat(watch: LoopWatch) -> None:
    """Wait until the watch has looked at the loop once more."""
    beaten = asyncio.Event()
    beat = watch._beat

    def then_tell() -> None:
        beat()
        beaten.set()

    due_s, timer = watch._timer.when(), watch._timer
    timer.cancel()
    watch._timer = asyncio.get_running_loop().call_at(due_s, then_tell)
    await beaten.wait()


async def test_code_that_blocks_the_loop_is_named():
    watch, told = LoopWatch(LagSamples(), blocked_after_s=0.05), threading.Event()

    async def tool_that_blocks() -> None:
        assert told.wait(60)  # a blocking call on the event loop

    with heard(told.set) as lines:
        watch.start()
        await tool_that_blocks()
        await a_beat(watch)
        watch.stop()
    line = inspect.getsourcelines(tool_that_blocks)[1] + 1
    assert f"{__file__}:{line}, in tool_that_blocks: assert told.wait(60)" in lines[0]
    assert "(now in " in lines[0]  # the library's line in which it waits
    assert "run it in a thread" in lines[0]
    assert lines[1].startswith("the event loop goes on after ")


INSTALLED = Path(sysconfig.get_path("purelib"))


def compiled(source: str, path: Path, **given: Any) -> Any:
    """The function `f` of a source, as if it were in that file."""
    namespace = dict(given)
    exec(compile(source, str(path), "exec"), namespace)
    return namespace["f"]


@pytest.mark.parametrize("innermost", ["their library", "agentgym"])
def test_an_installed_environment_is_named_rather_than_what_it_calls(innermost: str):
    """Engine → Gymnasium's wrapper → the user's package → a library, or agentgym again."""
    seen: list[tuple[str, str]] = []
    given = {"sys": sys, "told": lambda frame: seen.append(blocking_line(frame))}
    look = "def f():\n    told(sys._getframe())\n"
    call = "def f():\n    g()\n"
    if innermost == "agentgym":
        last = compiled(look, Path(agentgym.__file__).parent / "tools.py", **given)
    else:
        last = compiled(look, INSTALLED / "theirlibrary/wait.py", **given)
    env = compiled(call, INSTALLED / "theirenv/env.py", g=last)
    wrapper = compiled(call, INSTALLED / "gymnasium/core.py", g=env)
    # As the loop does: code above its own `_run` takes no part.
    events = Path(asyncio.__file__).parent / "events.py"
    compiled("def _run():\n    g()\nf = _run\n", events, g=wrapper)()
    ((place, text),) = seen
    assert place.endswith("theirenv/env.py:2")
    assert "(now in " in text


def test_where_no_code_of_the_users_takes_part_none_is_to_be_changed():
    seen: list[tuple[str, str]] = []
    tools, events = Path(agentgym.__file__).parent / "tools.py", Path(asyncio.__file__).parent
    look = "def f():\n    told(sys._getframe())\n"
    own = compiled(look, tools, sys=sys, told=lambda frame: seen.append(blocking_line(frame)))
    compiled("def _run():\n    g()\nf = _run\n", events / "events.py", g=own)()
    ((place, text),) = seen
    assert place == f"{tools}:2"
    assert "agentgym's own work" in text
    assert "make it async" not in text


def test_the_same_line_is_told_on_again_at_growing_intervals():
    clock = Clock()
    often = _Sparingly(clock)
    told = []
    for second in range(600):
        clock.now = second
        if (again := often.again("tool.py:3")) is not None:
            told.append((second, again))
        assert second or often.again("tool.py:9") == ""  # another line is another matter
    assert told == [
        (0, ""),
        (60, " (59 times more since the last warning)"),
        (180, " (119 times more since the last warning)"),
        (420, " (239 times more since the last warning)"),
    ]


async def test_lag_is_measured_while_the_loop_is_free():
    samples = LagSamples()
    watch = LoopWatch(samples, blocked_after_s=None)
    assert samples.lag() is None
    watch.start()
    await a_beat(watch)
    watch.stop()
    assert samples.lag().p50_s >= 0
    assert watch.overdue_s == 0


def test_a_process_that_was_paused_blames_no_line_of_code():
    """The thread that looks has slept as long as the loop."""
    clock = Clock()
    watch = LoopWatch(LagSamples(), clock=clock)
    watch._thread_id, watch._due_s = threading.get_ident(), clock.now + 0.1
    naps = iter([10.0, 0.1])

    class Over:
        def wait(self, _: float) -> bool:
            nap_s = next(naps, None)
            if nap_s == 0.1:  # the loop runs again, and has beaten
                watch._due_s = clock.now + 0.1
            clock.now += nap_s or 0.0
            return nap_s is None

    with heard(list) as lines:
        watch._guard(1.0, Over())
    assert lines == []


async def test_watching_leaves_neither_timer_nor_thread():
    before = set(threading.enumerate())
    watch = LoopWatch(LagSamples())
    watch.start()
    (thread,) = set(threading.enumerate()) - before
    watch.stop()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert watch._timer.cancelled()


def test_a_loop_that_waits_for_events_is_not_blocked_by_any_line():
    """If the loop is late although it only selects, other threads hold the interpreter."""
    frames: list[Any] = []
    ready = threading.Event()

    async def idle() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        frames.append((threading.get_ident(), loop, stop))
        loop.call_soon(ready.set)
        await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(idle()))
    thread.start()
    assert ready.wait(60)
    ident, loop, stop = frames[0]
    place, text = "", ""
    while text != "other threads keep the interpreter busy":
        place, text = blocking_line(sys._current_frames()[ident])
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    assert place == ""


def missing_beat_seen_by(watch: LoopWatch, clock: Clock) -> None:
    """The thread looks at the loop, which is this function, for three seconds."""
    watch._thread_id, watch._due_s = threading.get_ident(), clock.now

    def wait(nap_s: float) -> bool:
        clock.now += nap_s
        return clock.now > watch._due_s + 3

    watch._guard(1.0, SimpleNamespace(wait=wait))


def test_what_works_on_the_loop_on_purpose_is_not_told_on():
    clock = Clock()
    with heard(list) as lines:
        missing_beat_seen_by(LoopWatch(LagSamples(), clock=clock), clock)
    assert len(lines) == 1

    @may_block
    def sampler() -> None:
        missing_beat_seen_by(watch, clock)

    watch = LoopWatch(LagSamples(), clock=clock)
    with heard(list) as lines:
        sampler()
        watch._loop = SimpleNamespace(call_later=lambda *_: None)
        watch._beat()
    assert lines == []
