"""Tools with a given schema read calls by the rules of tools made from functions."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ConfigError, EnvFault, MalformedCall, ToolError
from agentgym.json_schema import JsonSchema
from agentgym.schema_tool import SchemaTool
from agentgym.spaces import AssistantSpace
from agentgym.tools import ToolBox

PARAMETERS = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 50},
        "exact": {"type": "boolean"},
        "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["query"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"row": {"type": "integer"}},
            "required": ["row"],
        }
    },
}


def echo(arguments):
    return arguments


async def echo_later(arguments):
    await asyncio.sleep(0)
    return arguments


def find(parameters=PARAMETERS, *, handler=echo, **options):
    return SchemaTool("find", "Find things.", parameters, handler=handler, **options)


def run(tool, raw, *, on_loop=True):
    return asyncio.run(tool.call(tool.read(raw), on_loop=on_loop))


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"query": "x"}, {"query": "x"}),
        ('{"query": "42"}', {"query": "42"}),
        ({"query": "x", "limit": "42"}, {"query": "x", "limit": 42}),
        ({"query": "x", "limit": 3.0}, {"query": "x", "limit": 3}),
        ({"query": "x", "limit": None}, {"query": "x", "limit": None}),
        ({"query": "x", "exact": "true"}, {"query": "x", "exact": True}),
        ({"query": "x", "price": "1.5e1"}, {"query": "x", "price": 15.0}),
        ({"query": "x", "where": {"row": "7"}}, {"query": "x", "where": {"row": 7}}),
        ({"query": "x", "tags": ["1", 2]}, {"query": "x", "tags": [1, 2]}),
    ],
)
def test_declared_types_are_read_exactly(raw, read):
    assert find().read(raw) == read
    assert json.dumps(find().read(raw)) == json.dumps(read)  # 3 rather than 3.0, True not 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "query is missing"),
        (None, "query is missing"),
        ({"query": 5}, "query: must be string, got 5"),
        ({"query": "x", "limit": "many"}, "limit: must be integer | null"),
        ({"query": "x", "limit": True}, "limit: must be integer | null, got true"),
        ({"query": "x", "limit": 51}, "limit: 51 is greater than the maximum of 50"),
        ({"query": "x", "limit": "04"}, "limit: must be"),
        ({"query": "x", "exact": "yes"}, "exact: must be boolean"),
        ({"query": "x", "exact": 1}, "exact: must be boolean"),
        ({"query": "x", "where": '{"row": 7}'}, "where: must be object"),
        ({"query": "x", "tags": "[1, 2]"}, "tags: must be array"),
        ({"query": "x", "where": {}}, "where.row is missing"),
        ({"query": "x", "size": 1}, "size is unknown here; there is query, limit, exact"),
        ({"query": "x", "price": float("nan")}, "nan is not a JSON number"),
        ('{"query": "x", "price": 1e999}', "inf is not a JSON number"),
        ('{"query": "x", "price": NaN}', "not valid JSON"),
        ("[1]", "must be a JSON object, got list"),
        ('{"query": ', "not valid JSON"),
        ('{"query": "x", "tags": ' + "[" * 150 + "]" * 150 + "}", "nested more than"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_how_to_mend_it(raw, says):
    with pytest.raises(MalformedCall) as refused:
        find().read(raw)
    assert says in str(refused.value)
    assert 'Call it again with {"query": "<string>"}' in str(refused.value)
    assert len(str(refused.value)) < 2_500


def test_no_arguments_are_fine_for_a_tool_without_any():
    tool = SchemaTool("now", "The time.", {}, handler=lambda _: "noon", inline=True)
    assert [tool.read(raw) for raw in ("", None, "null", "{}", {})] == [{}] * 5
    assert tool.spec["function"]["parameters"]["properties"] == {}
    with pytest.raises(MalformedCall, match="zone is unknown here; there is nothing"):
        tool.read({"zone": "UTC"})


def test_a_schema_may_allow_arguments_it_does_not_name():
    tool = find({"properties": {}, "additionalProperties": {"type": "integer"}})
    assert tool.read({"anything": "5"}) == {"anything": 5}
    with pytest.raises(MalformedCall, match="anything: must be integer"):
        tool.read({"anything": "many"})


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (None, "must be a JSON schema"),
        ({"type": "string"}, "must be an object schema"),
        ({"properties": {"a": {"type": "text"}}}, r"not a valid JSON schema at \$.properties.a"),
        ({"properties": {"a": {}}}, "parameter 'a': has no type"),
        ({"properties": {"a": {"description": "a city"}}}, "parameter 'a': has no type"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "leads nowhere"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/s.json"}}}, "points outside"),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#/$defs/b"}}},
            "leads back to itself",
        ),
        ({"properties": {"a": {"enum": [float("nan")]}}}, "not JSON"),
        ({"properties": {"a": {"enum": [{1, 2}]}}}, "not JSON"),
    ],
)
def test_a_bad_schema_is_refused_by_the_tools_name(parameters, says):
    with pytest.raises(ConfigError, match=says) as refused:
        find(parameters)
    assert "tool 'find'" in str(refused.value)


@pytest.mark.parametrize("name", ["", "two words", "a" * 65, "é"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ConfigError, match="name"):
        SchemaTool(name, "", {}, handler=echo)


@pytest.mark.parametrize("handler", [echo, echo_later, functools.partial(echo_later)])
@pytest.mark.parametrize("inline", [True, False])
def test_handlers_plain_and_async(handler, inline):
    assert run(find(handler=handler, inline=inline), {"query": "é"}) == '{"query": "é"}'


def test_handler_objects_with_an_async_call():
    class Handler:
        async def __call__(self, arguments):
            return arguments["query"]

    assert run(find(handler=Handler()), {"query": "x"}) == "x"


def test_a_handler_that_hides_a_coroutine_is_named():
    with pytest.raises(EnvFault, match="async def"):
        run(find(handler=lambda arguments: echo_later(arguments)), {"query": "x"})


def test_parameters_named_like_python_words_reach_the_handler():
    parameters = {"properties": {k: {"type": "string"} for k in ("self", "class", "a-b")}}
    assert run(find(parameters), {"self": "1", "class": "2", "a-b": "3"}) == (
        '{"self": "1", "class": "2", "a-b": "3"}'
    )


def test_only_what_may_wait_needs_an_event_loop():
    assert not find().needs_loop
    assert find(handler=echo_later).needs_loop
    assert not find(handler=echo_later, inline=True).needs_loop
    assert find(inline=True, timeout_s=1.0).needs_loop


def test_a_slow_handler_times_out():
    async def never(arguments):
        await asyncio.Event().wait()

    with pytest.raises(ToolError, match="find timed out after 0.01 s"):
        run(find(handler=never, timeout_s=0.01), {"query": "x"})


def test_it_is_pickled_with_its_handler():
    again = pickle.loads(pickle.dumps(find(inline=True)))
    assert again.spec == find().spec
    assert run(again, {"query": "x", "limit": "2"}) == '{"query": "x", "limit": 2}'


def test_the_schema_given_is_not_the_tools_to_change():
    given = {"properties": {"a": {"type": "string"}}}
    tool = find(given)
    tool.spec["function"]["parameters"]["properties"]["a"]["type"] = "integer"
    assert given == {"properties": {"a": {"type": "string"}}}
    assert find(given).read({"a": "x"}) == {"a": "x"}


def test_sampled_calls_are_valid():
    tool = find()
    space = AssistantSpace(ToolBox([tool]).specs, seed=0)
    seen = set()
    for _ in range(200):
        call = space.sample()["tool_calls"][0]["function"]
        seen |= set(tool.read(call["arguments"]))
    assert seen == set(PARAMETERS["properties"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*PARAMETERS["properties"], "other"]), JSON))
@pytest.mark.thorough
def test_reading_gives_valid_arguments_or_a_text_and_never_anything_else(arguments):
    tool = find()
    try:
        read = tool.read(arguments)
    except MalformedCall:
        return
    assert JsonSchema(PARAMETERS, where="t").faults(read) == []
    assert tool.read(read) == read  # nothing is left to coerce


def test_a_required_parameter_that_is_not_declared_is_refused():
    """No call could ever be valid."""
    parameters = {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]}
    with pytest.raises(ConfigError, match="b is required but not among the properties"):
        SchemaTool("find", "Find.", parameters, handler=dict)
    SchemaTool("find", "Find.", {**parameters, "additionalProperties": True}, handler=dict)
