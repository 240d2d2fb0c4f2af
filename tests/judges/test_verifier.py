"""Programs as judges: what they may say, and that a crash is not a zero."""

from __future__ import annotations

import asyncio
import math
import sys
import threading

import numpy as np
import pytest

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Judge, Score, Scoring
from agentgym.judges import Verifier
from agentgym.judges.episodes import episode_from_messages
from agentgym.sync import run_inline
from agentgym.types import Task

EPISODE = episode_from_messages(
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Bye"}],
    task=Task(task_id="t/0"),
    outcome={"bought": "B07"},
)


def score(found, **options):
    return run_inline(Verifier(lambda episode: found, **options).score(EPISODE))


@pytest.mark.parametrize(
    ("found", "total", "components", "correct"),
    [
        (True, 1.0, {"verified": 1.0}, True),
        (False, 0.0, {"verified": 0.0}, False),
        (np.True_, 1.0, {"verified": 1.0}, True),
        (0.25, 0.25, {"verified": 0.25}, None),
        (1, 1.0, {"verified": 1.0}, None),
        (np.float32(0.5), 0.5, {"verified": 0.5}, None),
        ({"a": 1, "b": False}, 0.5, {"a": 1.0, "b": 0.0}, None),
        ({"total": 0.5, "components": {"a": 2}, "correct": True}, 0.5, {"a": 2.0}, True),
        (Score(total=0.5, components={"a": 0.1}), 0.5, {"a": 0.1}, None),
    ],
)
def test_what_a_verifier_may_say(found, total, components, correct):
    got = score(found)
    assert (got.total, got.components, got.correct) == (total, components, correct)


@pytest.mark.parametrize(
    "found",
    [
        None,
        "1.0",
        math.nan,
        math.inf,
        -math.inf,
        1.5,
        -0.1,
        {},
        {"a": math.nan},
        {"a": "x"},
        {"a": None},
        {"a": 10**400},
        {"total": math.nan},
        {"total": 0.5, "componets": {}},
        {"total": 2.0},
        Score(total=1.5),
        [1.0],
    ],
)
def test_what_is_no_number_in_range_is_a_failed_judgement(found):
    with pytest.raises(JudgeError, match="verifier 'verified'"):
        score(found)


def test_the_range_can_be_set():
    assert score(-3, low=-5, high=5).total == -3.0
    assert Verifier(lambda e: 0, high=2.0).highest == 2.0


def test_a_crash_is_a_failed_judgement_and_a_failing_verdict_a_zero():
    def crash(episode):
        raise KeyError("bought")

    with pytest.raises(JudgeError, match="verifier 'crash' crashed: KeyError: 'bought'") as error:
        run_inline(Verifier(crash).score(EPISODE))
    assert isinstance(error.value.__cause__, KeyError)
    assert score(False).total == 0.0


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("code", [0, 1, None])
def test_a_script_that_exits_is_a_crash_whatever_its_code(code, in_thread):
    def script(episode):
        sys.exit(code)

    verifier = Verifier(script, in_thread=in_thread)
    with pytest.raises(JudgeError, match="verifier 'script' crashed: SystemExit"):
        asyncio.run(verifier.score(EPISODE))


def test_its_own_judge_error_passes_as_it_is():
    def unsure(episode):
        raise JudgeError("the database is gone")

    with pytest.raises(JudgeError, match="^the database is gone$"):
        run_inline(Verifier(unsure).score(EPISODE))


def test_cancelling_it_cancels():
    def cancelled(episode):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_inline(Verifier(cancelled).score(EPISODE))


def test_plain_functions_need_no_event_loop_and_async_ones_do():
    async def waits(episode):
        await asyncio.sleep(0)
        return True

    class Waiting:
        async def __call__(self, episode):
            return True

    assert Verifier(lambda e: True).inline
    assert not Verifier(waits).inline
    assert not Verifier(Waiting()).inline
    assert asyncio.run(Verifier(waits).score(EPISODE)).total == 1.0
    assert asyncio.run(Verifier(Waiting()).score(EPISODE)).total == 1.0
    assert asyncio.run(Verifier(lambda e: waits(e)).score(EPISODE)).total == 1.0


def test_a_blocking_function_can_run_in_a_thread():
    seen = []

    def blocks(episode):
        seen.append(threading.current_thread())
        return True

    verifier = Verifier(blocks, in_thread=True)
    assert not verifier.inline
    assert asyncio.run(verifier.score(EPISODE)).total == 1.0
    assert seen[0] is not threading.current_thread()


def test_it_is_named_after_its_function_or_as_told():
    def right_item(episode):
        return episode.outcome["bought"] == "B07"

    assert isinstance(Verifier(right_item), Judge)
    found = run_inline(Scoring(judge=Verifier(right_item)).verdict(EPISODE))
    assert (found.reward, found.components, found.correct) == (1.0, {"right_item": 1.0}, True)
    assert Verifier(right_item, name="bought").name == "bought"


def test_a_wrong_verifier_is_refused_when_it_is_made():
    with pytest.raises(ConfigError, match="needs a function"):
        Verifier(5)
    for low, high in [(1, 1), (1, 0), (math.nan, 1), (0, math.inf)]:
        with pytest.raises(ConfigError, match="low must be less than high"):
            Verifier(lambda e: 1, low=low, high=high)
