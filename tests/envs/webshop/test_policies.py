import pytest

from agentgym.envs.webshop.env import WebShopEnv, read_action
from agentgym.envs.webshop.policies import (
    OraclePolicy,
    RandomPolicy,
    instruction_in,
    rule_policy,
    write_action,
)


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


def test_rule_and_oracle_averages_stay_where_they_were(play, embedded):
    ids = embedded.task_ids()
    rule = sum(play(embedded, rule_policy, task_id) for task_id in ids) / len(ids)
    oracle = sum(play(embedded, OraclePolicy(embedded), task_id) for task_id in ids) / len(ids)
    assert 0.5 < rule < 0.95
    assert oracle == 1.0


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


@pytest.mark.parametrize("argument", ["red shoes", "a[b", "10] x", "a [b] c", "two\nlines"])
def test_written_action_is_read_back_or_is_a_call(argument):
    action = write_action("search", argument)
    if isinstance(action, str):
        assert read_action(action) == ("search", argument)
    else:
        assert action["tool_calls"][0]["function"]["name"] == "search"
