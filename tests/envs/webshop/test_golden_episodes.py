"""Every recorded episode of the original, step by step, in both observation modes."""

import pytest

from agentgym.errors import ResetNeeded

# What the original does in these is a fault; what happens here instead is tested below.
FAULTS = {
    "special_attribute_query_crashes",
    "special_category_missing_arg_crashes",
    "step_after_done",
    "quirk_keyword_search_results_breaks_prev",
}
KINDS = ("human", "synthetic")
MODES = ("text", "text_rich")


@pytest.fixture(scope="module")
def episodes(load):
    return {kind: load(f"{kind}_episodes.jsonl.gz") for kind in KINDS}


def assert_same_page(obs, info, recorded, mode):
    assert obs[-1]["content"] == recorded[f"obs_{mode}"]
    assert info["available_actions"] == recorded["available_actions"]


def assert_same_step(result, recorded, mode):
    obs, reward, terminated, truncated, info = result
    assert_same_page(obs, info, recorded, mode)
    assert reward == pytest.approx(recorded["reward"], abs=1e-12)
    assert (terminated, truncated) == (recorded["done"], False)
    if terminated:
        components = dict(info["verdict"].components)
        assert components.pop("task_score") == recorded["reward"]
        assert components == {name: float(v) for name, v in recorded["reward_info"].items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_episodes_replay_step_by_step(episodes, make_env, kind, mode):
    replayed = 0
    for episode in episodes[kind]:
        if episode["trace"] in FAULTS:
            continue
        env = make_env(goals=kind, observation_mode=mode, show_attrs=episode["show_attrs"])
        obs, info = env.reset(options={"task_id": f"webshop/{kind}/{episode['goal_idx']}"})
        assert_same_page(obs, info, episode["reset"], mode)
        for recorded in episode["steps"]:
            assert_same_step(env.step(recorded["action"]), recorded, mode)
        replayed += 1
    assert replayed == 48 - len(FAULTS)


def start(episodes, make_env, kind, name, mode="text"):
    episode = next(e for e in episodes[kind] if e["trace"] == name)
    env = make_env(goals=kind, observation_mode=mode)
    env.reset(options={"task_id": f"webshop/{kind}/{episode['goal_idx']}"})
    return env, episode


@pytest.mark.parametrize("kind", KINDS)
def test_attribute_query_lists_products_instead_of_crashing(episodes, make_env, kind):
    env, _ = start(episodes, make_env, kind, "special_attribute_query_crashes")
    obs, *_ = env.step("search[<a> rubber sole]")
    having = [p for p in env.world.shop.catalogue.products if "rubber sole" in p.attributes]
    assert f"(Total results: {len(having)})" in obs[-1]["content"]
    assert having[0].asin in obs[-1]["content"]


@pytest.mark.parametrize("kind", KINDS)
def test_category_query_without_category_finds_nothing_instead_of_crashing(
    episodes, make_env, kind
):
    env, _ = start(episodes, make_env, kind, "special_category_missing_arg_crashes")
    obs, *_ = env.step("search[<c>]")
    assert "Page 1 (Total results: 0)" in obs[-1]["content"]


@pytest.mark.parametrize("kind", KINDS)
def test_purchase_ends_the_episode_for_good(episodes, make_env, kind):
    env, episode = start(episodes, make_env, kind, "step_after_done")
    ended = False
    for recorded in episode["steps"]:
        if ended:
            with pytest.raises(ResetNeeded):
                env.step(recorded["action"])
        else:
            result = env.step(recorded["action"])
            assert_same_step(result, recorded, "text")
            ended = result[2]
    assert ended


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_query_naming_a_page_does_not_break_prev(episodes, make_env, kind, mode):
    name = "quirk_keyword_search_results_breaks_prev"
    env, episode = start(episodes, make_env, kind, name, mode)
    pages = [env.step(recorded["action"])[0][-1]["content"] for recorded in episode["steps"][:3]]
    assert [page == r[f"obs_{mode}"] for page, r in zip(pages, episode["steps"], strict=False)] == [
        True,
        True,
        False,
    ]
    assert "Page 1 (Total results: 1)" in pages[2]
