"""The env contract: what an episode records, hides, hands over and takes back."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from agentgym.errors import (
    ActionError,
    ConfigError,
)
from agentgym.testing.envs import CounterEnv, QuizEnv, SlowCounterEnv
from agentgym.testing.messages import calling, tool_call

ADD = calling(tool_call("add", amount=1))
SUBMIT = calling(tool_call("submit"))


def test_deferred_judging_hands_the_episode_over():
    env = CounterEnv()
    env.reset(options={"task_id": "counter/1", "judging": "deferred"})
    env.step(ADD)
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated) == (0.0, True)
    assert "verdict" not in info
    episode, scoring = info["episode_record"], env.scoring
    env.close()
    assert asyncio.run(scoring.verdict(episode)).reward == 1.0
    with pytest.raises(ConfigError, match="immediate"):
        env.reset(options={"judging": "later"})


def test_annotations_are_recorded_and_never_replayed():
    env = CounterEnv()
    env.reset(seed=0)
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    env.step(
        calling(
            tool_call("add", amount=1),
            usage=usage,
            reasoning_content="hm",
            finish_reason="tool_calls",
            completion_ids=[1, 2],
            logprobs=[-0.5, -0.25],
            audio=None,
        )
    )
    turn = env.running.records[0].turn(0)
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens) == (10, 5)
    assert (turn.usage.cached_tokens, turn.usage.reasoning_tokens) == (4, 3)
    assert (turn.reasoning, turn.finish_reason) == ("hm", "tool_calls")
    assert (turn.completion_ids, turn.logprobs) == ((1, 2), (-0.5, -0.25))
    assert set(env.running.messages[2]) == {"role", "content", "tool_calls"}


def test_a_wrong_annotation_is_the_callers_fault():
    env = CounterEnv()
    env.reset(seed=0)
    with pytest.raises(ActionError, match="annotations"):
        env.step({**ADD, "completion_ids": "abc"})


def test_the_given_action_is_not_changed():
    env = CounterEnv()
    env.reset(seed=0)
    action = calling(tool_call("add", "x", amount=1), tool_call("add", "x", amount=1))
    before = copy.deepcopy(action)
    env.step(action)
    assert action == before


def test_snapshot_continues_here_and_elsewhere_and_twice():
    env = CounterEnv()
    env.reset(options={"task_id": "counter/2"})
    env.step(ADD)
    state = pickle.loads(pickle.dumps(env.get_state()))
    for target in (env, CounterEnv(), env):
        target.set_state(state)
        target.step(ADD)
        assert target.step(SUBMIT)[1] == 1.0


def test_a_snapshot_is_not_changed_by_what_follows():
    env = CounterEnv()
    env.reset(options={"task_id": "counter/2"})
    state = env.get_state()
    env.step(ADD)
    env.set_state(state)
    assert (env.value, env.running.records, env.running.turns_left) == (0, [], 8)


def test_a_snapshot_holds_the_random_generator():
    class Dice(CounterEnv):
        def read(self) -> str:
            return str(self.np_random.integers(1_000_000))

    env = Dice()
    env.reset(seed=0)
    state = env.get_state()
    roll = calling(tool_call("read"))
    first, second = env.step(roll)[0], env.step(roll)[0]
    assert first[0]["content"] != second[0]["content"]
    for target in (env, Dice()):
        target.reset(seed=5)
        target.set_state(state)
        assert target.step(roll)[0] == first


def test_snapshots_are_refused_where_not_offered():
    env = QuizEnv()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="QuizEnv offers no snapshots"):
        env.get_state()


@pytest.mark.parametrize("env", [CounterEnv(), SlowCounterEnv(), QuizEnv()])
def test_instances_can_be_copied_and_pickled_mid_episode(env):
    env.reset(seed=3)
    action = calling(tool_call(next(iter(env.toolbox)).name, amount=2))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin.step(action)[:4] == copy.deepcopy(env).step(action)[:4]
        assert twin.running.messages is not env.running.messages


def test_render_shows_the_conversation():
    env = CounterEnv(render_mode="ansi")
    assert env.render() is None
    env.reset(options={"task_id": "counter/3"})
    env.step(ADD)
    text = env.render()
    assert "[user] Bring the counter from 0 to 3" in text
    assert '→ add({"amount": 1})' in text
    assert CounterEnv().render() is None
    with pytest.raises(ConfigError, match="ansi"):
        CounterEnv(render_mode="human")


def test_reference_shows_nowhere_and_the_judge_is_no_tool():
    """J08."""
    env = QuizEnv()
    for task in ("Peru", "Kenya", "Türkiye"):
        observation, info = env.reset(options={"task_id": f"quiz/{task}"})
        reference = env.running.task.reference
        shown = [observation, info, env.step(calling(tool_call("judge")))]
        shown += [env.step(calling(tool_call("first_letter", letter=1)))]
        assert reference not in repr(shown)
        assert "no tool 'judge'" in shown[2][0][0]["content"]
        assert reference not in repr(env.running.task)
        assert reference not in env.running.task.model_dump_json()
