"""Synthetic episodes: the same for whoever works them out, in whatever order."""

from __future__ import annotations

import pytest

from agentgym.testing.check import check_agent_env
from agentgym.testing.fleet import Workload, WorkloadEnv
from agentgym.testing.fleet.prefix import tokens_of
from agentgym.testing.fleet.workload import episode_of


def play(workload, episode):
    """The whole conversation of an episode, as `policy` and the env make it."""
    messages = list(workload.opening(episode))
    for turn in range(workload.turns(episode)):
        answer = workload.policy({"messages": messages})
        messages.append(answer)
        if answer.get("tool_calls"):
            messages.append({"role": "tool", "content": workload.observation(episode, turn)})
    return messages


def test_everything_follows_from_seed_episode_and_turn():
    forwards = [play(Workload(seed=3), episode) for episode in range(20)]
    backwards = [play(Workload(seed=3), episode) for episode in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [play(Workload(seed=4), episode) for episode in range(20)]


def test_messages_have_exactly_the_tokens_that_were_planned():
    workload = Workload()
    for episode in range(50):
        assert tokens_of(workload.opening(episode)[0]) == workload.system_tokens
        for turn in range(workload.turns(episode)):
            plan = workload.turn(episode, turn)
            assert tokens_of(workload.answer(episode, turn)) == plan.completion_tokens
            observation = {"role": "tool", "content": workload.observation(episode, turn)}
            assert tokens_of(observation) == plan.observation_tokens


def test_turns_are_one_to_twelve_heavy_tailed_and_four_on_average():
    turns = [Workload().turns(episode) for episode in range(2000)]
    assert (min(turns), max(turns)) == (1, 12)
    assert sum(turns) / len(turns) == pytest.approx(3.9, abs=0.2)
    longest = sorted(turns)[-200:]
    assert sum(longest) > 0.2 * sum(turns)


def test_the_last_turn_answers_and_needs_no_tool():
    workload = Workload()
    last = workload.turns(5) - 1
    assert "tool_calls" not in workload.answer(5, last)
    assert workload.turn(5, last).tool_s == 0.0
    assert all("tool_calls" in workload.answer(5, turn) for turn in range(last))


def test_an_opening_that_names_no_episode_is_one_by_its_text():
    ask = [{"role": "user", "content": "What is the capital of Peru?"}]
    other = [{"role": "user", "content": "What is the capital of Kenya?"}]
    assert episode_of(ask) == episode_of(ask) != episode_of(other)
    assert episode_of([{"role": "user", "content": [{"type": "text", "text": "Episode 7"}]}]) == 7


@pytest.mark.thorough
def test_the_environment_passes_the_checker():
    quick = Workload(tool_median_s=0.0, judge_median_s=0.0)
    check_agent_env(lambda: WorkloadEnv(workload=quick, tasks=8))


def test_the_environment_plays_what_the_workload_says():
    workload = Workload(tool_median_s=0.001)
    env = WorkloadEnv(workload=workload, tasks=8, speed=100.0)
    opening, _ = env.reset(options={"task_id": "workload/3"})
    played, over = list(opening), False
    while not over:
        answer = workload.policy({"messages": played})
        messages, reward, over, _, _ = env.step(answer)
        played += [answer, *({"role": "tool", "content": m["content"]} for m in messages)]
    assert played == play(workload, 3)
    assert reward == 1.0
