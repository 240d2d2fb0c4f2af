import pytest

from agentgym.envs.webshop.products import RawData, build_catalogue
from agentgym.errors import DataError


def build(*products, attributes=None, human=None, **options):
    data = RawData(products, attributes or {}, human or {}, source=("p.json", "a.json", "h.json"))
    return build_catalogue(data, **options)


def test_product_is_converted_as_the_original_does(raw_product):
    product = build(raw_product).products[0]
    assert product.title == "Red Shoe"
    assert product.query == "shoes"
    assert product.options == {"size": ("7 | 8", "9")}
    assert (product.price_tag, product.prices) == ("$12.5", (12.5,))
    assert product.attributes == ("DUMMY_ATTR",)
    assert product.search_text == "red shoe a shoe. soft size: 7 | 8, 9"


@pytest.mark.parametrize(
    ("pricing", "tag", "prices"),
    [
        ("", "$100.0", (100.0,)),
        (None, "$100.0", (100.0,)),
        ("$8.50", "$8.5", (8.5,)),
        ("$1,234.56", "$1234.56", (1234.56,)),
        ("$5.00 - $7.00", "$5.0 to $7.0", (5.0, 7.0)),
        ("$5 - $7 - $9", "$5.0 to $7.0", (5.0, 7.0)),
    ],
)
def test_prices_are_read_as_the_original_does(raw_product, pricing, tag, prices):
    product = build(raw_product | {"pricing": pricing}).products[0]
    assert (product.price_tag, product.prices) == (tag, prices)


def test_single_text_of_features_is_one_bullet(raw_product):
    product = build(raw_product | {"small_description": "one text"}).products[0]
    assert product.bullets == ("one text",)


def test_repeated_nameless_and_overlong_ids_are_skipped(raw_product):
    catalogue = build(
        raw_product,
        raw_product | {"name": "again"},
        raw_product | {"asin": "nan"},
        raw_product | {"asin": "B0000000012"},
    )
    assert [product.title for product in catalogue.products] == ["Red Shoe"]


def test_only_the_head_of_the_file_is_taken(raw_product):
    rest = [raw_product | {"asin": f"B{n}"} for n in range(5)]
    assert len(build(*rest, num_products=2)) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("full_description", 7),
        ("small_description", {"a": 1}),
        ("small_description", [1]),
        ("pricing", "free"),
        ("pricing", "$1.2.3"),
        ("pricing", 7),
        ("pricing", "$" + "9" * 400),
        ("customization_options", ["a"]),
        ("customization_options", {"size": "big"}),
        ("customization_options", {"size": [{"price": 3}]}),
        ("images", []),
        ("product_category", None),
        ("category", None),
        ("query", None),
    ],
)
def test_bad_field_is_an_error_naming_file_product_and_field(raw_product, field, value):
    with pytest.raises(DataError, match=rf"p\.json: product 'B000000001': field '{field}'"):
        build(raw_product | {field: value})


@pytest.mark.parametrize("field", ["name", "query", "images", "small_description"])
def test_missing_field_is_an_error_naming_it(raw_product, field):
    del raw_product[field]
    with pytest.raises(DataError, match=f"'B000000001': field '{field}'"):
        build(raw_product)


def test_product_without_id_is_named_by_its_place(raw_product):
    del raw_product["asin"]
    with pytest.raises(DataError, match=r"p\.json: product number 1: field 'asin' is missing"):
        build(raw_product)


def test_product_that_is_no_object_is_an_error():
    with pytest.raises(DataError, match="product number 1 is a str|product number 1 is a string"):
        build("shoe")


def test_bad_attributes_and_instructions_name_their_file(raw_product):
    asin = raw_product["asin"]
    with pytest.raises(DataError, match=r"a\.json: product 'B000000001': field 'attributes'"):
        build(raw_product, attributes={asin: {"attributes": "soft"}})
    with pytest.raises(DataError, match=r"h\.json: product 'B000000001', instruction 1: field"):
        build(raw_product, human={asin: [{"instruction": "x"}]})
    with pytest.raises(DataError, match=r"h\.json: product 'B000000001': is an object"):
        build(raw_product, human={asin: {}})


def test_attributes_that_are_no_object_name_their_product(raw_product):
    with pytest.raises(DataError, match=r"a\.json: product 'B000000001' is a list, not an object"):
        build(raw_product, attributes={raw_product["asin"]: [1]})


def test_broken_text_is_mended_wherever_it_is_shown(raw_product):
    """JSON may escape half a surrogate pair; a page with one could not be encoded."""
    bad = "x\ud83d"
    entry = {"instruction": bad, "instruction_attributes": [bad], "instruction_options": [bad]}
    product = build(
        raw_product
        | {"name": bad, "full_description": bad, "small_description": bad}
        | {"customization_options": {bad: [{"value": bad}]}, "query": bad},
        attributes={raw_product["asin"]: {"attributes": [bad], "instruction": bad}},
        human={raw_product["asin"]: [entry]},
    ).products[0]
    repr(product).encode()
    assert "ud83d" not in repr(product)


def test_empty_data_is_an_error():
    with pytest.raises(DataError, match=r"p\.json: no product in it"):
        build()


def test_digest_depends_on_what_the_environment_uses(raw_product):
    one = build(raw_product).digest
    assert build(raw_product | {"model": "unused"}).digest == one
    assert build(raw_product | {"name": "Blue Shoe"}).digest != one
    assert build(raw_product, raw_product | {"asin": "B2"}).digest != one
