"""Spaces of a conversation: what is in them, sampling, JSON, batching."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Annotated, Literal

import numpy as np
import pytest
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentgym.schema_tool import SchemaTool
from agentgym.spaces import AssistantSpace, MessageSpace, sample_json
from agentgym.testing.envs import CounterEnv
from agentgym.testing.messages import calling, raw_call
from agentgym.tools import Tool


class Item(BaseModel):
    sku: Annotated[str, Field(min_length=3, max_length=8)]
    size: Literal["s", "m", "l"] = "m"
    weight: Annotated[float, Field(gt=0, lt=0.5)] = 0.1


def everything(
    text: str,
    whole: int,
    number: float,
    flag: bool,
    negative: Annotated[int, Field(le=-5)],
    between: Annotated[float, Field(gt=0.25, lt=0.5)],
    even: Annotated[int, Field(gt=0, lt=10, multiple_of=2)],
    exact: Annotated[int, Field(gt=3, lt=5)],
    pair: tuple[int, bool],
    items: Annotated[list[Item], Field(min_length=1, max_length=3)],
    choice: Literal["a", "b"],
    maybe: int | None = None,
    by_name: dict[str, int] | None = None,
    item: Item | None = None,
) -> str:
    return ""


def test_every_sample_is_read_by_its_tool():
    """C01: samples are legal for every kind of parameter that type hints give."""
    tool = Tool(everything)
    space = AssistantSpace([tool.spec], seed=0)
    for _ in range(300):
        action = space.sample()
        assert action in space
        arguments = tool.read(action["tool_calls"][0]["function"]["arguments"])
        assert arguments["negative"] <= -5
        assert arguments["exact"] == 4


def test_samples_cover_tools_and_optional_parameters():
    env = CounterEnv()
    env.action_space.seed(0)
    functions = [env.action_space.sample()["tool_calls"][0]["function"] for _ in range(200)]
    assert {f["name"] for f in functions} == {"add", "read", "reset_to", "submit"}
    noted = {"note" in f["arguments"] for f in functions if f["name"] == "reset_to"}
    assert noted == {True, False}


def test_the_same_seed_gives_the_same_samples():
    for space in (CounterEnv().action_space, MessageSpace()):
        space.seed(5)
        first = [space.sample() for _ in range(5)]
        space.seed(5)
        assert [space.sample() for _ in range(5)] == first


def test_choices_replace_the_schema_and_can_shut_a_tool():
    space = AssistantSpace(
        CounterEnv().toolbox.specs,
        choices={("add", "amount"): [77], ("reset_to", "value"): []},
        seed=1,
    )
    functions = [space.sample()["tool_calls"][0]["function"] for _ in range(60)]
    assert {f["name"] for f in functions} == {"add", "read", "submit"}
    assert {f["arguments"] for f in functions if f["name"] == "add"} == {'{"amount": 77}'}


def test_without_tools_samples_are_text():
    action = AssistantSpace(seed=0).sample()
    assert set(action) == {"role", "content"}
    assert action in AssistantSpace()


@pytest.mark.parametrize(
    "action",
    [
        "",
        "search[x]",
        "lone \ud83d",
        {"content": None},
        {"role": "assistant", "content": "naïve — 价格"},
        {"content": "lone \ud83d"},
        {"content": [{"type": "text", "text": "x"}]},
        calling(raw_call(None, 3)),
        {"content": "", "tool_calls": []},
    ],
)
def test_whatever_a_policy_may_say_is_an_action(action):
    """A19: broken text and malformed calls are the policy's, and the env answers them."""
    assert action in AssistantSpace()


@pytest.mark.parametrize(
    "action",
    [None, 1, b"x", [], {"role": "user", "content": "x"}, {"content": 1}, {"tool_calls": {}},
     {"content": None, "tool_calls": ["x"]}],
)  # fmt: skip
def test_what_is_no_assistant_message_is_no_action(action):
    assert action not in AssistantSpace()


def test_any_text_is_an_observation():
    """C02: no charset, no maximum length."""
    text = "naïve — 价格 ¥5\n\t😀" * 10_000
    assert ({"role": "tool", "tool_call_id": "c", "content": text},) in MessageSpace()


@pytest.mark.parametrize(
    "observation",
    [
        None,
        "text",
        [{"role": "user", "content": "a list"}],
        ({"role": "user", "content": "lone \ud83d"},),
        ({"role": "user", "content": 3},),
        ({"role": "nobody", "content": "x"},),
        ({"role": "tool", "content": "no id"},),
        ("text",),
    ],
)
def test_what_a_server_would_refuse_is_no_observation(observation):
    assert observation not in MessageSpace()


@pytest.mark.parametrize("space", [MessageSpace(seed=0), CounterEnv().action_space])
def test_spaces_work_with_gymnasiums_tools(space):
    """C01, C02: passive checks, JSON, copying, pickling, batching."""
    check_action_space(space)
    check_observation_space(space)
    samples = [space.sample() for _ in range(3)]
    assert all(sample in space for sample in samples)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples
    for twin in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert twin == space
        assert twin.sample() == copy.deepcopy(space).sample()
    assert len(batch_space(space, 2).sample()) == 2
    assert not space.is_np_flattenable
    assert repr(space)
    assert space != 3


def test_action_spaces_of_other_tools_differ():
    assert AssistantSpace() != CounterEnv().action_space


@given(
    low=st.integers(-1000, 1000),
    width=st.integers(0, 50),
    exclusive=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sampled_integers_keep_their_bounds(low, width, exclusive, seed):
    high = low + width
    schema = {"type": "integer", "minimum": low, "maximum": high}
    if exclusive:
        schema = {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
    value = sample_json(schema, np.random.default_rng(seed), {})
    assert isinstance(value, int)
    assert low <= value <= high


@pytest.mark.parametrize("home", ["$defs", "definitions"])
def test_a_schema_that_includes_itself_is_sampled_to_an_end(home):
    node = {"$ref": f"#/{home}/node"}
    schema = {
        "type": "object",
        "properties": {"root": node},
        "required": ["root"],
        home: {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "first": node,
                    "last": {"anyOf": [node, {"type": "null"}]},
                    "children": {"type": "array", "items": node},
                },
                "required": ["name", "last"],
            }
        },
    }
    tool = SchemaTool("plant", "Plant a tree.", schema, handler=lambda arguments: None)
    space = AssistantSpace([tool.spec], seed=0)
    for _ in range(5):
        tool.read(space.sample()["tool_calls"][0]["function"]["arguments"])


def test_a_closed_tuple_is_sampled_without_more_items():
    schema = {"type": "array", "prefixItems": [{"type": "integer"}], "items": False}
    assert all(len(sample_json(schema, np.random.default_rng(n), {})) == 1 for n in range(9))
