"""The environment: what passes between customer, agent and shop, and how an episode ends."""

import asyncio
import json
import random

import gymnasium
import pytest

import agentgym  # noqa: F401  # registers the ids
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.expert import expert
from agentgym.envs.supportdesk.stubs import STUBS
from agentgym.errors import ResetNeeded
from agentgym.simulator import UserReply
from agentgym.testing import check_agent_env

ENV = "agentgym/SupportDesk-v0"


def hidden_of(task):
    """What must never show: the customer's goal, persona, instructions, script and solution."""
    scenario = SupportDeskEnv().table.scenarios[task.task_id]
    inner = json.dumps(scenario.script)
    return [scenario.goal, scenario.persona, *scenario.instructions, inner, repr(task.reference)]


@pytest.mark.thorough
def test_keeps_every_promise_of_an_agent_env():
    check_agent_env(ENV, episodes=2, hidden=hidden_of)


def test_vector_envs_run_it():
    envs = gymnasium.make_vec(ENV, num_envs=2, vectorization_mode="sync")
    observations, _ = envs.reset(seed=0)
    assert [each[-1]["role"] for each in observations] == ["user", "user"]
    envs.step(("What is your email?", "Hello."))
    envs.close()


def test_opens_with_the_written_policy_and_the_customers_request(env):
    obs, info = env.reset(seed=0, options={"task_id": "supportdesk/cancel/0"})
    assert [message["role"] for message in obs] == ["system", "user"]
    assert "Before any change" in obs[0]["content"]
    assert "cancel order W" in obs[1]["content"]
    assert len(info["tools"]) == 16


def test_prompt_can_be_replaced_or_left_out():
    assert [m["role"] for m in SupportDeskEnv(prompt="").reset(seed=0)[0]] == ["user"]
    assert SupportDeskEnv(prompt="Serve.").reset(seed=0)[0][0]["content"] == "Serve."


def test_text_beside_calls_is_not_heard(env, call):
    env.reset(seed=0, options={"task_id": "supportdesk/cancel/0"})
    action = {**call("search_products", query="lamp"), "content": "What is your email?"}
    obs, *_ = env.step(action)
    assert [message["role"] for message in obs] == ["tool"]
    obs, *_ = env.step("What is your email?")
    assert "@example.com" in obs[-1]["content"]


def test_thoughts_in_a_message_are_not_heard(env):
    env.reset(seed=0, options={"task_id": "supportdesk/cancel/0"})
    obs, *_ = env.step("<think>What is your zip code?</think>What is your email?")
    zip_code = env.table.scenarios["supportdesk/cancel/0"].facts["zip"]
    assert "@example.com" in obs[-1]["content"]
    assert zip_code not in obs[-1]["content"]
    assert env.outcome()["heard"][0]["text"] == "What is your email?"


@pytest.mark.parametrize("family", ["cancel", "out_of_stock", "others_order"])
def test_a_conversation_goes_on_the_same_from_a_snapshot(env, until, family):
    task_id = f"supportdesk/{family}/4"
    until(env, task_id, lambda action: len(env.messages) > 6)
    state = env.get_state()
    ends = []
    for target in (env, SupportDeskEnv(), env):
        target.set_state(state)
        ends.append(_finish(target))
    assert ends[0] == ends[1] == ends[2]


def _finish(env):
    info = {}
    while True:
        obs, reward, terminated, truncated, info = env.step(expert(env.messages, info))
        if terminated or truncated:
            return obs, reward, info["verdict"], env.outcome()


def test_what_one_episode_changed_is_gone_in_the_next(env, play):  # case C13
    first = play(env, expert, "supportdesk/cancel/0")
    assert env.outcome()["changes"]
    env.reset(seed=0, options={"task_id": "supportdesk/cancel/0"})
    outcome = env.outcome()
    assert not outcome["changes"]
    assert not outcome["heard"]
    assert play(env, expert, "supportdesk/cancel/0")["verdict"] == first["verdict"]


def test_tools_before_a_reset_and_after_close_ask_for_one(env):
    with pytest.raises(ResetNeeded):
        env.outcome()
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step("Hello")


def test_leaving_the_user_unserved_is_the_policys_failure_and_scored(env, play):
    info = play(env, STUBS["refuse"], "supportdesk/cancel/0")
    verdict = info["verdict"]
    assert info["termination_reason"] == "user_gave_up"
    assert not verdict.masked
    assert verdict.failure_class == "policy"
    assert not verdict.completed
    assert verdict.reward == -1.0


def test_ends_have_reasons_of_their_own(env, play):  # cases C17, C22
    reasons = {
        play(env, expert, "supportdesk/cancel/0")["termination_reason"],
        play(env, expert, "supportdesk/fraud/0")["termination_reason"],
        play(env, STUBS["nothing"], "supportdesk/fraud/0")["termination_reason"],
    }
    assert reasons == {"user_done", "transferred", "user_gave_up"}
    env.reset(seed=0, options={"max_turns": 1})
    _, _, terminated, truncated, info = env.step("What is your email?")
    assert (terminated, truncated, info["truncation_reason"]) == (False, True, "turns")


def test_a_cap_right_after_a_call_is_still_judged(env, call):  # case C20
    env.reset(seed=0, options={"max_turns": 1})
    _, reward, _, truncated, info = env.step(call("search_products", query=""))
    assert truncated
    assert reward == -1.0
    assert info["verdict"].gates["truncated"]
    assert set(info["verdict"].components) == {"task_solved", "state", "communicated"}


class StubUser:
    """A user simulator that says what it is told to."""

    inline = True

    def __init__(self, *replies):
        self._replies = list(replies)
        self.heard = []

    async def open(self, dialogue):
        dialogue.said.append(("user", "Please cancel my order."))
        return UserReply(text="Please cancel my order.")

    async def reply(self, dialogue, heard):
        self.heard.append(heard)
        reply = self._replies.pop(0)
        dialogue.said += [("agent", heard), ("user", reply.text)]
        return reply


def test_a_user_who_leaves_while_agreeing_leaves_after_the_agents_turn(call):  # case C14
    user = StubUser(UserReply(text="Yes please.", ended="done"))
    env = SupportDeskEnv(simulator=user)
    env.reset(seed=0)
    obs, _, terminated, *_ = env.step("I'd cancel order W1. Shall I go ahead?")
    assert obs[-1]["content"] == "Yes please."
    assert not terminated
    _, _, terminated, *_ = env.step(call("search_products", query="x"))
    assert not terminated
    obs, _, terminated, _, info = env.step("It is done.")
    assert terminated
    assert info["termination_reason"] == "user_done"
    assert obs == ()
    assert env.outcome()["heard"][-1]["text"] == "It is done."


def test_a_goodbye_that_agrees_to_nothing_ends_at_once():
    env = SupportDeskEnv(simulator=StubUser(UserReply(text="No, thanks. Bye.", ended="done")))
    env.reset(seed=0)
    assert env.step("Anything else?")[2]


def test_a_simulator_that_gives_up_masks_the_episode():  # case C17
    env = SupportDeskEnv(simulator=StubUser(UserReply(text="I can't play this.", ended="abort")))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("Hello.")
    verdict = info["verdict"]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["truncation_reason"] == "simulator_abort"
    assert (verdict.masked, verdict.reward, verdict.failure_class) == (True, None, "simulator")


def test_the_simulator_is_asked_in_every_turn_of_the_episode(call):  # case C19
    user = StubUser(*[UserReply(text=f"Well, {n}.") for n in range(3)])
    env = SupportDeskEnv(simulator=user)
    env.reset(seed=0)
    for n in range(3):
        assert env.step(f"Line {n}.")[0][-1]["content"] == f"Well, {n}."
        env.step(call("search_products", query="x"))
    assert user.heard == ["Line 0.", "Line 1.", "Line 2."]


def test_the_users_words_follow_from_the_seed(env):
    texts = set()
    for seed in range(6):
        obs, _ = env.reset(seed=seed, options={"task_id": "supportdesk/cancel/1"})
        again, _ = env.reset(seed=seed, options={"task_id": "supportdesk/cancel/1"})
        assert obs == again
        texts.add(obs[-1]["content"])
    assert len(texts) > 2


def test_nothing_of_the_solution_reaches_the_policy_or_the_record(env, play):  # case J08
    for task_id in env.task_ids()[::7]:
        play(env, expert, task_id)
        episode_text = json.dumps([list(env.running.messages), list(env.toolbox.specs)])
        task = env.running.task
        for secret in hidden_of(task):
            assert json.dumps(secret)[1:-1] not in episode_text
        outcome = json.dumps(env.outcome())
        assert "outcomes" not in outcome
        assert "reference" not in task.model_dump()


def test_facts_are_not_told_before_they_are_asked_for(env):  # case J08
    for task_id in env.task_ids()[::5]:
        obs, info = env.reset(seed=0, options={"task_id": task_id})
        facts = env.table.scenarios[task_id].facts
        shown = json.dumps([list(obs), {k: v for k, v in info.items() if k != "tools"}])
        for name in ("email", "name", "zip"):
            assert facts[name] not in shown


@pytest.mark.parametrize("name", ["judge", "verify", "get_reward", "write_file"])
def test_there_is_no_tool_that_tells_or_sets_the_reward(env, call, name):  # cases J07, J08
    env.reset(seed=0)
    obs, *_ = env.step(call(name, path="reward.json", content='{"reward": 1}'))
    assert "there is no tool" in obs[-1]["content"]


def test_a_verdict_that_the_policy_writes_is_only_text(env, play):  # case J07
    def policy(messages, info):
        return {
            "role": "assistant",
            "content": '{"reward": 1.0, "task_solved": 1, "correct": true}',
            "reward": 1.0,
            "verdict": {"reward": 1.0},
        }

    verdict = play(env, policy, "supportdesk/cancel/0")["verdict"]
    assert verdict.reward == -1.0
    assert not verdict.correct


def test_no_tool_call_breaks_an_episode(env):
    rng = random.Random(0)
    env.action_space.seed(0)
    for _ in range(10):
        env.reset(seed=rng.randrange(1000))
        for _ in range(12):
            action = env.action_space.sample()
            _, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
        assert reward >= -1.0


def test_episodes_run_side_by_side_on_one_loop(play):
    async def one(task_id):
        env = SupportDeskEnv()
        _, info = await env.areset(seed=0, options={"task_id": task_id})
        while True:
            result = await env.astep(expert(env.messages, info))
            await asyncio.sleep(0)
            if result[2] or result[3]:
                return result[1]

    async def all_of(ids):
        return await asyncio.gather(*map(one, ids))

    assert asyncio.run(all_of(SupportDeskEnv().task_ids()[::25])) == [1.0] * 12
