"""Tools as a model sees them: schema from the signature, exact reading of arguments."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentgym.errors import ConfigError, MalformedCall
from agentgym.tools import Tool

# Text as models and files have it; st.text() alone hardly ever draws a surrogate.
broken = st.text() | st.lists(st.sampled_from("a\ud83d\udf78\ud800é"), max_size=9).map("".join)


def search(query: str, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> str:
    """Search the catalogue,
    all of it.

    More that the model needn't read.

    Args:
        query: Words to look for,
            in any order.
        limit (int): Most results.

    Returns:
        Text.
    """
    return f"{query}/{limit}"


def cancel(order_id: str, confirm: bool) -> str:
    return f"{order_id!r} {confirm!r}"


def lookup(zip: str) -> str:  # noqa: A002
    return repr(zip)


def nothing() -> str:
    return "ran"


class Point(BaseModel):
    x: int
    y: float = 0.0


def run(tool, arguments=None, *, on_loop=True):
    return asyncio.run(tool.call(tool.read(arguments), on_loop=on_loop))


def test_spec_is_made_from_signature_and_docstring():
    function = Tool(search).spec["function"]
    assert function["name"] == "search"
    assert function["description"] == "Search the catalogue, all of it."
    parameters = function["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["query"] == {
        "type": "string",
        "description": "Words to look for, in any order.",
    }
    limit = parameters["properties"]["limit"]
    assert (limit["type"], limit["minimum"], limit["maximum"]) == ("integer", 1, 50)
    assert (limit["default"], limit["description"]) == (10, "Most results.")


def test_name_can_be_given_and_self_is_no_parameter():
    class Shop:
        def buy(self, item: str) -> str:
            return item

    tool = Tool(Shop().buy, name="purchase")
    assert tool.spec["function"]["name"] == "purchase"
    assert tool.required == ("item",)
    assert run(tool, {"item": "pen"}) == "pen"


def test_parameters_may_be_called_anything():
    """A name that pydantic's base class has, or a leading underscore, is no problem."""

    def odd(schema: int, json: str, copy: bool, _hidden: int = 3, title: str = "t") -> str:
        return f"{schema} {json} {copy} {_hidden} {title}"

    tool = Tool(odd)
    assert set(tool.spec["function"]["parameters"]["properties"]) == {
        "schema", "json", "copy", "_hidden", "title"
    }  # fmt: skip
    assert run(tool, {"schema": 1, "json": "j", "copy": True}) == "1 j True 3 t"
    with pytest.raises(MalformedCall, match="schema is missing"):
        tool.read({"json": "j", "copy": True})


def test_nested_types_keep_their_schema_and_arrive_typed():
    def draw(points: list[Point], mode: Literal["fill", "line"], note: str | None = None) -> str:
        return f"{points[0].x + points[0].y} {mode} {note}"

    tool = Tool(draw)
    assert "$defs" in tool.spec["function"]["parameters"]
    assert run(tool, '{"points": [{"x": "1", "y": 2}], "mode": "fill"}') == "3.0 fill None"
    with pytest.raises(MalformedCall, match="mode: Input should be 'fill' or 'line'"):
        tool.read({"points": [], "mode": "dots"})


@pytest.mark.parametrize("raw", ["", " ", None, "{}", "null", {}])
def test_no_arguments_come_in_many_forms(raw):
    """A02."""
    assert Tool(nothing).read(raw) == {}
    with pytest.raises(MalformedCall, match="query is missing"):
        Tool(search).read(raw)


@pytest.mark.parametrize(
    ("given_value", "seen"), [("false", False), ("true", True), (False, False), (True, True)]
)
def test_booleans_are_read_exactly(given_value, seen):
    """A22: the text "false" is False and never truthy."""
    assert Tool(cancel).read({"order_id": "7", "confirm": given_value})["confirm"] is seen


@pytest.mark.parametrize("wrong", ["maybe", "False", "off", "no", "0", 0, 1, "", None])
def test_what_is_not_a_boolean_is_refused(wrong):
    """A22."""
    with pytest.raises(MalformedCall, match="confirm: must be true or false"):
        Tool(cancel).read({"order_id": "7", "confirm": wrong})


def test_exact_reading_also_holds_inside_other_types():
    """A22."""

    def f(
        a: bool | None = None,
        b: list[bool] | None = None,
        c: Annotated[int, Field(ge=0)] = 0,
        d: dict[str, int] | None = None,
        e: int | str = 0,
    ) -> str:
        return ""

    read = Tool(f).read
    assert read({"a": "false", "b": ["true"], "c": "4", "d": {"k": "5"}, "e": "06"}) == {
        "a": False, "b": [True], "c": 4, "d": {"k": 5}, "e": "06"
    }  # fmt: skip
    for wrong in ({"a": "off"}, {"b": [1]}, {"c": True}, {"d": {"k": False}}, {"e": True}):
        with pytest.raises(MalformedCall):
            read(wrong)


@pytest.mark.parametrize(("given_value", "seen"), [("42", 42), (42, 42), (42.0, 42), ("-3", -3)])
def test_number_literals_are_read_as_numbers(given_value, seen):
    """A22."""

    def f(n: int) -> str:
        return str(n)

    assert Tool(f).read({"n": given_value}) == {"n": seen}


@pytest.mark.parametrize("wrong", ["4 2", "x", 4.5, True, None, [4], "Infinity"])
def test_what_is_not_a_whole_number_is_refused(wrong):
    def f(n: int) -> str:
        return str(n)

    with pytest.raises(MalformedCall, match="n: "):
        Tool(f).read({"n": wrong})


@pytest.mark.parametrize("wrong", ["NaN", "inf", float("nan"), float("inf")])
def test_numbers_are_finite(wrong):
    def f(x: float) -> str:
        return str(x)

    with pytest.raises(MalformedCall, match="finite"):
        Tool(f).read({"x": wrong})


@pytest.mark.parametrize("text", ["01234", "true", "null", "[1]", "1e5"])
def test_text_parameters_are_never_parsed(text):
    """A23."""
    assert Tool(lookup).read(json.dumps({"zip": text})) == {"zip": text}


def test_a_number_for_text_is_refused_rather_than_passed_on_as_a_number():
    """A23."""
    with pytest.raises(MalformedCall, match="zip: Input should be a valid string"):
        Tool(lookup).read({"zip": 1234})


@pytest.mark.parametrize("raw", ["{", "[]", "3", '"x"', [1], 3, '{"query": NaN}', "{} {}"])
def test_what_is_no_json_object_says_how_to_call(raw):
    with pytest.raises(MalformedCall, match=r'Call it again with \{"query": "<string>"\}'):
        Tool(search).read(raw)


def test_a_surplus_argument_is_named():
    with pytest.raises(MalformedCall, match="colour is not a parameter"):
        Tool(search).read({"query": "x", "colour": "red"})


@given(broken)
def test_text_arrives_as_sent_but_for_lone_surrogates(text):
    """A19, A23."""
    seen = Tool(lookup).read(json.dumps({"zip": text}))["zip"]
    seen.encode()
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert seen == text


@given(st.text(max_size=40) | st.dictionaries(st.text(max_size=4), st.integers() | st.text()))
def test_reading_gives_arguments_or_a_malformed_call(raw):
    fault = None
    try:
        assert isinstance(Tool(search).read(raw)["query"], str)
    except MalformedCall as error:
        fault = str(error)
    assert fault is None or fault.startswith("Error: ")


def untyped(x):
    return x


def variadic(*words: str) -> str:
    return ""


def positional(x: int, /) -> str:
    return ""


def undescribable(lock: threading.Event) -> str:
    return ""


def unknown_type(x: Nowhere) -> str:  # noqa: F821
    return ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "'x': has no type hint"),
        (variadic, "'words': must be passable by name"),
        (positional, "'x': must be passable by name"),
        (undescribable, "no JSON schema"),
        (unknown_type, "type hints can't be read"),
        (functools.partial(search, limit=3), "wrap it in a def"),
        (Point, "wrap it in a def"),
    ],
)
def test_what_cannot_be_a_tool_says_why(function, message):
    with pytest.raises(ConfigError, match=message):
        Tool(function)
