"""Agreement with the original on its own 1,000 products; skipped where these are absent."""

import json
import random

import pytest

from agentgym.envs.webshop.files import read_folder
from agentgym.envs.webshop.fuzzy import THRESHOLD, is_match, token_set_ratio
from agentgym.envs.webshop.goals import Goal, build_goals, cumulative_weights, original_draw
from agentgym.envs.webshop.nouns import RecordedNouns, noun_finder, rule_nouns
from agentgym.envs.webshop.policies import OraclePolicy
from agentgym.envs.webshop.products import Product, build_catalogue
from agentgym.envs.webshop.reward import score_purchase
from agentgym.envs.webshop.shop import Shop

NOUNS = "golden/nouns_en_core_web_sm_3.6.0.json"


@pytest.fixture(scope="module")
def products(scraped):
    return build_catalogue(read_folder(scraped / "data"))


@pytest.fixture(scope="module")
def synthetic(products):
    return build_goals(products, kind="synthetic", data_seed=0)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rankings_and_scores_are_lucenes(scraped, products):
    shop = Shop(products)
    queries = lines(scraped / "golden/search_1k.jsonl")
    assert len(queries) == 106
    for query in queries:
        found = shop.scores(query["query"])
        assert [asin for asin, _ in found] == [asin for asin, _ in query["hits"]]
        wanted = [score for _, score in query["hits"]]
        assert [score for _, score in found] == pytest.approx(wanted, abs=1e-4)


def product_from(raw):
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        description=raw.get("Description", ""),
        bullets=tuple(raw.get("BulletPoints", ())),
        price_tag="",
        prices=(1.0,),
        options={},
        attributes=tuple(raw.get("Attributes", ())),
        category="",
        query=raw["query"],
        product_category=raw["product_category"],
    )


def test_reward_vectors(scraped):
    vectors = lines(scraped / "golden/reward_vectors.jsonl")
    assert len(vectors) == 120
    for vector in vectors:
        raw = vector["goal"]
        options = raw["goal_options"]
        goal = Goal(
            product=product_from(raw),
            instruction=raw["instruction_text"],
            attributes=tuple(raw["attributes"]),
            price_upper=raw["price_upper"],
            options=tuple(options.items() if isinstance(options, dict) else options),
        )
        bought = product_from(vector["purchased"])
        nouns = RecordedNouns(
            {raw["name"]: vector["goal_nouns"], bought.title: vector["purchased_nouns"]}
        )
        reward = score_purchase(
            bought, goal, price=vector["price"], options=vector["options"], nouns=nouns
        )
        assert reward.score == pytest.approx(vector["reward"], abs=1e-12)
        assert reward.details == vector["info"]
        assert reward.attribute_matches == vector["num_attr_matches"]
        assert reward.option_matches == vector["num_option_matches"]


def test_counts_are_the_originals(products, synthetic):
    assert len(products) == 1000
    assert len(synthetic) == 6910
    assert len(build_goals(products, kind="human", data_seed=0)) == 13


def test_original_draw_repeats_the_originals_sequence(synthetic):
    rng = random.Random()
    rng.setstate(synthetic.draw_state)
    cumulative = cumulative_weights(synthetic.goals)
    original_draw(cumulative, rng)  # the original's constructor resets once
    drawn = [original_draw(cumulative, rng) for _ in range(5)]
    assert drawn == [5457, 3613, 2985, 3529, 4196]


def test_exact_purchase_reaches_the_originals_ceiling(scraped, synthetic):
    nouns = noun_finder(str(scraped / NOUNS))
    scores = [
        score_purchase(
            goal.product,
            goal,
            price=synthetic.prices[goal.product.asin],
            options=dict(goal.options),
            nouns=nouns,
        ).score
        for goal in synthetic.goals
    ]
    assert sum(score == 1.0 for score in scores) == 6452
    assert sum(scores) / len(scores) == pytest.approx(0.9896, abs=5e-5)
    assert min(scores) == pytest.approx(2 / 3)


def test_noun_rule_gives_the_goals_own_product_the_full_type_reward(products):
    for product in products.products:
        nouns = rule_nouns(product.title)
        assert not nouns or len(set(nouns)) / len(nouns) >= 0.1


def test_oracle_solves_the_human_goals(scraped, play, make_env):
    env = make_env(data=scraped / "data", nouns="rule")
    assert [play(env, OraclePolicy(env), task_id) for task_id in env.task_ids()] == [1.0] * 13


def test_cached_match_agrees_on_all_attribute_pairs_of_a_sample(products):
    rng = random.Random(0)
    names = sorted({name for p in products.products for name in p.attributes})
    for _ in range(3000):
        a, b = rng.choice(names), rng.choice(names)
        assert is_match(a, b) == (token_set_ratio(a, b) > THRESHOLD)
