import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop.session import Place, Session
from agentgym.envs.webshop.shop import Shop


@pytest.fixture(scope="module")
def shop(catalogue):
    return Shop(catalogue)


@pytest.fixture
def visit(shop):
    return Session(shop, "buy it")


def test_visit_to_every_page(visit):
    assert visit.search("Sandals")
    assert visit.place is Place.RESULTS
    assert visit.click(visit.hits[0].asin)
    assert visit.place is Place.ITEM
    assert visit.click("DESCRIPTION")
    assert visit.place is Place.SUB_PAGE
    assert not visit.click("buy now")
    assert visit.click("< prev")
    assert visit.click("buy now")
    assert visit.place is Place.DONE
    assert visit.clickables() == []


def test_nothing_works_after_the_purchase(visit):
    visit.search("sandals")
    visit.click(visit.hits[0].asin)
    visit.click("buy now")
    assert not visit.search("sandals")
    assert not visit.click("back to search")
    assert visit.place is Place.DONE


def test_search_button_and_blank_target_cannot_be_clicked(visit):
    assert visit.clickables() == ["search"]
    assert not visit.click("search")
    assert not visit.click("")
    assert not visit.search("")


def test_page_size_is_a_lever(shop):
    visit = Session(shop, "buy it", page_size=3)
    visit.search("sandals")
    links = [name for name in visit.clickables() if name.startswith("b0")]
    assert links == [product.asin.lower() for product in visit.hits[:3]]
    visit.click("next >")
    assert visit.page("text").split(" [SEP] ")[-3] == visit.hits[5].asin


def test_random_products_keep_their_order_over_page_turns(visit):
    visit.search("<r>")
    assert len(visit.hits) == 50
    first = visit.page("text")
    visit.click("next >")
    visit.click("< prev")
    assert visit.page("text") == first


def test_random_products_of_a_small_shop_are_all_of_it(shop, catalogue):
    class Small:
        products = catalogue.products[:7]

    small = Shop.__new__(Shop)
    small.catalogue = Small
    visit = Session(small, "buy it")
    assert visit.search("<r>")
    assert len(visit.hits) == 7


def test_quoted_search_words_mark_options_as_the_original_does(shop):
    visit = Session(shop, "buy it")
    product = next(p for p in shop.catalogue.products if "red" in p.options.get("color", ()))
    visit.search(f'"red" {product.title}')
    visit.click(product.asin)
    assert "You have clicked red." in visit.page("text_rich")
    assert visit.options == {}


def test_copy_is_independent_and_shares_the_shop(visit):
    visit.search("sandals")
    visit.click(visit.hits[0].asin)
    twin = copy.deepcopy(visit)
    assert twin.shop is visit.shop
    assert twin.product is visit.product
    page = twin.page("text_rich")
    visit.options["x"] = "y"
    visit.visited.clear()
    visit.click("back to search")
    assert twin.page("text_rich") == page
    assert (twin.options, len(twin.visited)) == ({}, 1)


@given(choices=st.lists(st.integers(0, 10_000), max_size=40))
def test_any_walk_over_the_offered_actions_keeps_the_state_sound(shop, choices):
    visit = Session(shop, "buy it", show_attrs=True)
    for choice in choices:
        offered = [name for name in visit.clickables() if name != "search"]
        if not offered or choice % 7 == 0:
            assert visit.search(f"shoes {choice}") == (visit.place is not Place.DONE)
        else:
            assert visit.click(offered[choice % len(offered)])
        assert visit.number >= 1
        assert (visit.product is None) == (visit.place in {Place.START, Place.RESULTS})
        assert len(set(visit.clickables())) == len(visit.clickables())
        assert visit.page("text")
        assert visit.page("text_rich").endswith("\n")
        for group, value in visit.options.items():
            assert value in visit.product.options[group]


@given(st.text(max_size=20))
def test_any_text_can_be_searched_and_clicked(shop, text):
    visit = Session(shop, "buy it")
    assert visit.search(text) == bool(text)
    visit.click(text)
