"""TurnCap: the env truncates itself, with the right verdict."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from agentgym.errors import ConfigError
from agentgym.testing.envs import CounterEnv
from agentgym.testing.messages import calling, tool_call
from agentgym.wrappers import TraceLogger, TurnCap

ADD = calling(tool_call("add", amount=1))
SUBMIT = calling(tool_call("submit"))


def turns_until_truncated(env):
    env.reset(seed=0)
    for taken in range(1, 100):
        *_, truncated, info = env.step(ADD)
        if truncated:
            return taken, info
    return None


@pytest.mark.parametrize(("human", "cap"), [(1, 2), (2, 3), (3, 5), (4, 6), (5, 8), (10, 15)])
def test_half_again_as_many_turns_as_a_person_rounded_up(human, cap):
    assert TurnCap(CounterEnv(max_turns=None), human_turns=human).max_turns == cap


def test_a_capped_episode_is_truncated_by_the_env_with_reason_turns():
    """C22, C23."""
    taken, info = turns_until_truncated(TurnCap(CounterEnv(max_turns=None), max_turns=3))
    assert taken == 3
    assert info["truncation_reason"] == "turns"
    assert info["verdict"].gates["truncated"]
    assert info["turns_left"] == 0


def test_finishing_on_the_last_turn_terminates():
    """C07; Gymnasium's TimeLimit says both."""
    for wrap, expected in [(TurnCap, (True, False)), (TimeLimit, (True, True))]:
        env = wrap(CounterEnv(max_turns=None), 2)
        env.reset(options={"task_id": "counter/1"})
        env.step(ADD)
        assert env.step(SUBMIT)[2:4] == expected


def test_below_the_cap_nothing_changes():
    capped, plain = TurnCap(CounterEnv(), max_turns=99), CounterEnv()
    assert capped.reset(seed=3) == plain.reset(seed=3)
    assert capped.step(ADD) == plain.step(ADD)


@pytest.mark.parametrize(
    ("own", "inner", "outer", "option", "tightest"),
    [(2, 5, 7, None, 2), (9, 5, 7, None, 5), (9, 7, 5, None, 5), (9, 7, 5, 3, 3), (9, 3, 5, 8, 3)],
)
def test_the_tightest_cap_holds(own, inner, outer, option, tightest):
    env = TurnCap(TurnCap(CounterEnv(max_turns=own), inner), max_turns=outer)
    options = None if option is None else {"max_turns": option}
    assert env.reset(seed=0, options=options)[1]["turns_left"] == tightest


def test_options_pass_through_wrappers_and_wrong_ones_are_refused(tmp_path):
    """C10."""
    env = TraceLogger(TurnCap(CounterEnv(), 5), tmp_path / "t.jsonl")
    assert env.reset(options={"task_id": "counter/3"})[1]["task_id"] == "counter/3"
    with pytest.raises(ConfigError, match="allowed: judging, max_turns, task_id"):
        env.reset(options={"task": "counter/3"})
    for wrong in (0, "3", 1.5):
        with pytest.raises(ConfigError, match="whole number"):
            env.reset(options={"max_turns": wrong})


def test_the_callers_options_are_not_changed():
    options = {"task_id": "counter/3"}
    TurnCap(CounterEnv(), 5).reset(options=options)
    assert options == {"task_id": "counter/3"}


async def test_the_async_face_is_capped_too():
    env = TurnCap(CounterEnv(), max_turns=2)
    await env.areset(seed=0)
    await env.astep(ADD)
    assert (await env.astep(ADD))[3] is True


def test_statistics_see_the_whole_episode():
    env = RecordEpisodeStatistics(TurnCap(CounterEnv(), max_turns=3))
    _, info = turns_until_truncated(env)
    assert info["episode"]["l"] == 3
    assert info["episode"]["r"] == pytest.approx(info["verdict"].reward)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"max_turns": 1, "human_turns": 1}, {"max_turns": 0}, {"max_turns": 2.5},
     {"human_turns": True}, {"human_turns": "3"}],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ConfigError, match=r"exactly one|whole number"):
        TurnCap(CounterEnv(), **arguments)


def test_other_envs_are_sent_to_time_limit():
    with pytest.raises(ConfigError, match=r"got CartPoleEnv; use gymnasium\.wrappers\.TimeLimit"):
        TurnCap(gymnasium.make("CartPole-v1"), max_turns=3)
