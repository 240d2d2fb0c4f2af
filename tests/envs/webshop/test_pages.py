import pytest

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.products import Product


@pytest.fixture
def product():
    return Product(
        asin="B1",
        title="  Lamp ",
        description="one\ntwo",
        bullets=("soft", "", " ", "\n"),
        price_tag="$5.0",
        prices=(5.0,),
        options={"size": ("7", "8"), "width": ("7",)},
        attributes=("a",),
        category="c",
        query="q",
        product_category="p",
    )


def test_blank_texts_become_one_space_or_nothing(product):
    nodes = pages.sub_page("buy", product, "Features")
    assert [text for _, text in nodes[4:]] == [" soft", " ", " "]
    assert pages.write_text(nodes).endswith("< Prev [SEP] soft [SEP]  [SEP] ")


def test_clickables_are_unique_and_in_the_originals_order(product):
    nodes = pages.item_page("buy", product, show_attrs=True)
    assert pages.clickables(nodes, product) == [
        "back to search",
        "< prev",
        "description",
        "features",
        "reviews",
        "attributes",
        "buy now",
        "7",
        "8",
    ]


def test_notices_come_first_with_the_last_option_on_top(product):
    nodes = pages.item_page("buy", product, show_attrs=False)
    page = pages.write_text_rich(nodes, is_selected=lambda text: True, visited=())
    assert page.startswith("You have clicked 7.\nYou have clicked 8.\nYou have clicked 7.\nInstru")


def test_done_page_shows_choices_as_escaped_json():
    nodes = pages.done_page("B1", {"b": "<é>", "a": "it's & so"}, 0.5)
    text = pages.write_text(nodes)
    assert r'{"a": "it\u0027s \u0026 so", "b": "\u003c\u00e9\u003e"}' in text
    assert "Your score (min 0.0, max 1.0) [SEP] 0.5" in text
