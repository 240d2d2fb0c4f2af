import copy
import gc
import json
import pickle
import random
import re
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop import shop
from agentgym.envs.webshop.env import WebShopEnv, read_action
from agentgym.envs.webshop.policies import OraclePolicy, rule_policy
from agentgym.errors import ConfigError, DataError, ResetNeeded, UnknownTaskError


@pytest.fixture
def env(make_env):
    return make_env(gates=None, invalid_action="explain")


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def test_page_is_a_user_message_to_text_and_a_tool_message_to_a_call(env):
    obs, _ = env.reset(options={"task_id": "webshop/human/0"})
    assert [message["role"] for message in obs] == ["system", "user"]
    by_text, *_ = env.step("search[loafers]")
    env.reset(options={"task_id": "webshop/human/0"})
    by_call, *_ = env.step(call("search", query="LOAFERS"))
    assert by_text[-1] == {"role": "user", "content": by_text[-1]["content"]}
    assert by_call[-1]["role"] == "tool"
    assert by_call[-1]["content"] == by_text[-1]["content"]


def test_prompt_can_be_replaced_or_left_out(make_env):
    obs, _ = make_env(prompt="").reset(seed=0)
    assert [message["role"] for message in obs] == ["user"]
    obs, _ = make_env(prompt="Shop.").reset(seed=0)
    assert obs[0] == {"role": "system", "content": "Shop."}


def test_impossible_click_is_explained_and_not_malformed(env):
    env.reset(options={"task_id": "webshop/human/0", "max_turns": 2})
    env.step("search[loafers]")
    obs, _, _, truncated, info = env.step("click[buy now]")
    assert "click[buy now] is not possible on this page" in obs[-1]["content"]
    assert "click[next >]" in obs[-1]["content"]
    assert truncated
    assert info["verdict"].gates == {"truncated": True, "malformed_call": False}


@pytest.mark.parametrize("text", ["buy it", "", "Search[x]", " search[x]", "search[]", "think[x]"])
def test_text_that_is_no_action_teaches_and_trips_the_gate(env, text):
    env.reset(options={"task_id": "webshop/human/0", "max_turns": 1})
    obs, reward, terminated, truncated, info = env.step(text)
    assert "Write search[words] or click[target]" in obs[-1]["content"]
    assert (terminated, truncated) == (False, True)
    assert info["verdict"].gates == {"truncated": True, "malformed_call": True}
    assert reward == pytest.approx(-0.8)


@given(st.text(alphabet="[]a\n\r\u2028é", max_size=12))
def test_actions_are_read_as_the_originals_expression_reads_them(text):
    match = re.match(r"(.+)\[(.+)\]", text)
    assert read_action(text) == ((match[1], match[2]) if match else ("", ""))


def test_a_flood_of_brackets_is_read_at_once():
    """The original's expression is quadratic in it: 20,000 of them took 5 s, these an hour."""
    assert read_action("[" * 500_000) == ("", "")
    assert read_action("a" + "[" * 500_000 + "]") == ("a" + "[" * 499_998, "[")


def test_a_refusal_quotes_the_attempt_in_short(env):
    env.reset(options={"task_id": "webshop/human/0"})
    obs, *_ = env.step(f"click[{'a' * 100_000}]")
    assert len(obs[-1]["content"]) < 400


def test_text_never_ends_the_episode(env):
    env.reset(options={"task_id": "webshop/human/0"})
    for _ in range(5):
        _, _, terminated, truncated, _ = env.step("I am done.")
        assert not terminated
        assert not truncated


@pytest.mark.parametrize("action", ["nonsense", "click[nowhere]", "search[]"])
def test_silent_mode_shows_the_same_page_again(make_env, action):
    env = make_env()
    env.reset(options={"task_id": "webshop/human/0"})
    before, *_, info_before = env.step("search[loafers]")
    after, reward, *_, info = env.step(action)
    assert after[-1]["content"] == before[-1]["content"]
    assert info["available_actions"] == info_before["available_actions"]
    assert reward == 0.0


def test_gates_change_the_reward_and_not_the_task_score(env):
    env.reset(options={"task_id": "webshop/human/1"})
    env.step("hello")
    goal = env.goal_of("webshop/human/1")
    env.step(f"search[{goal.product.title}]")
    env.step(f"click[{goal.product.asin}]")
    _, reward, terminated, _, info = env.step("click[buy now]")
    verdict = info["verdict"]
    assert terminated
    assert verdict.components["task_score"] == 1.0
    assert (verdict.completed, verdict.correct) == (True, True)
    assert reward == pytest.approx(0.7)


def test_no_purchase_scores_zero(make_env):
    env = make_env(max_turns=1)
    env.reset(options={"task_id": "webshop/human/1"})
    _, reward, terminated, truncated, info = env.step("search[shoes]")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["verdict"].components == {"task_score": 0.0}
    assert info["verdict"].completed is False


def test_purchase_on_the_last_turn_is_terminated(make_env):
    env = make_env(max_turns=3)
    _, info = env.reset(options={"task_id": "webshop/human/1"})
    messages, oracle = [], OraclePolicy(env)
    for _ in range(3):
        *_, terminated, truncated, info = env.step(oracle(messages, info))
    assert (terminated, truncated) == (True, False)


def test_step_outside_an_episode_says_reset(env):
    with pytest.raises(ResetNeeded):
        env.step("search[x]")
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step("search[x]")


def test_task_is_chosen_by_id_at_every_reset(env):
    for number in (1, 2, 1):
        _, info = env.reset(options={"task_id": f"webshop/human/{number}"})
        assert info["task_id"] == f"webshop/human/{number}"


@pytest.mark.parametrize(
    "task_id",
    [
        *("webshop/human/64", "webshop/synthetic/0", "webshop/human/-1", "17", 17, None),
        *("webshop/human/007", "webshop/human/٣", "webshop/human/" + "9" * 5000),
    ],
    ids=lambda task_id: f"{task_id!r:.30}",
)
def test_unknown_task_names_those_that_exist(env, task_id):
    with pytest.raises(UnknownTaskError, match="'webshop/human/0' to 'webshop/human/63'"):
        env.reset(options={"task_id": task_id})


def test_task_of_another_split_is_refused(make_env):
    env = make_env(split="train")
    with pytest.raises(UnknownTaskError, match="in split 'train'"):
        env.reset(options={"task_id": "webshop/human/0"})


def test_splits_share_no_task_and_info_names_the_split(make_env):
    seen = {}
    for split in ("train", "validation", "test"):
        env = make_env(split=split)
        seen[split] = set(env.task_ids())
        _, info = env.reset(seed=3)
        assert info["split"] == split
        assert info["task_id"] in seen[split]
    assert len(set.union(*seen.values())) == sum(map(len, seen.values())) == 64


def test_task_ids_enumerate_distinct_goals(env):
    ids = env.task_ids()
    assert len(ids) == len(set(ids)) == 64
    assert len({id(env.goal_of(task_id)) for task_id in ids}) == 64


def test_same_seed_gives_the_same_tasks_and_other_seeds_others(make_env):
    def tasks(seed):
        env = make_env(goals="synthetic")
        first = env.reset(seed=seed)[1]["task_id"]
        return [first, *(env.reset()[1]["task_id"] for _ in range(5))]

    assert tasks(7) == tasks(7)
    assert tasks(7) != tasks(8)


def test_unseeded_instances_draw_different_tasks(make_env):
    drawn = {
        tuple(env.reset()[1]["task_id"] for _ in range(6))
        for env in (make_env(goals="synthetic") for _ in range(3))
    }
    assert len(drawn) == 3


def test_original_draw_is_the_same_sequence_every_time(make_env):
    def tasks(env, **first):
        return [env.reset(**(first if n == 0 else {}))[1]["task_id"] for n in range(5)]

    env = make_env(goal_draw="original")
    sequence = tasks(env)
    assert tasks(make_env(goal_draw="original")) == sequence
    assert tasks(env, seed=1) == sequence


def test_global_random_state_is_left_alone(make_env):
    random.seed(3)  # the point: nothing may change the global generator
    np.random.seed(3)
    state, np_state = random.getstate(), np.random.get_state()[1].copy()
    shop.forget_shared()
    env = make_env(goals="synthetic", limit_goals=20)
    env.reset(seed=0)
    for action in ("search[<r>]", "click[next >]", "search[shoes]"):
        env.step(action)
    assert random.getstate() == state
    assert (np.random.get_state()[1] == np_state).all()


@pytest.mark.parametrize(
    ("parameter", "value", "allowed"),
    [
        ("goals", "robot", "'human', 'synthetic'"),
        ("split", "dev", "'train', 'validation', 'test', None"),
        ("observation_mode", "html", "'text', 'text_rich'"),
        ("invalid_action", "crash", "'explain', 'silent'"),
        ("goal_draw", "fair", "'proportional', 'original'"),
        ("page_size", 0, "at least 1"),
        ("num_products", 0, "at least 1"),
        ("limit_goals", "all", "at least 1"),
        ("max_turns", 0, "at least 1"),
        ("data_seed", "0", "a whole number"),
        ("catalogue_seed", None, "a whole number"),
        ("nouns", "verbs", "'rule', 'spacy'"),
        ("nouns", "~nobody-of-this-name/x", "'rule', 'spacy'"),
        ("nouns", 5, "'rule', 'spacy'"),
        ("data", 5, "the path of a folder"),
        ("prompt", 5, "a text"),
        ("show_attrs", "no", "False, True"),
        ("difficulty", "awful", "'standard'"),
        ("difficulty", 5, "'standard'"),
        ("difficulty", ["easy"], "'standard'"),
        ("gates", "truncated", "a list"),
    ],
)
def test_wrong_value_names_those_allowed(make_env, parameter, value, allowed):
    with pytest.raises(ConfigError, match=parameter) as caught:
        make_env(**{parameter: value})
    assert allowed in str(caught.value)


def test_unknown_reset_option_names_those_allowed(env):
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"goal": 1})


def test_missing_data_folder_says_what_to_do():
    with pytest.raises(DataError, match="does not exist; give a folder"):
        WebShopEnv(data="no/such/folder")
    with pytest.raises(DataError, match="does not exist; give a folder"):
        WebShopEnv(data="~nobody-of-this-name/x")


def test_catalogue_without_a_word_is_an_error(tmp_path, raw_product):
    empty = raw_product | {
        "name": "",
        "full_description": "",
        "small_description": [],
        "customization_options": "",
    }
    contents = {"items_shuffle": [empty], "items_ins": {}, "items_human_ins": {}}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match="no search would find anything"):
        WebShopEnv(data=tmp_path)


def test_reset_info_names_the_catalogue(make_env):
    _, small = make_env(num_products=30).reset(seed=0)
    _, whole = make_env().reset(seed=0)
    assert (small["catalogue"]["n_products"], whole["catalogue"]["n_products"]) == (30, 65)
    assert small["catalogue"]["digest"] != whole["catalogue"]["digest"]


def test_instances_share_one_shop_across_threads(make_env):
    shop.forget_shared()
    made = []
    threads = [threading.Thread(target=lambda: made.append(make_env())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(env.world.shop) for env in made}) == 1
    assert len({id(env.world.table) for env in made}) == 1


def test_changed_data_file_is_read_again(synth, tmp_path):
    for path in synth.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = WebShopEnv(data=tmp_path).world.shop.catalogue.digest
    path = tmp_path / "items_shuffle.json"
    products = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(products[:40]), encoding="utf-8")
    assert WebShopEnv(data=tmp_path).world.shop.catalogue.digest != before


@pytest.mark.thorough
def test_episodes_leave_nothing_behind(make_env, play):
    env = make_env()
    play(env, rule_policy)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(30):
        play(env, rule_policy)
    gc.collect()
    assert len(gc.get_objects()) < before + 300


@pytest.mark.parametrize("embedded", [False, True])
def test_copies_and_pickles_continue_the_episode_and_share_the_shop(make_env, embedded):
    """A copy that took the catalogue along would cost a second and megabytes each."""
    make = (lambda: WebShopEnv(num_products=50)) if embedded else make_env
    env, other = make(), make()
    env.reset(seed=0)
    env.step("search[shoes]")
    pickled = pickle.dumps(env)
    snapshot = pickle.dumps(env.get_state())
    assert len(pickled) < 100_000
    assert len(snapshot) < 20_000
    other.set_state(pickle.loads(snapshot))
    twins = copy.deepcopy(env), pickle.loads(pickled), other
    expected = env.step("click[next >]")[0][-1]["content"], env.reset()[1]["task_id"]
    for twin in twins:
        assert twin.world.shop is env.world.shop
        found = twin.step("click[next >]")[0][-1]["content"], twin.reset()[1]["task_id"]
        assert found == expected


@pytest.mark.thorough
def test_a_pickled_environment_plays_on_in_another_process(make_env):
    env = make_env()
    env.reset(seed=0)
    script = (
        "import pickle, sys; env = pickle.load(sys.stdin.buffer); "
        "print(env.step('search[shoes]')[0][-1]['content'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(env), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == env.step("search[shoes]")[0][-1]["content"]


def test_snapshot_continues_the_same_episode_elsewhere(make_env):
    env, other = make_env(), make_env()
    env.reset(options={"task_id": "webshop/human/0"})
    env.step("search[loafers]")
    state = env.get_state()
    actions = ["click[b0syn02046]", "click[description]", "click[< prev]", "click[buy now]"]
    first = [env.step(action)[:3] for action in actions]
    for _ in range(2):
        other.set_state(state)
        assert [other.step(action)[:3] for action in actions] == first
        other.reset(seed=1)


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("invalid_action", ["silent", "explain"])
def test_before_the_purchase_only_the_instruction_depends_on_the_goal(
    make_env, mode, invalid_action
):
    env = make_env(observation_mode=mode, invalid_action=invalid_action, show_attrs=True)
    walk = [
        *("click[buy now]", "nonsense", "search[sandals]", "click[next >]", "click[< prev]"),
        *("click[b0syn00085]", "click[8]", "click[attributes]", "click[< prev]", "click[judge]"),
        *("click[features]", "click[buy now]", "click[back to search]", "search[<q> hdmi cables]"),
    ]
    seen = set()
    for task_id in env.task_ids():
        obs, info = env.reset(options={"task_id": task_id})
        shown = [(obs, info)]
        for action in walk:
            obs, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == (0.0, False, False)
            shown.append((obs, info))
        text = json.dumps([(obs, info | {"task_id": 0, "split": 0}) for obs, info in shown])
        instruction = json.dumps(env.goal_of(task_id).instruction)[1:-1]
        assert instruction in text
        seen.add(text.replace(instruction, "INSTRUCTION"))
    assert len(seen) == 1


def test_first_page_holds_nothing_of_the_goal_but_the_instruction(make_env):
    env = make_env(goals="synthetic")
    for task_id in env.task_ids()[:100]:
        obs, info = env.reset(options={"task_id": task_id})
        goal = env.goal_of(task_id)
        assert goal.product.asin not in repr((obs, info))
        assert goal.product.title not in repr((obs, info))
        assert obs[-1]["content"] == (
            f"WebShop [SEP] Instruction: [SEP] {goal.instruction.strip()} [SEP] Search"
        )


def test_judge_is_no_tool(env):
    env.reset(seed=0)
    obs, *_ = env.step(call("judge"))
    assert "judge" in obs[-1]["content"]
    assert "search" in obs[-1]["content"]


def test_sampled_actions_are_possible(make_env):
    env = make_env(invalid_action="explain")
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(200):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert "not possible" not in obs[-1]["content"]
        if terminated or truncated:
            env.reset()


def test_embedded_catalogue_needs_no_files():
    env = gymnasium.make("agentgym/WebShop-v0", num_products=50)
    obs, info = env.reset(seed=0)
    assert obs[-1]["content"].startswith("WebShop [SEP] Instruction: [SEP] ")
    assert info["catalogue"]["n_products"] == 50
