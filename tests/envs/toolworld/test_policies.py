"""The expert solves nearly everything, and whoever doesn't try is at the bottom."""

import math

import pytest

from agentgym.envs.toolworld.env import DEFAULT_MAX_TURNS, ToolWorldEnv
from agentgym.envs.toolworld.policies import POLICIES, ExpertPolicy
from agentgym.rollout.policies import named_policy, policies_of

pytestmark = pytest.mark.thorough

STUBS = sorted(set(POLICIES) - {"expert"})


@pytest.fixture(scope="module")
def expert_ends(play):
    """The end of the expert's episode of every task."""
    env = ToolWorldEnv()
    return {task_id: play(env, ExpertPolicy(), task_id) for task_id in env.task_ids()}


def test_the_expert_solves_at_least_95_percent(expert_ends):
    solved = [end.verdict.correct for end in expert_ends.values()]
    assert len(solved) == 408
    assert sum(solved) / len(solved) >= 0.95


def test_what_the_expert_solves_is_grounded_and_trips_no_gate(expert_ends):
    for task_id, end in expert_ends.items():
        if end.verdict.correct:
            assert end.verdict.components["grounded"] == 1.0, task_id
            assert end.reward == pytest.approx(1.3)
            assert not any(end.verdict.gates.values())


def test_tasks_take_several_calls_that_build_on_each_other(expert_ends):
    calls = {task_id: len(end.running.records) - 1 for task_id, end in expert_ends.items()}
    assert min(calls.values()) >= 2
    assert sum(count >= 4 for count in calls.values()) > len(calls) / 2


def test_the_cap_leaves_half_as_much_again_as_the_expert_needs(expert_ends):
    most = max(len(end.running.records) for end in expert_ends.values())
    assert math.ceil(1.5 * most) - 1 <= DEFAULT_MAX_TURNS <= 2 * most


def test_the_expert_works_with_other_seeds_and_wordings(play):
    env = ToolWorldEnv(task_seed=7, tasks_per_family=2, distractors=9)
    ends = [play(env, ExpertPolicy(), task_id) for task_id in env.task_ids()]
    assert sum(end.verdict.correct for end in ends) / len(ends) >= 0.95


def test_the_expert_knows_nothing_that_a_policy_does_not(play):
    """It plays the same with an env that has no reference to look at."""
    env = ToolWorldEnv(tasks_per_family=1)
    for task_id in env.task_ids()[::5]:
        whole = play(env, ExpertPolicy(), task_id)
        blind = ExpertPolicy()
        _, info = env.reset(options={"task_id": task_id})
        stripped = {"tools": info["tools"]}
        observed = [dict(message) for message in env.messages]
        for record in whole.running.records:
            action = blind(observed, stripped)
            said = action if isinstance(action, str) else action["tool_calls"][0]["function"]
            kept = record.message
            assert said == (kept["content"] or kept["tool_calls"][0]["function"])
            observed += [kept, *record.replies]


def test_the_expert_gives_up_in_words_where_a_world_is_not_as_promised():
    env = ToolWorldEnv(tasks_per_family=1)
    _, info = env.reset(options={"task_id": "toolworld/tracker/root_blocker/0"})
    odd = {"role": "tool", "content": "{}", "tool_call_id": "x"}
    assert "none" in ExpertPolicy()([*env.messages, odd], info)
    unknown = [{"role": "user", "content": "What is the weather?"}]
    assert "none" in ExpertPolicy()(unknown, info)


@pytest.mark.parametrize("name", STUBS)
def test_agents_that_do_not_try_are_at_the_bottom(name, sampled, play):
    """Every fourth task of all families."""
    policy = POLICIES[name](sampled, 1)
    ends = [play(sampled, policy, task_id) for task_id in sampled.task_ids()[::4]]
    assert sum(end.verdict.correct for end in ends) == 0
    assert sum(end.reward for end in ends) / len(ends) <= 0.02


def test_policies_are_found_by_name():
    env = ToolWorldEnv(tasks_per_family=1)
    assert {"expert", "nothing", "random"} <= set(policies_of(env))
    assert isinstance(named_policy(env, "expert", seed=0), ExpertPolicy)
