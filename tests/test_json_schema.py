"""JSON schemas: broken ones refused, exact readings, faults in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentgym.errors import ConfigError
from agentgym.json_schema import LONGEST_FAULT, MOST_FAULTS, JsonSchema, rebased
from agentgym.types import MAX_NESTING

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({"city": "Rome"}, []),
        ({"zip": 1}, ["city is missing"]),
        ({"city": 5}, ["city: must be string, got 5"]),
        ({"city": "Rome", "x": 1, "y": 2}, ["x, y is unknown here; there is city, zip"]),
        ([], ["value: must be object, got []"]),
        ({"city": "Rome", "zip": float("inf")}, ["inf is not a JSON number"]),
    ],
)
def test_faults_are_told_in_words(value, faults):
    assert JsonSchema(PLACE, where="t").faults(value) == faults


def test_faults_name_the_place_and_stay_few_and_short():
    schema = JsonSchema({"type": "array", "items": PLACE}, where="t")
    assert schema.faults([{"city": "Rome"}, {"zip": 1}]) == ["1.city is missing"]
    many = schema.faults([{"city": ["x" * 10_000]}] * 100)
    assert len(many) == MOST_FAULTS
    assert max(map(len, many)) <= LONGEST_FAULT


def test_what_cannot_be_computed_cannot_be_checked():
    schema = JsonSchema({"multipleOf": 0.1}, where="t")
    assert "can't be checked" in schema.faults(10**5000)[0]


@pytest.mark.parametrize(
    ("schema", "given", "read"),
    [
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, "4 2", "4 2"),
        ({"type": "integer"}, "1e3", "1e3"),
        ({"type": "integer"}, "٤٢", "٤٢"),
        ({"type": "integer"}, "9" * 5_000, "9" * 5_000),
        ({"type": "integer"}, 2.0, 2),
        ({"type": "integer"}, 2.5, 2.5),
        ({"type": "number"}, "-0.5e2", -50.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "False", "False"),
        ({"type": ["string", "integer"]}, "42", "42"),
        ({"type": "object"}, "{}", "{}"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "42", "42"),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", True),
        ({"allOf": [{"type": "integer"}]}, "42", 42),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}},
         ["1", "true"], [1, True]),
        ({"additionalProperties": {"type": "integer"}}, {"a": "1"}, {"a": 1}),
    ],
)  # fmt: skip
def test_exact_readings(schema, given, read):
    got = JsonSchema(schema, where="t").exact(given)
    assert got == read
    assert type(got) is type(read)


def test_a_schema_that_contains_itself_ends():
    """Trees are fine, however deep."""
    tree = {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
            }
        },
        "$ref": "#/$defs/tree",
    }
    schema = JsonSchema(tree, where="t")
    assert schema.exact({"next": {"next": {"n": "3"}}}) == {"next": {"next": {"n": 3}}}
    deep: dict[str, Any] = {"n": 1}
    for _ in range(MAX_NESTING - 1):
        deep = {"next": deep}
    assert all("can't be checked" in fault for fault in schema.faults(deep))
    assert schema.exact(deep) == deep


@pytest.mark.parametrize(
    "endless",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                                        "b": {"if": {"$ref": "#/$defs/a"}}}},
        {"properties": {"x": {"$ref": "#/$defs/a"}},
         "$defs": {"a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}},
    ],
)  # fmt: skip
def test_a_schema_that_is_its_own_condition_is_refused(endless):
    with pytest.raises(ConfigError, match="leads back to itself"):
        JsonSchema(endless, where="t")


def test_a_stack_that_ends_inside_a_library_is_a_fault_of_the_value(monkeypatch):
    class PanicException(BaseException):
        pass

    PanicException.__module__ = "pyo3_runtime"
    schema = JsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]}, where="t")

    def dies(*args):
        raise PanicException

    monkeypatch.setattr(type(schema._validator), "iter_errors", dies)
    assert "can't be checked" in schema.faults("1")[0]
    assert schema.exact("1") == "1"


@pytest.mark.parametrize("reference", ["other.json", "#anchor", "#/$defs/gone", "https://x.y/z"])
def test_references_out_of_the_schema_are_refused(reference):
    with pytest.raises(ConfigError, match="reference"):
        JsonSchema({"properties": {"default": {"$ref": reference}}}, where="t")


def test_what_looks_like_a_reference_in_data_is_data():
    schema = JsonSchema({"enum": [{"$ref": "nowhere"}]}, where="t")
    assert schema.faults({"$ref": "nowhere"}) == []


def test_a_schema_may_stand_inside_another():
    inner = {
        "$id": "https://example.com/inner",
        "$defs": {"a/b": {"type": "integer"}},
        "properties": {"$ref": {"$ref": "#/$defs/a~1b"}, "const": {"enum": [{"$ref": "#"}]}},
    }
    outer = {"properties": {"in": rebased(inner, "#/properties/in")}}
    schema = JsonSchema(outer, where="t")
    assert schema.faults({"in": {"$ref": 1, "const": {"$ref": "#"}}}) == []
    assert schema.faults({"in": {"$ref": "x"}}) == ['in.$ref: must be integer, got "x"']


def test_the_authors_order_stays():
    names = ["zebra", "apple", "mango"]
    schema = JsonSchema({"properties": {name: {"type": "string"} for name in names}}, where="t")
    assert list(schema.schema["properties"]) == names


def tagged(word: str = "anyOf") -> dict:
    """A filter: a number, or a word with filters."""
    node = {"$ref": "#/$defs/filter"}

    def kind(op):
        properties = {"op": {"const": op}, "args": {"type": "array", "items": node}}
        return {"type": "object", "properties": properties, "required": ["op", "args"]}

    kinds = [kind("and"), kind("or"), kind("not"), {"type": "integer"}]
    return {"$defs": {"filter": {word: kinds}}, "$ref": "#/$defs/filter"}


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
@pytest.mark.parametrize(("leaf", "read"), [("7", 7), (7, 7), ("seven", None)])
def test_alternatives_inside_each_other_are_each_tried_once(word, leaf, read):
    """Nested 30 times, three kinds of filter have 200 million million ways to be tried."""
    checked = JsonSchema(tagged(word), where="filter")
    value, expected = leaf, read
    for _ in range(30):
        value, expected = {"op": "not", "args": [value]}, {"op": "not", "args": [expected]}
    got = checked.exact(value)
    assert got == (value if read is None else expected)
    assert bool(checked.faults(got)) == (read is None)


FILTERS = st.recursive(
    st.sampled_from([1, 2.0, "3", "x", None, True]),
    lambda inner: st.fixed_dictionaries(
        {"op": st.sampled_from(["and", "or", "xor"]), "args": st.lists(inner, max_size=3)}
    ),
    max_leaves=6,
)


@given(FILTERS, st.sampled_from(["anyOf", "oneOf"]))
def test_alternatives_are_judged_as_the_standard_has_it(value, word):
    schema = tagged(word)
    schema["$defs"]["filter"][word].append({"type": "number"})  # an integer fits two
    plain = Draft202012Validator(schema)
    assert bool(JsonSchema(schema, where="filter").faults(value)) == (not plain.is_valid(value))


@pytest.mark.parametrize(
    ("value", "fits"),
    [(0.07, True), (19.99, True), (1e22, True), (3, True), (0.075, False), ("0.07", True)],
)
def test_an_amount_is_a_multiple_of_a_cent(value, fits):
    """In floats 0.07 / 0.01 is a little more than 7."""
    schema = JsonSchema({"multipleOf": 0.01}, where="price")
    assert (schema.faults(value) == []) == fits


@given(
    st.lists(st.recursive(st.sampled_from([0, 1, 1.0, True, "1", None]), st.lists, max_leaves=3))
)
def test_items_are_told_apart_as_the_standard_has_it(items):
    schema = {"uniqueItems": True}
    fits = Draft202012Validator(schema).is_valid(items)
    assert (JsonSchema(schema, where="list").faults(items) == []) == fits
    assert JsonSchema(schema, where="list").faults([{"a": 1, "b": items}, {"b": items, "a": 1.0}])
