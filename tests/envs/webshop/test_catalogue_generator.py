"""The embedded catalogue: valid, reproducible, solvable and neither trivial nor hopeless."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cached_property

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.envs.webshop import catalogue_generator as generator
from agentgym.envs.webshop.catalogue_generator import LEVELS, Level, content_hash, generate
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.fuzzy import is_match
from agentgym.envs.webshop.goals import build_goals, split_range
from agentgym.envs.webshop.index import SearchIndex
from agentgym.envs.webshop.nouns import rule_nouns
from agentgym.envs.webshop.policies import OraclePolicy
from agentgym.envs.webshop.products import RawData, build_catalogue
from agentgym.envs.webshop.reward import normalize_color, score_purchase
from agentgym.envs.webshop.vocabulary.attributes import ATTRIBUTES
from agentgym.envs.webshop.vocabulary.kinds import KINDS
from agentgym.envs.webshop.vocabulary.options import OPTION_GROUPS
from agentgym.envs.webshop.vocabulary.tiny import TINY_ATTRIBUTES, TINY_KINDS, TINY_OPTIONS
from agentgym.errors import ConfigError

PUBLISHED = {
    "tiny": "9c100b0ea08a41466e26a45a0a56bccf6fd2178e8e28d9beeac07066b142eb80",
    "easy": "ca3060c2b4b1ca8cf64318c00c90904b3d6a8cdb72e44244cea1f48a044b5882",
    "standard": "b0649a48fc599a6cbdbcb63ddf730019c782193fb31a27708ea38504937c3f01",
    "hard": "42ec59bb0a5da43fbc4bff0f49cf4a3c938bd54fa31de0eaf0095a6c232bed5a",
}
"""Content hashes at 1,000 products, seed 0. Changing one changes tasks: bump the env's version."""

BUTTONS = {"search", "buy now", "back to search", "next >", "< prev"} | {
    "description",
    "features",
    "reviews",
    "attributes",
}
SMALL_TALK = """
i am i'm a an the looking for need want to buy find me can you could help please show in of that is
are with has have and it its they them should be must sure make one some pair get would like i'd
love order size color come comes interested market searching hunting shopping trying where do sell
from my prefer pick as
"""
QUICK = {"tiny", "standard"}
"""The levels of the fast tests: the smallest, and the one that is played unless told otherwise."""
levels = pytest.mark.parametrize(
    "level",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.thorough) for each in LEVELS],
)


class Shops(dict):
    def __missing__(self, level):
        self[level] = Shop(generate(1000, difficulty=level))
        return self[level]


@pytest.fixture(scope="module")
def shops():
    """Everything the tests need of each level at 1,000 products."""
    return Shops()


class Shop:
    def __init__(self, raw, *, data_seed=0):
        self.raw, self.data_seed = raw, data_seed

    @cached_property
    def catalogue(self):
        return build_catalogue(RawData(*self.raw))

    @cached_property
    def goals(self):
        return {
            kind: build_goals(self.catalogue, kind=kind, data_seed=self.data_seed)
            for kind in ("human", "synthetic")
        }

    def buy(self, kind, goal, product, options):
        price = self.goals[kind].prices[product.asin]
        return score_purchase(product, goal, price=price, options=options, nouns=rule_nouns).score

    def wanted_options(self, goal, product):
        """The goal's option values that the product has, by group, as clicks would set them."""
        return {
            group: value
            for group, values in product.options.items()
            for value in values
            if value in goal.option_values
        }

    def unsolved(self):
        for kind, table in self.goals.items():
            for goal in table.goals:
                options = self.wanted_options(goal, goal.product)
                if self.buy(kind, goal, goal.product, options) != 1.0:
                    yield kind, goal.instruction, goal.attributes, options
                assert len(options) == len(goal.options)


@levels
def test_every_goal_is_solved_by_its_product_with_its_options(shops, level):
    assert list(shops[level].unsolved()) == []


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(10, 90),
    seed=st.integers(-(2**70), 2**70),
    data_seed=st.integers(0, 1000),
    level=st.sampled_from(list(LEVELS)),
)
def test_any_size_and_seed_is_valid_and_solvable(size, seed, data_seed, level):
    raw = generate(size, seed=seed, difficulty=level)
    asins = [product["asin"] for product in raw.products]
    assert len(set(asins)) == size
    assert all(re.fullmatch(r"B0[0-9A-Z]{8}", asin) for asin in asins)
    assert list(raw.attributes) == list(raw.human_instructions) == asins
    assert list(Shop(raw, data_seed=data_seed).unsolved()) == []


@settings(max_examples=25, deadline=None)
@given(
    siblings=st.integers(0, 12),
    attributes=st.integers(2, 6),
    titled=st.integers(0, 6),
    values=st.tuples(st.integers(1, 3), st.integers(3, 12)),
    length=st.integers(0, 3),
    paraphrase=st.floats(0, 1),
)
def test_any_level_of_ones_own_is_solvable(**fields):
    level = Level(wanted=(1, 3), groups=(0.2, 0.3, 0.3, 0.2), asked=0.5, **fields)
    assert list(Shop(generate(40, difficulty=level)).unsolved()) == []


@levels
def test_fields_are_those_of_the_original_file(shops, level):
    raw = shops[level].raw
    for product in raw.products:
        assert all(isinstance(product[key], str) for key in ("name", "full_description", "pricing"))
        assert product["images"]
        assert product["small_description"]
        assert product["category"] in {"beauty", "electronics", "fashion", "garden", "grocery"}
        assert product["product_category"].count(" › ") >= 1
        for values in (product["customization_options"] or {}).values():
            assert len({value["value"].lower() for value in values}) == len(values)
        own = raw.attributes[product["asin"]]
        assert set(own["instruction_attributes"]) <= set(own["attributes"])
        for entry in raw.human_instructions[product["asin"]]:
            assert entry["instruction_attributes"]
            assert set(entry["instruction_attributes"]) <= set(own["attributes"])
            assert entry["asin"] == product["asin"]


@levels
def test_no_option_value_is_a_button_or_in_two_groups(shops, level):
    for product in shops[level].catalogue.products:
        values = [value for group in product.options.values() for value in group]
        assert len(set(values)) == len(values)
        assert not BUTTONS & set(values)


@pytest.mark.parametrize("level", list(LEVELS))
def test_published_hash(shops, level):
    assert content_hash(shops[level].raw) == PUBLISHED[level]


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
@pytest.mark.thorough
def test_other_processes_make_the_same_catalogue(hash_seed):
    code = (
        "from agentgym.envs.webshop.catalogue_generator import *\n"
        "print(content_hash(generate(60, seed=3)), content_hash(generate(60, difficulty='tiny')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [content_hash(generate(60, seed=3)), content_hash(generate(60, difficulty="tiny"))]
    assert done.stdout.split() == here


def test_smaller_catalogue_is_a_prefix_of_a_larger_one():
    assert generate(120).products[:50] == generate(50).products


def test_other_seeds_have_other_products_and_asins():
    first, second = generate(50, seed=0), generate(50, seed=1)
    assert not set(first.attributes) & set(second.attributes)
    assert {p["name"] for p in first.products} != {p["name"] for p in second.products}


def test_hash_sees_every_part():
    raw = generate(10)
    raw.human_instructions[raw.products[0]["asin"]][0]["instruction"] += "!"
    assert content_hash(raw) != content_hash(generate(10))


def test_asins_are_unique_for_any_index():
    asins = {generator._asin(index, 12345) for index in range(200_000)}
    assert len(asins) == 200_000


@levels
def test_splits_are_large_enough_to_learn_and_to_measure(shops, level):
    human = len(shops[level].goals["human"])
    assert len(split_range(human, "validation")) >= 300
    assert len(split_range(human, "train")) >= 1500
    assert len(shops[level].goals["synthetic"]) <= (5000 if level != "hard" else 9000)


@levels
def test_products_are_found_by_the_key_words_of_their_instructions(shops, level):
    shop = shops[level]
    index = SearchIndex(p.search_text for p in shop.catalogue.products)
    for table in shop.goals.values():
        goals = table.goals[:600]
        found = 0
        for goal in goals:
            wish = goal.instruction.split(", and price lower")[0].lower()
            words = [
                word for word in re.findall(r"[\w'-]+", wish) if word not in SMALL_TALK.split()
            ]
            hits = index.search(" ".join(words))
            found += any(shop.catalogue.products[place] is goal.product for place, _ in hits)
        assert found / len(goals) >= 0.95


@pytest.mark.parametrize(
    ("level", "least", "most"),
    [("tiny", 0.2, 0.4), ("easy", 0.35, 0.55), ("standard", 0.25, 0.45), ("hard", 0.0, 0.05)],
)
@pytest.mark.thorough
def test_first_hit_without_options_is_often_wrong(shops, level, least, most):
    shop = shops[level]
    index = SearchIndex(p.search_text for p in shop.catalogue.products)
    plain, with_options = [], []
    for goal in shop.goals["human"].goals[:600]:
        product = shop.catalogue.products[index.search(goal.instruction)[0][0]]
        options = shop.wanted_options(goal, product)
        plain.append(shop.buy("human", goal, product, {}) == 1.0)
        with_options.append(shop.buy("human", goal, product, options) == 1.0)
    assert least <= sum(plain) / len(plain) <= most
    assert sum(with_options) / len(with_options) <= 0.9  # siblings alone cost something


@levels
def test_sibling_differs_in_one_thing_which_often_costs_reward(level):
    lone = LEVELS[level].model_copy(update={"siblings": 1, "ranges": 0.0, "unpriced": 0.0})
    shop = Shop(generate(600, difficulty=lone))
    products = shop.catalogue.products
    twin = {}
    for one, two in zip(products[::2], products[1::2], strict=True):
        twin[one.asin], twin[two.asin] = two, one
        changed = [
            set(one.attributes) != set(two.attributes),
            one.prices != two.prices,
            one.options != two.options,
        ]
        assert sum(changed) == 1
    goals = shop.goals["human"].goals
    missed = 0
    for goal in goals:
        other = twin[goal.product.asin]
        missed += shop.buy("human", goal, other, shop.wanted_options(goal, other)) < 1.0
    assert missed / len(goals) > 0.25


def test_tiny_is_a_closed_vocabulary(shops):
    words = set()
    for product in shops["tiny"].catalogue.products:
        assert 2 <= len(product.title.split()) <= 4
        words |= set(product.title.split()) | set(" ".join(product.bullets).split())
        words |= {product.price_tag} | set(product.query.split()) | set(product.attributes)
        words |= set(product.product_category.split()) | set(product.description.split())
        for name, values in product.options.items():
            words |= {name, name + ":", *values}
    for table in shops["tiny"].goals.values():
        words |= {word for goal in table.goals for word in goal.instruction.split()}
    words |= {f"{value}," for group in TINY_OPTIONS.values() for value in group.values}
    words |= {f"{kind.nouns[0]}," for kind in TINY_KINDS}
    assert len(words) < 260  # pages add about 130: buttons, page and hit numbers, done page
    other = Shop(generate(1000, seed=99, difficulty="tiny"))
    for goal in other.goals["human"].goals:
        assert set(goal.instruction.split()) <= words


@pytest.mark.thorough
def test_levels_differ_as_documented(shops):
    def words(text):
        return len(text.split())

    titles = [
        sum(words(p.title) for p in shops[level].catalogue.products) / 1000 for level in LEVELS
    ]
    wishes = [
        sum(words(g.instruction) for g in shops[level].goals["human"].goals) / 3000
        for level in LEVELS
    ]
    assert titles == sorted(titles)
    assert wishes == sorted(wishes)
    standard = shops["standard"].catalogue.products
    assert 40 <= sum(len(p.prices) == 2 for p in standard) <= 130
    assert 250 <= sum(not p.options for p in standard) <= 450
    assert all(len(shops[level].catalogue) == 1000 for level in LEVELS)
    counts = Counter(p.category for p in standard)
    assert len(counts) == 5
    assert min(counts.values()) > 150


@pytest.mark.thorough
def test_wording_varies(shops):
    for level in ("easy", "standard", "hard"):
        texts = [goal.instruction for goal in shops[level].goals["human"].goals]
        assert len(set(texts)) > 0.99 * len(texts)
        assert len({" ".join(text.split()[:3]) for text in texts}) >= 25
        assert all(text == text.lower() for text in texts)


def test_unknown_difficulty_names_the_known_ones():
    with pytest.raises(ConfigError, match="tiny, easy, standard, hard"):
        generate(10, difficulty="brutal")


@pytest.mark.parametrize(
    "change", [{"groups": (0.5, 0.6)}, {"wanted": (3, 1)}, {"values": (0, 2)}, {"colour": 1}]
)
def test_bad_level_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Level(**{**LEVELS["easy"].model_dump(), **change})


# The vocabulary itself: what makes goals solvable and near misses miss.


def _same_option(chosen, wanted):
    return is_match(str(normalize_color(chosen)), str(normalize_color(wanted)))


@pytest.mark.parametrize("key", [*OPTION_GROUPS, *TINY_OPTIONS])
def test_option_value_matches_itself_and_no_other_of_its_group(key):
    group = OPTION_GROUPS.get(key) or TINY_OPTIONS[key]
    values = [value.lower() for value in group.values]
    for chosen, wanted in itertools.product(values, repeat=2):
        for form in (wanted, (group.label.lower(), wanted)):
            assert _same_option(chosen, form) == (chosen == wanted), (chosen, form)


def test_option_values_of_one_product_never_stand_for_another_group():
    for kind in KINDS:
        for one, two in itertools.permutations(kind.options, 2):
            label = OPTION_GROUPS[two].label.lower()
            for a, b in itertools.product(OPTION_GROUPS[one].values, OPTION_GROUPS[two].values):
                assert not _same_option(a.lower(), b.lower())
                assert not _same_option(a.lower(), (label, b.lower()))


@pytest.mark.parametrize(
    ("kinds", "attributes"), [(KINDS, ATTRIBUTES), (TINY_KINDS, TINY_ATTRIBUTES)]
)
def test_attributes_of_a_kind_are_never_taken_for_each_other(kinds, attributes):
    for kind in kinds:
        assert len(kind.attributes) >= 8
        for one, two in itertools.permutations(kind.attributes, 2):
            assert not is_match(one, two)
        for name in kind.attributes:
            said = " | ".join((*kind.nouns, *kind.uses, kind.query)).lower()
            others = [attributes[other] for other in kind.attributes if other != name]
            for other in others:
                said += " | ".join((other.bullet, other.said, *other.paraphrases)).lower()
            assert name not in said, name


def test_paraphrases_avoid_the_name():
    for attribute in ATTRIBUTES.values():
        assert attribute.paraphrases
        assert all(attribute.name not in text for text in attribute.paraphrases)


@pytest.mark.parametrize("kind", ["human", "synthetic"])
@levels
def test_oracle_solves_tasks_through_the_environment(level, kind):
    env = WebShopEnv(goals=kind, difficulty=level, gates=(), max_turns=40)
    oracle = OraclePolicy(env)
    for number in range(0, 2000, 50):
        messages, info = env.reset(options={"task_id": f"webshop/{kind}/{number}"})
        history, ended, reward = list(messages), False, 0.0
        while not ended:
            action = oracle(history, info)
            said = {"role": "assistant", "content": action} if isinstance(action, str) else action
            history.append(said)
            messages, reward, terminated, truncated, info = env.step(action)
            history.extend(messages)
            ended = terminated or truncated
        assert terminated
        assert reward == 1.0
    env.close()


@pytest.mark.parametrize("count", [-1, 0, 9, 10**13])
def test_sizes_that_no_shop_has_are_refused_at_once(count: int) -> None:
    with pytest.raises(ConfigError, match="from 10 to 2000000"):
        generate(count)
