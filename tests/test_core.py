"""The env contract: how episodes run, end and are scored."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from agentgym.core import AgentEnv
from agentgym.errors import (
    ActionError,
    ConfigError,
    EnvFault,
    ResetNeeded,
    SimulatorError,
    UnknownTaskError,
)
from agentgym.judge import Score
from agentgym.testing.conversation import check_conversation
from agentgym.testing.envs import CounterEnv, QuizEnv
from agentgym.testing.messages import calling, tool_call
from agentgym.tools import Tool
from agentgym.types import Task

ADD = calling(tool_call("add", amount=1))
SUBMIT = calling(tool_call("submit"))


class Free:
    """Judge that gives 1.0 to everything."""

    inline = True

    async def score(self, episode):
        return Score(total=1.0, correct=True)


class Chat(AgentEnv):
    """A user who answers every message until told goodbye; `broken` says where it fails."""

    awaits = True

    def __init__(self, *, broken=None, tools=(), **kwargs):
        self.broken = broken
        super().__init__(tools=[Tool(t) for t in tools], judge=Free(), **kwargs)

    def choose_task(self, options):
        return Task(task_id="chat/0")

    async def start(self, task):
        await asyncio.sleep(0)
        if self.broken == "start":
            raise EnvFault("no database")
        return ({"role": "user", "content": "hello"},)

    async def reply(self, message):
        await asyncio.sleep(0)
        if self.broken == "reply":
            raise SimulatorError("the user model timed out")
        if message["content"] == "goodbye":
            self.finish("user_done")
            return ()
        return ({"role": "user", "content": f"you said {message['content']}"},)


def test_reset_gives_opening_messages_and_tools():
    env = CounterEnv()
    observation, info = env.reset(seed=0, options={"task_id": "counter/3"})
    assert [m["role"] for m in observation] == ["system", "user"]
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "read", "reset_to", "submit"]
    assert (info["task_id"], info["split"], info["turns_left"]) == ("counter/3", "train", 8)


def test_solving_gives_reward_and_verdict():
    env = CounterEnv()
    env.reset(options={"task_id": "counter/1"})
    assert env.step(ADD)[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    verdict = info["verdict"]
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (verdict.correct, verdict.completed, verdict.masked) == (True, True, False)
    assert verdict.components == {"reached": 1.0, "nearness": 1.0}
    assert info["termination_reason"] == "submitted"
    assert info["truncation_reason"] is None


def test_str_is_shorthand_for_an_assistant_message():
    env = QuizEnv()
    env.reset(options={"task_id": "quiz/Peru"})
    _, reward, terminated, _, info = env.step("Lima")
    assert (reward, terminated, info["termination_reason"]) == (1.0, True, "answered")
    assert env.running.messages[-1] == {"role": "assistant", "content": "Lima"}


def test_finish_on_last_turn_is_terminated_not_truncated():
    """C07."""
    env = CounterEnv(max_turns=3)
    env.reset(options={"task_id": "counter/2"})
    env.step(ADD)
    env.step(ADD)
    _, reward, terminated, truncated, _ = env.step(SUBMIT)
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_calling_a_tool_on_the_last_turn_is_truncated_with_its_result_kept():
    """C07, C20: judged all the same, with its components and the gate."""
    env = CounterEnv(max_turns=3)
    env.reset(options={"task_id": "counter/3"})
    for _ in range(2):
        env.step(ADD)
    observation, reward, terminated, truncated, info = env.step(ADD)
    assert (terminated, truncated) == (False, True)
    assert observation[0]["content"] == "The counter stands at 3."
    assert env.running.messages[-1] == observation[0]
    assert info["truncation_reason"] == "turns"
    assert info["termination_reason"] is None
    assert info["verdict"].components == {"reached": 0.0, "nearness": 1.0}
    assert info["verdict"].gates["truncated"]
    assert reward == info["verdict"].reward == -0.5


def test_cap_counts_turns_not_calls():
    """C23: three turns of five parallel calls are three turns and fifteen calls."""
    env = CounterEnv(max_turns=3)
    env.reset(options={"task_id": "counter/15"})
    five = calling(*(tool_call("add", amount=1) for _ in range(5)))
    results = [env.step(five) for _ in range(3)]
    assert [r[3] for r in results] == [False, False, True]
    assert [r[4]["turns_left"] for r in results] == [2, 1, 0]
    assert all(len(r[0]) == 5 for r in results)
    assert sum(len(record.calls) for record in env.running.records) == 15
    assert env.value == 15
    check_conversation(env.running.messages)


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_exactly_cap_turns_happen(cap):
    """C23."""
    env = CounterEnv(max_turns=cap)
    env.reset(seed=0)
    taken = 0
    truncated = False
    while not truncated:
        _, _, _, truncated, _ = env.step(ADD)
        taken += 1
    assert taken == cap
    with pytest.raises(ResetNeeded, match="over"):
        env.step(ADD)


def test_options_tighten_the_cap_and_never_widen_it():
    env = CounterEnv(max_turns=4)
    assert env.reset(options={"max_turns": 2})[1]["turns_left"] == 2
    assert env.reset(options={"max_turns": 9})[1]["turns_left"] == 4
    assert CounterEnv(max_turns=None).reset()[1]["turns_left"] is None


@pytest.mark.parametrize("cap", [0, -1, 1.5, True, "3"])
def test_a_wrong_cap_is_refused(cap):
    with pytest.raises(ConfigError, match="whole number"):
        CounterEnv(max_turns=cap)
    with pytest.raises(ConfigError, match="whole number"):
        CounterEnv().reset(options={"max_turns": cap})


@pytest.mark.parametrize("reason", ["tokens", "context", "time"])
def test_outer_limits_truncate_with_their_own_reason(reason):
    """C22: the layer that ended the episode gives the reason; judged like any other."""
    env = CounterEnv()
    env.reset(options={"task_id": "counter/2"})
    env.step(ADD)
    observation, reward, terminated, truncated, info = env.truncate(reason)
    assert (observation, terminated, truncated) == ((), False, True)
    assert info["truncation_reason"] == reason
    assert info["verdict"].components["nearness"] == 0.5
    assert reward == -0.5
    with pytest.raises(ResetNeeded):
        env.truncate(reason)


def test_an_unknown_truncation_reason_is_refused_and_the_episode_goes_on():
    env = CounterEnv()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="turns, tokens"):
        env.truncate("boredom")
    assert env.step(ADD)[3] is False


def test_reset_clears_everything():
    """C13: counters, gates, tool state."""
    env = CounterEnv(max_turns=3)
    lengths, verdicts = [], []
    for _ in range(2):
        env.reset(options={"task_id": "counter/1"})
        assert env.value == 0
        assert env.running.records == []
        steps = 0
        while True:
            action = calling(tool_call("nonsense")) if not verdicts else ADD
            *_, truncated, info = env.step(action)
            steps += 1
            if truncated:
                break
        lengths.append(steps)
        verdicts.append(info["verdict"])
    assert lengths == [3, 3]
    assert [v.gates["malformed_call"] for v in verdicts] == [True, False]


def test_seeded_reset_fixes_the_resets_that_follow():
    """C08; the global generators are left alone."""
    before = random.getstate(), repr(np.random.get_state())
    one, other = CounterEnv(), CounterEnv()
    sequences = [
        [env.reset(seed=7)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(5))]
        for env in (one, other)
    ]
    assert sequences[0] == sequences[1]
    assert len(set(sequences[0])) > 1
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_unknown_option_names_the_allowed_ones():
    """C10."""
    with pytest.raises(ConfigError, match="'task'; allowed: judging, max_turns, task_id"):
        CounterEnv().reset(options={"task": "counter/1"})


@pytest.mark.parametrize("options", [5, "task_id", ["task_id"]])
def test_options_that_are_no_dict_are_refused(options):
    with pytest.raises(ConfigError, match="options must be a dict, got .* allowed: judging, max"):
        CounterEnv().reset(options=options)


def test_unknown_task_is_an_error_and_leaves_nothing_to_step():
    with pytest.raises(UnknownTaskError, match="counter/99"):
        CounterEnv().reset(options={"task_id": "counter/99"})


def test_step_needs_a_reset():
    env = CounterEnv()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(ADD)
    env.reset(seed=0)
    env.step(SUBMIT)
    with pytest.raises(ResetNeeded, match="over"):
        env.step(ADD)
    env.reset()
    env.close()
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(ADD)


def test_a_failed_start_leaves_nothing_to_step():
    env = Chat(broken="start")
    with pytest.raises(EnvFault, match="no database"):
        env.reset()
    with pytest.raises(ResetNeeded):
        env.step("hi")


@pytest.mark.parametrize(
    "action", [None, 3, [], {"role": "user", "content": "x"}, {"content": 3}, {"tool_calls": "x"}]
)
def test_what_is_no_assistant_message_is_the_callers_fault(action):
    env = CounterEnv()
    env.reset(seed=0)
    with pytest.raises(ActionError, match="assistant message"):
        env.step(action)
    assert env.step(ADD)[0][0]["content"] == "The counter stands at 1."


def test_text_goes_to_the_user_until_the_user_is_done():
    env = Chat(max_turns=9)
    env.reset()
    assert env.step("well")[0] == ({"role": "user", "content": "you said well"},)
    observation, reward, terminated, _, info = env.step("goodbye")
    assert (observation, reward, terminated) == ((), 1.0, True)
    assert info["termination_reason"] == "user_done"


def test_a_failed_user_masks_the_episode():
    env = Chat(broken="reply")
    env.reset()
    observation, reward, terminated, truncated, info = env.step("well")
    verdict = info["verdict"]
    assert (observation, reward, terminated, truncated) == ((), 0.0, False, True)
    assert (verdict.masked, verdict.reward, verdict.failure_class) == (True, None, "simulator")
    assert "timed out" in verdict.reason
    assert info["truncation_reason"] == "fault"


def test_a_failed_tool_simulator_leaves_a_valid_conversation():
    """A15: all three calls are answered once, though the second one failed."""

    def ok() -> str:
        return "fine"

    def simulated() -> str:
        raise SimulatorError("the tool model gave no JSON")

    env = Chat(tools=(ok, simulated))
    env.reset()
    parallel = calling(tool_call("ok"), tool_call("simulated"), tool_call("ok"))
    *_, info = env.step(parallel)
    assert info["verdict"].failure_class == "simulator"
    check_conversation(env.running.messages)
    assert [c.status for c in env.running.records[0].calls] == ["ok", "error", "not_run"]


def test_a_crashed_tool_is_a_fault_of_the_env_and_ends_the_episode():
    def crash() -> str:
        raise ZeroDivisionError("1/0")

    env = Chat(tools=(crash,))
    env.reset()
    with pytest.raises(EnvFault, match="'crash' crashed: ZeroDivisionError"):
        env.step(calling(tool_call("crash")))
    with pytest.raises(ResetNeeded):
        env.step("hello?")


def test_base_class_says_what_is_missing():
    env = AgentEnv(tools=[], judge=Free())
    with pytest.raises(NotImplementedError, match="which task comes next"):
        env.reset()
