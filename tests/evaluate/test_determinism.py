from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentgym.evaluate.determinism import compare_traces, play_twice, replay
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.types import Message, Task, Turn, Verdict


def call(number: int, name: str = "look", call_id: str = "a") -> Message:
    function = {"name": name, "arguments": f'{{"n": {number}}}'}
    tool_calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def result(text: str, call_id: str = "a") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def trace(
    *after: Message, seed: int = 0, task: str = "t", opening: str = "go", **fields: Any
) -> Trace:
    return Trace(
        trace_id=f"{task}-{seed}",
        env_spec='{"id": "E-v0"}',
        task_id=task,
        seed=seed,
        messages=({"role": "user", "content": opening}, *after),
        verdict=Verdict(reward=0.0),
        started_at="2026-01-01T00:00:00+00:00",
        **fields,
    )


def test_the_same_call_in_the_same_state_with_another_result_is_found() -> None:
    found = compare_traces([trace(call(1), result("five")), trace(call(1), result("six"), seed=1)])
    assert (found.compared, found.differing) == (2, 1)  # the opening, and the result
    example = found.examples[0]
    assert (example.task_id, example.first, example.second) == ("t", "five", "six")
    assert example.after == 'look({"n": 1})'


def test_the_ids_of_calls_are_no_difference() -> None:
    found = compare_traces(
        [trace(call(1), result("five")), trace(call(1, call_id="b"), result("five", "b"))]
    )
    assert (found.compared, found.differing) == (2, 0)


@pytest.mark.parametrize(
    "other",
    [
        trace(call(2), result("six")),  # another call
        trace(call(1), result("six"), task="other"),
        trace(call(1), result("six"), opening="begin", task="other"),
    ],
)
def test_another_state_is_not_compared(other: Trace) -> None:
    assert compare_traces([trace(call(1), result("five")), other]).differing == 0


def test_after_a_difference_the_states_are_not_the_same() -> None:
    one = trace(call(1), result("five"), call(2), result("a"))
    two = trace(call(1), result("six"), call(2), result("b"))
    found = compare_traces([one, two])
    assert (found.compared, found.differing) == (2, 1)


def test_what_a_user_says_may_hang_on_the_seed_and_on_nothing_else() -> None:
    said: Message = {"role": "assistant", "content": "hello"}
    replies: list[Message] = [{"role": "user", "content": text} for text in ("yes", "no")]
    by_seed = compare_traces([trace(said, replies[0], seed=0), trace(said, replies[1], seed=1)])
    assert (by_seed.differing, by_seed.by_seed) == (0, 1)
    same_seed = compare_traces([trace(said, replies[0]), trace(said, replies[1])])
    assert (same_seed.differing, same_seed.by_seed) == (1, 0)


def test_an_episode_that_a_fault_broke_is_left_out() -> None:
    broken = trace(
        call(1), result("Error: no connection"), failure_class="infra", error="no connection"
    )
    assert compare_traces([trace(call(1), result("five")), broken]).compared == 0


class Numbered(CounterEnv):
    """Opens with a number that somebody else decides."""

    def __init__(self, number: Callable[[], int]) -> None:
        super().__init__()
        self._number = number

    async def start(self, task: Task) -> Sequence[Message]:
        return [*await super().start(task), {"role": "user", "content": str(self._number())}]


TASK, ACTIONS = "counter/3", [call(0, name="read"), "three"]


def test_an_environment_that_repeats_itself_is_compared_and_differs_nowhere() -> None:
    clean = play_twice(lambda: Numbered(lambda: 0), TASK, ACTIONS)
    assert clean.differing == 0
    assert clean.compared == 2 * 3  # opening and two replies, in the same one and a fresh one


def test_state_that_outlives_an_episode_is_found_by_playing_twice() -> None:
    def leaks() -> Numbered:
        numbers = itertools.count()
        return Numbered(lambda: next(numbers))

    found = play_twice(leaks, TASK, ACTIONS)
    assert found.differing == 1  # after the reset; a fresh one begins anew
    assert found.examples[0].after == "the start"


def test_a_clock_is_found_in_a_fresh_environment_too() -> None:
    clock = itertools.count()
    assert play_twice(lambda: Numbered(lambda: next(clock)), TASK, ACTIONS).differing == 2


def test_a_trace_is_replayed_by_what_its_policy_said() -> None:
    turns = tuple(
        Turn(index=i, message=message)
        for i, message in enumerate([call(0, name="read"), call(0, name="submit")])
    )
    found = replay(CounterEnv, trace(task=TASK, turns=turns))
    assert (found.compared, found.differing) == (2 * 3, 0)
    with pytest.raises(ValueError, match="no task"):
        replay(CounterEnv, trace().model_copy(update={"task_id": None}))


def test_a_tool_is_held_to_its_result_although_a_user_answers_with_it() -> None:
    one, two = (
        trace(call(1), result(text), {"role": "user", "content": said}, seed=seed)
        for seed, (text, said) in enumerate([("five", "yes"), ("six", "no")])
    )
    assert (found := compare_traces([one, two])).differing == 1
    assert found.by_seed == 0
    three = trace(call(1), result("five"), {"role": "user", "content": "no"}, seed=3)
    assert (compare_traces([one, three]).differing, compare_traces([one, three]).by_seed) == (0, 1)
