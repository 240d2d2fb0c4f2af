import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop.index import MAX_HITS, SearchIndex, quantized_length


@pytest.mark.parametrize(
    ("length", "kept"), [(0, 0), (40, 40), (41, 40), (42, 42), (107, 104), (271, 264)]
)
def test_lengths_are_rounded_as_lucene_rounds_them(length, kept):
    assert quantized_length(length) == kept


@given(st.integers(0, 1_000_000))
def test_rounded_length_is_a_fixed_point_and_never_longer(length):
    kept = quantized_length(length)
    assert kept <= length
    assert quantized_length(kept) == kept


def test_score_is_the_formula_worked_by_hand():
    index = SearchIndex(["red shoes red", "blue shoes", "hat"])
    # "red": N=3, df=1, tf=2, len=3, avgdl=(3+2+1)/3=2
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    norm = 0.9 * (1 - 0.4 + 0.4 * 3 / 2)
    assert index.search("red") == ((0, pytest.approx(idf * 2 / (2 + norm), abs=1e-6)),)


def test_equal_scores_keep_the_order_of_the_documents():
    index = SearchIndex(["red shoe", "hat", "red shoe", "red shoe"])
    assert [number for number, _ in index.search("red")] == [0, 2, 3]


def test_repeated_query_word_counts_each_time():
    index = SearchIndex(["red shoe", "blue hat"])
    assert index.search("red red")[0][1] == pytest.approx(2 * index.search("red")[0][1])


def test_at_most_fifty_hits_and_ties_at_the_cut_go_to_the_earlier():
    hits = SearchIndex(["red shoe"] * 80).search("red")
    assert len(hits) == MAX_HITS
    assert [number for number, _ in hits] == list(range(50))


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zzzz", "!?"])
def test_nothing_to_look_for_finds_nothing(query):
    assert SearchIndex(["red shoe"]).search(query) == ()


def test_floods_of_text_are_answered_and_not_kept():
    index = SearchIndex(["red shoe", "hat"])
    flood = "red " * 1000
    assert index.search(flood)[0][0] == 0
    assert index._search.cache_info().currsize == 0
    assert index.search("red")
    assert index._search.cache_info().currsize == 1


def test_empty_texts_are_indexed_without_a_fault():
    index = SearchIndex(["", ""])
    assert index.search("red") == ()
    assert not index.has_terms
