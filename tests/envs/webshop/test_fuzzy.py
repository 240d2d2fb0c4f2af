import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop.fuzzy import THRESHOLD, is_match, token_set_ratio


@pytest.mark.parametrize(
    ("a", "b", "score"),
    [
        ("machine washable", "machine wash", 86),
        ("long sleeve", "long sleeves", 96),
        ("water resistant", "water resistance", 90),
        ("easy clean", "clean easy", 100),
        ("short sleeve", "long sleeve", 71),
        ("easy clean", "easy use", 67),
        ("x-large", "large", 100),
        ("x-large", "xx-large", 93),
        ("7", "7.5 wide", 100),
        ("ash", "('color', 'antique graywash')", 24),
        ("green", "('color', 'green2')", 59),
        ("", "red", 0),
        ("é", "é", 0),
    ],
)
def test_scores_are_those_of_thefuzz_0_19(a, b, score):
    assert token_set_ratio(a, b) == score
    assert is_match(a, b) == (score > THRESHOLD)


WORDS = st.lists(st.sampled_from("red reds blue blues sleeve sleeves 7 7.5 x-large".split()))


@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_quick_answer_agrees_with_the_full_score(a, b):
    assert is_match(a, b) == (token_set_ratio(a, b) > THRESHOLD)


@given(st.text(max_size=30), st.text(max_size=30))
def test_quick_answer_agrees_on_any_text(a, b):
    assert is_match(a, b) == (token_set_ratio(a, b) > THRESHOLD)
    assert 0 <= token_set_ratio(a, b) <= 100
