"""Servers that are slower than others; numbers worked by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from agentgym.clients.pace import Pace
from agentgym.clients.speeds import FASTER_PAYS, Speed, sooner


@dataclass
class Server:
    """Only what counts here."""

    busy: float = 0.0
    speed: Speed = field(default_factory=Speed)

    def load(self, turn_tokens):
        return self.busy


def server(slowness, *, answers=200, busy=0.0):
    """A server that has been so slow all the time."""
    made = Server(busy)
    for _ in range(answers):
        made.speed.learn(slowness, expected_s=1.0)
    return made


def pace():
    """1 ms to read a token, 10 ms to write one; a turn takes 2 s: 1000 fresh, 100 written."""
    made = Pace()
    for _ in range(100):
        made.learn(estimated=1000, prompt=1000, fresh=1000, completion=100, seconds=2.0)
        made.learn(estimated=0, prompt=0, fresh=0, completion=200, seconds=2.0)
    return made


def test_what_an_answer_takes_is_told_apart_into_reading_and_writing():
    assert Pace().answer_s(fresh=100, completion=100) == 0.0
    # Reading counts at most as 0.5 ms a token, however slow it seems.
    assert pace().prefill_s(1000) == pytest.approx(0.5)
    assert pace().turn_s == pytest.approx(2.0)
    assert pace().answer_s(fresh=0, completion=100) == pytest.approx(1.0, rel=0.15)


def test_slowness_is_learnt_and_one_hiccup_is_not_everything():
    assert server(2.0).speed.slowness == pytest.approx(2.0, rel=0.01)
    steady = server(1.0)
    steady.speed.learn(1000.0, expected_s=1.0)
    assert steady.speed.slowness < 1.5
    steady.speed.learn(1.0, expected_s=0.0)  # nothing was expected yet
    assert steady.speed.slowness < 1.5


def test_an_episode_leaves_a_server_that_is_twice_as_slow():
    slow, fast = server(2.0), server(1.0)
    # There: 2 s and 0.25 s of reading. Here: 4 s.
    assert sooner(slow, [slow, fast], known_tokens=500, pace=pace()) is fast
    assert sooner(fast, [slow, fast], known_tokens=500, pace=pace()) is None


def test_an_episode_with_a_long_prefix_stays():
    slow, fast = server(2.0), server(1.0)
    # There: 2 s and 2 s of reading. Here: 4 s.
    assert sooner(slow, [fast], known_tokens=4000, pace=pace()) is None


def test_an_episode_stays_where_servers_are_nearly_alike():
    assert sooner(server(1.0 * FASTER_PAYS), [server(1.0)], known_tokens=0, pace=pace()) is None


def test_an_episode_stays_until_both_servers_are_known():
    assert sooner(server(2.0), [server(1.0, answers=3)], known_tokens=0, pace=pace()) is None
    assert sooner(server(8.0, answers=3), [server(1.0)], known_tokens=0, pace=pace()) is None


def test_of_two_fast_servers_the_one_with_less_to_do_is_taken():
    busy, free = server(1.0, busy=5.0), server(1.0, busy=1.0)
    assert sooner(server(3.0), [busy, free], known_tokens=0, pace=pace()) is free
