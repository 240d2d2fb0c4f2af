"""The simulator contract refuses what can't be simulated, where it is given."""

from __future__ import annotations

import copy

import pytest
from pydantic import ValidationError

from agentgym.errors import ConfigError
from agentgym.simulator import Scenario, SimulatedTool, SimulatedWorld, UserDialogue

BOOKING = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "seats": {"type": "integer"}},
    "required": ["id"],
}


def tool(**changes):
    fields = {
        "name": "find_booking",
        "description": "Look up one booking.",
        "parameters": {"properties": {"id": {"type": "string"}}, "required": ["id"]},
        "result": BOOKING,
        "entity": "booking",
        "key": "id",
    }
    return SimulatedTool.model_validate({**fields, **changes})


def test_a_complete_tool_is_taken_and_has_a_spec():
    function = tool().spec["function"]
    assert function["name"] == "find_booking"
    assert set(function) == {"name", "description", "parameters"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"result": {}}, "no result schema"),
        ({"result": {"type": "objekt"}}, "tool 'find_booking', result: not a valid JSON schema"),
        ({"result": {"$ref": "https://example.com/booking.json"}}, "points outside the schema"),
        ({"parameters": {"type": "array"}}, "must be an object schema"),
        ({"parameters": {"properties": {"id": {}}}}, "parameter 'id': has no type"),
        ({"entity": None}, "give entity"),
        ({"effect": "create", "key": None}, "give entity and key"),
        ({"effect": "drop"}, "effect"),
    ],
)
def test_a_tool_without_usable_schema_is_refused_before_any_call(changes, says):
    with pytest.raises(ValidationError, match=says):
        tool(**changes)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="find_booking, find_booking"):
        SimulatedWorld(tools=(tool(), tool()), seed=0)


def test_a_world_knows_its_tools():
    world = SimulatedWorld(tools=(tool(),), seed=0)
    assert world.tool("find_booking").entity == "booking"
    with pytest.raises(KeyError):
        world.tool("cancel")


def test_an_episodes_side_is_plain_data_that_copies():
    dialogue = UserDialogue(Scenario(goal="You want a refund."), seed=3)
    world = SimulatedWorld(tools=(tool(),), seed=3)
    other_dialogue, other_world = copy.deepcopy((dialogue, world))
    dialogue.said.append(("user", "hello"))
    world.state["booking"] = {"B1": {"id": "B1"}}
    assert other_dialogue.said == []
    assert other_world.state == {}
