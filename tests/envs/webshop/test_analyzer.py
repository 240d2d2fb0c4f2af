import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop.analyzer import analyze, words
from agentgym.envs.webshop.stemmer import porter_stem


def test_recorded_texts_give_lucenes_terms(load):
    vectors = load("analyzer_vectors.json")
    assert len(vectors) == 170
    assert [analyze(vector["text"]) for vector in vectors] == [v["tokens"] for v in vectors]


def test_recorded_words_give_lucenes_stems(load):
    vectors = load("stem_vectors.json")
    assert len(vectors) == 3000
    assert {word: porter_stem(word) for word in vectors} == vectors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fabric:cotton", ["fabric:cotton"]),
        ("u.s.a", ["u.s.a"]),
        ("1,000 3.5oz", ["1,000", "3.5oz"]),
        ("t-shirt/tee", ["t", "shirt", "tee"]),
        ("women's men’s", ["women's", "men’s"]),
        ("a_b __ c", ["a_b", "c"]),
        ("☕ ★ nike™", ["☕", "★", "nike", "™"]),
        ("中文 ひら カタカナ", ["中", "文", "ひ", "ら", "カタカナ"]),
        ("10. x.5", ["10", "x", "5"]),
        ("", []),
    ],
)
def test_words_follow_unicode_word_breaks(text, expected):
    assert words(text) == expected


def test_words_longer_than_255_are_cut():
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


def test_a_run_of_connectors_is_read_once():
    """Tried again from each character, this text took 43 s."""
    assert words("_" * 20_000) == []
    assert words("_\u0301" * 10_000 + " b") == ["b"]
    assert "".join(words("a" + "_" * 20_000)) == "a" + "_" * 20_000


def test_possessive_and_stop_words_go():
    assert analyze("The women's shoes") == ["women", "shoe"]


@given(st.text(max_size=200))
def test_any_text_gives_nonempty_terms_found_in_it(text):
    assert all(words(text))
    assert all(word in text for word in words(text))
    assert all(analyze(text))


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=40))
def test_analysis_ignores_ascii_case(text):
    assert analyze(text) == analyze(text.upper()) == analyze(text.lower())
