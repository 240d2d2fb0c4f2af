from collections import Counter

import pytest

from agentgym.client import SamplingParams
from agentgym.envs.webshop.env import WebShopEnv, read_action
from agentgym.envs.webshop.policies import (
    OraclePolicy,
    RandomPolicy,
    instruction_in,
    rule_policy,
    write_action,
)

RULE = {
    "r_type": 0.9176,
    "r_att": 0.9857,
    "r_option": 0.0,
    "r_price": 0.8931,
    "title_score": 0.5979,
    "task_score": 0.5008,
}
ORACLE = {
    "r_type": 1.0,
    "r_att": 0.9771,
    "r_option": 0.9637,
    "r_price": 1.0,
    "title_score": 0.7886,
    "task_score": 0.9857,
}
"""Mean components on the made-up data's synthetic goals; they move if the reward or a page does."""


@pytest.fixture(scope="module")
def embedded():
    return WebShopEnv(num_products=100, split="validation")


@pytest.mark.parametrize("goals", ["human", "synthetic"])
@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_oracle_earns_everything_on_the_embedded_catalogue(play, goals, mode):
    env = WebShopEnv(num_products=60, goals=goals, observation_mode=mode)
    oracle = OraclePolicy(env)
    assert {play(env, oracle, task_id) for task_id in env.task_ids()} == {1.0}


def test_rule_buys_the_first_hit_without_options(play, embedded):
    transcript = []
    play(embedded, rule_policy, transcript=transcript)
    said = [message["content"] for message in transcript if message["role"] == "assistant"]
    assert len(said) == 3
    assert said[0] == f"search[{instruction_in(transcript)}]"
    assert said[1].lower()[6:-1] in transcript[3]["content"].lower()
    assert said[2] == "click[buy now]"


def averages(env, policy, play):
    """Mean reward components over all tasks."""
    totals = Counter()
    for task_id in env.task_ids():
        transcript = []
        play(env, policy, task_id, transcript=transcript)
        totals.update(env.outcome()["details"] | {"task_score": env.outcome()["score"]})
    return {name: total / len(env.task_ids()) for name, total in totals.items()}


@pytest.mark.thorough
def test_rule_and_oracle_averages_stay_where_they_were(make_env, play):
    env = make_env(goals="synthetic")
    rule, oracle = averages(env, rule_policy, play), averages(env, OraclePolicy(env), play)
    assert {name: round(rule[name], 4) for name in RULE} == RULE
    assert {name: round(oracle[name], 4) for name in ORACLE} == ORACLE


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_instruction_is_read_from_either_mode(make_env, mode):
    env = make_env(observation_mode=mode)
    for task_id in env.task_ids()[:20]:
        obs, _ = env.reset(options={"task_id": task_id})
        assert instruction_in(obs) == env.goal_of(task_id).instruction


def test_random_policy_repeats_itself_under_a_seed(play, embedded):
    def transcript(seed):
        messages = []
        play(embedded, RandomPolicy(seed=seed), embedded.task_ids()[0], transcript=messages)
        return messages

    assert transcript(1) == transcript(1)
    assert transcript(1) != transcript(2)


def test_random_policy_plays_samples_of_a_task_differently(embedded):
    messages, info = embedded.reset(options={"task_id": embedded.task_ids()[0]})
    policy = RandomPolicy(seed=0)

    def actions():
        return [str(policy(messages, info, SamplingParams(seed=seed))) for seed in range(10)]

    assert actions() == actions()
    assert len(set(actions())) > 5


@pytest.mark.parametrize("argument", ["red shoes", "a[b", "10] x", "a [b] c", "two\nlines"])
def test_written_action_is_read_back_or_is_a_call(argument):
    action = write_action("search", argument)
    if isinstance(action, str):
        assert read_action(action) == ("search", argument)
    else:
        assert action["tool_calls"][0]["function"]["name"] == "search"
