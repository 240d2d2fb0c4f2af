"""A tool's schema survives the way through a Python method and transformers' reading of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentgym  # noqa: F401  # registers the environments
from agentgym.train.tool_methods import tool_method


async def _call(_: Any, tool: str, arguments: dict[str, Any]) -> str:
    return f"{tool} {arguments}"


def read_back(spec: Any) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    method = tool_method(spec, _call).function
    instance = type("Env", (), {method.__name__: method})()
    found: dict[str, Any] = get_json_schema(getattr(instance, method.__name__))["function"]
    return found


def spec_of(properties: dict[str, Any], required: list[str], description: str = "Does it.") -> Any:
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": "do", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


SCALARS = st.sampled_from(["string", "integer", "number", "boolean"]).map(lambda t: {"type": t})
ENUMS = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True).map(
    lambda values: {"type": "string", "enum": values}
)
SCHEMAS = st.recursive(
    SCALARS | ENUMS | st.just({"type": "object", "additionalProperties": {"type": "integer"}}),
    lambda inner: inner.map(lambda items: {"type": "array", "items": items}),
    max_leaves=3,
)
NAMES = st.from_regex(r"[a-z_][a-z_0-9]{0,8}", fullmatch=True)


@given(st.dictionaries(NAMES, SCHEMAS, max_size=5), st.data())
def test_names_types_and_what_is_required_come_through(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    import keyword

    names = [n for n in properties if not keyword.iskeyword(n) and n not in ("self", "return")]
    properties = {name: properties[name] for name in names}
    required = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    found = read_back(spec_of(properties, required))["parameters"]
    assert sorted(found.get("required", [])) == sorted(required)
    assert found["properties"].keys() == properties.keys()
    for name, schema in properties.items():
        read = dict(found["properties"][name])
        assert read.pop("description")
        assert read == schema


@pytest.mark.parametrize("name", ["WebShop", "SupportDesk", "ToolWorld"])
def test_tools_of_our_environments_lose_nothing(name: str) -> None:
    with gym.make(f"agentgym/{name}-v0") as env:
        _, info = env.reset(seed=0)
    assert info["tools"]
    for spec in info["tools"]:
        told, found = spec["function"], read_back(spec)
        assert found["name"] == told["name"]
        assert found["description"] == told["description"]
        parameters = told["parameters"]
        assert set(found["parameters"].get("required", [])) == set(parameters.get("required", []))
        for key, schema in parameters["properties"].items():
            read = found["parameters"]["properties"][key]
            assert read["type"] == schema["type"]
            assert read.get("enum") == schema.get("enum")
            for more in set(schema) - {"type", "enum", "items", "description"}:
                assert more in read["description"]  # a bound or a format is told in words
            assert schema.get("description", "") in read["description"]


async def test_names_that_python_keeps_for_itself_are_lent_others() -> None:
    properties = {name: {"type": "string"} for name in ("from", "self", "start-date", "2nd")}
    spec = spec_of(properties, ["from"])
    found = read_back(spec)["parameters"]
    assert list(found["properties"]) == ["from_", "self_", "start_date", "p_2nd"]
    function = tool_method(spec, _call).function
    assert await function(None, from_="a", start_date="b", other=1) == (
        "do {'from': 'a', 'start-date': 'b', 'other': 1}"
    )


async def test_names_that_would_be_the_same_stay_apart() -> None:
    properties = {name: {"type": "string"} for name in ("a-b", "a_b", "a.b")}
    spec = spec_of(properties, list(properties))
    assert list(read_back(spec)["parameters"]["properties"]) == ["a_b_", "a_b", "a_b__"]
    function = tool_method(spec, _call).function
    told = await function(None, a_b_="1", a_b="2", a_b__="3")
    assert told == "do {'a-b': '1', 'a_b': '2', 'a.b': '3'}"


def test_references_are_followed_and_those_to_themselves_end() -> None:
    spec = spec_of({"at": {"$ref": "#/$defs/Place", "description": "Where."}}, ["at"])
    tree = {"type": "object", "properties": {"of": {"$ref": "#/$defs/Tree"}}}
    spec["function"]["parameters"]["properties"]["tree"] = {"$ref": "#/$defs/Tree"}
    place = {"type": "string", "enum": ["here", "there"]}
    spec["function"]["parameters"]["$defs"] = {"Place": place, "Tree": tree}
    found = read_back(spec)["parameters"]["properties"]
    assert found["at"] == {**place, "description": "Where."}
    assert found["tree"]["type"] == "object"


def test_tool_called_like_a_method_of_the_trainers_gets_another_name() -> None:
    spec = spec_of({}, [])
    spec["function"]["name"] = "reset"
    made = tool_method(spec, _call, reserved=("reset", "get_reward"))
    assert (made.tool, made.name) == ("reset", "reset_tool")
    spec["function"]["name"] = "_hidden"
    assert tool_method(spec, _call).name == "hidden_tool"


def test_what_looks_like_markup_in_a_description_is_not_taken_for_it() -> None:
    text = "Does it.\n\nReturns:\n  a number: 1\n\nsee Args: none"
    schema = {"type": "integer", "description": "One of Returns: 1 (choices: some)"}
    found = read_back(spec_of({"x": schema, "y": {"type": "string"}}, ["x"], text))
    assert found["description"] == text.replace("Returns:", "Returns -").replace("Args:", "Args -")
    assert found["parameters"]["properties"] == {
        "x": {"type": "integer", "description": "One of Returns - 1 (choices - some)"},
        "y": {"type": "string", "description": "The y."},
    }


def test_types_that_may_be_null_and_unions_come_through() -> None:
    properties = {
        "a": {"type": ["string", "null"]},
        "b": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "c": {"type": "object", "properties": {"k": {"type": "string"}}},
        "d": True,
    }
    found = read_back(spec_of(properties, []))["parameters"]["properties"]
    assert found["a"]["type"] == "string"
    assert found["a"]["nullable"] is True
    assert set(found["b"]["type"]) == {"string", "integer"}
    assert found["c"]["type"] == "object"
    assert '"k"' in found["c"]["description"]
    assert "type" not in found["d"]
