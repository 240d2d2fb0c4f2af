import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop.colors import COLORS
from agentgym.envs.webshop.goals import Goal
from agentgym.envs.webshop.nouns import rule_nouns
from agentgym.envs.webshop.products import Product
from agentgym.envs.webshop.reward import normalize_color, score_purchase


def product(title="red shoe", *, attributes=("soft",), query="shoes", category="A › B", bullets=()):
    return Product(
        asin="B1",
        title=title,
        description="",
        bullets=bullets,
        price_tag="$10.0",
        prices=(10.0,),
        options={},
        attributes=attributes,
        category="fashion",
        query=query,
        product_category=category,
    )


def goal(wanted=None, *, attributes=("soft",), upper=20.0, options=()):
    return Goal(wanted or product(), "", attributes, upper, options)


def score(bought, aim, *, price=10.0, **options):
    return score_purchase(bought, aim, price=price, options=options, nouns=rule_nouns)


def test_colors_are_the_originals_in_order(load):
    assert list(COLORS) == load("color_list.json")


@pytest.mark.parametrize(
    ("value", "color"),
    [
        ("navy blue", "blue"),
        ("light blue", "blue"),
        ("heather grey", "grey"),
        ("dark heather", "dark"),
        ("stainless steel", "steel"),
        ("titanium", "tan"),
        ("watercolored", "red"),
        ("antique graywash", "ash"),
        ("black1901", "black"),
        ("size 7", "size 7"),
        (("color", "navy blue"), ("color", "navy blue")),
        (("color", "red"), "red"),
    ],
)
def test_colors_are_normalised_as_the_original_does(value, color):
    assert normalize_color(value) == color


def test_reward_worked_by_hand():
    # 1 of 2 attributes, 1 of 2 options, price met: (1 + 1 + 1) / 5
    aim = goal(attributes=("soft", "loud"), options=("navy blue", "size 9"))
    reward = score(product(), aim, color="blue")
    assert reward.score == pytest.approx(3 / 5)
    assert reward.details == {
        "r_type": 1.0,
        "query_match": True,
        "category_match": True,
        "title_score": 1.0,
        "r_att": 0.5,
        "w_att": 2 / 5,
        "r_option": 0.5,
        "w_option": 2 / 5,
        "r_price": True,
        "w_price": 1 / 5,
    }


def test_attribute_in_a_text_counts():
    assert score(product(attributes=(), bullets=("Very SOFT.",)), goal()).details["r_att"] == 1.0


def test_price_above_the_limit_costs_its_part():
    assert score(product(), goal(), price=20.01).score == pytest.approx(1 / 2)
    assert score(product(), goal(), price=20.0).score == 1.0


@pytest.mark.parametrize(
    ("title", "query", "category", "r_type"),
    [
        ("red shoe", "shoes", "A › B", 1.0),
        ("blue hat", "shoes", "A › B", 0.0),
        ("red hat", "hats", "C › D", 1.0),
        ("one two three four five six shoe", "hats", "C › D", 1.0),
    ],
)
def test_type_reward(title, query, category, r_type):
    bought = product(title, query=query, category=category)
    assert score(bought, goal()).details["r_type"] == r_type


def test_type_reward_of_little_overlap():
    wanted = product("a1 b1 c1 d1 e1 f1 g1 h1 i1 shoe")
    other = product("shoe", query="hats", category="C")
    assert score(other, goal(wanted)).details["r_type"] == 0.5
    wanted = product("a1 b1 c1 d1 e1 f1 g1 h1 i1 j1 shoe")
    assert score(other, goal(wanted)).details["r_type"] == 0.1


def test_goal_without_options_has_no_option_part():
    details = score(product(), goal()).details
    assert "r_option" not in details
    assert "w_option" not in details


def test_more_choices_than_wanted_never_exceed_one():
    wanted = product("red a shoe", attributes=())
    aim = Goal(wanted, "", ("a",), 20.0, ())
    assert score(wanted, aim, color="red").score == 1.0


WORD = st.sampled_from(["red", "shoe", "soft", "hat", "7", "x-large", "navy blue", ""])
WORDS = st.lists(WORD, max_size=4)


@given(
    st.tuples(WORD, WORD),
    WORDS,
    WORDS,
    WORDS,
    st.booleans(),
    st.dictionaries(WORD, WORD, max_size=3),
    st.floats(0, 2000),
)
def test_score_is_always_between_zero_and_one(titles, own, wanted, options, paired, chosen, price):
    bought = product(" ".join(titles), attributes=tuple(own))
    pairs = tuple(("size", value) for value in options) if paired else tuple(options)
    aim = Goal(product(titles[1]), "", tuple(wanted), 20.0, pairs)
    reward = score_purchase(bought, aim, price=price, options=chosen, nouns=rule_nouns)
    assert 0.0 <= reward.score <= 1.0
