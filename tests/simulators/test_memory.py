"""The memory of a simulated world: no contradiction passes, and no truth is taken for one."""

from __future__ import annotations

import copy

import pytest
from theatre import DONE, ID, booking_tool, theatre

from agentgym.client import SamplingParams
from agentgym.clients import ScriptedClient
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.policies import POLICIES
from agentgym.errors import ToolError
from agentgym.simulator import SimulatedTool, SimulatedWorld
from agentgym.simulators.memory import (
    Contradiction,
    Draft,
    differs,
    keys_of,
    recall,
    records_in,
    refused,
    same,
)

# --- a truthful back end ----------------------------------------------------------------------


class Shadowed:
    """The embedded back end, with a memory beside it that sees only what a hosted one would."""

    inline = True
    fabricates = False

    def __init__(self, backend, *, seeded):
        self._backend, self._seeded = backend, seeded
        self._memories = {}
        self.calls = self.recalled = 0
        self.false_alarms = []

    def _memory_of(self, world):
        if id(world) not in self._memories:
            state = copy.deepcopy(world.state) if self._seeded else {}
            memory = SimulatedWorld(tools=world.tools, seed=0, state=state)
            self._memories[id(world)] = (world, memory)
        return self._memories[id(world)][1]

    async def call(self, world, name, arguments):
        memory, tool = self._memory_of(world), world.tool(name)
        self.calls += 1
        try:
            truth = {"result": await self._backend.call(world, name, arguments)}
        except ToolError as refusal:
            truth = {"error": str(refusal)}
        entry = {"name": name, "arguments": dict(arguments), **copy.deepcopy(truth)}
        recalled = recall(memory, tool, arguments)
        if recalled is not None:
            self.recalled += 1
            if recalled.keys() != entry.keys() or not same(
                recalled.get("result"), entry.get("result")
            ):
                self.false_alarms.append((recalled, entry))
        else:
            self._take(memory, tool, entry)
        memory.log.append(entry)
        if "error" in truth:
            raise ToolError(truth["error"])
        return truth["result"]

    def _take(self, memory, tool, entry):
        try:
            if "error" in entry:
                refused(memory, tool, entry["arguments"], entry["error"])
            else:
                draft = Draft(memory)
                draft.take(tool, entry["arguments"], entry["result"])
                draft.commit()
        except Contradiction as error:
            self.false_alarms.append((str(error), entry))


async def play(env, task_id, policy):
    options = {"task_id": task_id, "judging": "deferred"}
    messages, info = await env.areset(seed=0, options=options)
    history, over = list(messages), False
    while not over:
        if policy is None:
            action = env.action_space.sample()
        else:
            policy.observe("s", info)
            completion = await policy.complete(
                history, info["tools"], SamplingParams(seed=len(history)), session="s"
            )
            action = completion.message
        messages, _, terminated, truncated, info = await env.astep(action)
        history += [env.running.records[-1].message, *messages]
        over = terminated or truncated


@pytest.mark.parametrize("seeded", [True, False])
async def test_a_truthful_back_end_is_never_contradicted(seeded):
    backend = Shadowed(ToolWorldEnv().tasks.simulator, seeded=seeded)
    env = ToolWorldEnv(simulator=backend)
    env.action_space.seed(0)
    for position, task_id in enumerate(env.task_ids()[::12]):
        expert = ScriptedClient(POLICIES["expert"](env, 0))
        await play(env, task_id, None if position % 4 == 3 else expert)
    assert backend.false_alarms == []
    assert backend.calls > 100
    assert backend.recalled > 0


# --- what writes do ---------------------------------------------------------------------------


def take(world, name, arguments, result, changes=()):
    tool = world.tool(name)
    draft = Draft(world)
    draft.take(tool, arguments, result, changes)
    draft.commit()
    world.log.append({"name": name, "arguments": arguments, "result": result})


ADA = {"id": "B1", "name": "Ada", "seats": 2}


def test_an_update_leaves_other_fields_and_forgets_what_it_set_until_it_is_shown():
    """Whether `seats=3` sets or adds is the tool's business."""
    world = theatre()
    take(world, "create_booking", {"name": "Ada", "seats": 2}, ADA)
    take(world, "change_booking", {"id": "B1", "seats": 3}, {"id": "B1"})
    assert world.state["booking"]["B1"] == {"id": "B1", "name": "Ada"}
    take(world, "get_booking", {"id": "B1"}, {**ADA, "seats": 5})
    with pytest.raises(Contradiction, match="seats is 5, got 3"):
        take(world, "get_booking", {"id": "B1"}, {**ADA, "seats": 3})
    with pytest.raises(Contradiction, match="name is 'Ada', got 'Bob'"):
        take(world, "get_booking", {"id": "B1"}, {"id": "B1", "name": "Bob"})


def test_nothing_is_half_taken_in():
    world = theatre()
    take(world, "create_booking", {"name": "Ada"}, ADA)
    before = copy.deepcopy((world.state, world.deleted))
    bad = {"bookings": [ADA, {"id": "B2", "name": "Eve"}, {**ADA, "name": "Bob"}]}
    with pytest.raises(Contradiction, match="twice, differently"):
        take(world, "list_bookings", {}, bad)
    change = {"entity": "booking", "key": "B1", "fields": {}}
    with pytest.raises(Contradiction, match="'B1' was deleted"):
        take(world, "cancel_booking", {"id": "B1"}, {"ok": True}, [change])
    assert (world.state, world.deleted) == before


def test_a_deletion_may_take_other_things_with_it():
    seat = SimulatedTool(
        name="get_ticket", description="", parameters={"properties": {"ticket": ID}},
        result={"type": "object"}, entity="ticket", key="ticket",
    )  # fmt: skip
    tools = (*theatre().tools, seat)
    world = theatre(*tools)
    take(world, "get_ticket", {"ticket": "T1"}, {"ticket": "T1", "row": 4})
    gone = {"entity": "ticket", "key": "T1", "fields": None}
    take(world, "cancel_booking", {"id": "B1"}, {"ok": True}, [gone])
    assert world.deleted == {"booking": ["B1"], "ticket": ["T1"]}
    assert "error" in recall(world, seat, {"ticket": "T1"})


def test_several_things_may_be_named_at_once():
    cancel_all = booking_tool(
        "cancel_all", "delete", {"id": {"type": "array", "items": ID}}, DONE, ["id"]
    )
    world = theatre(*theatre().tools, cancel_all)
    take(world, "cancel_all", {"id": ["B1", "B2"]}, {"ok": True})
    assert world.deleted == {"booking": ["B1", "B2"]}


def test_a_name_given_by_the_caller_may_be_used_again_after_a_deletion():
    create = booking_tool("reserve", "create", {"id": ID}, DONE, ["id"])
    world = theatre(*theatre().tools, create)
    take(world, "reserve", {"id": "B1"}, {"ok": True})
    assert "already exists" in recall(world, create, {"id": "B1"})["error"]
    take(world, "cancel_booking", {"id": "B1"}, {"ok": True})
    assert recall(world, create, {"id": "B1"}) is None
    take(world, "reserve", {"id": "B1"}, {"ok": True})
    assert list(world.state["booking"]) == ["B1"]
    assert world.deleted == {"booking": []}


def test_a_page_of_a_listing_may_leave_things_out():
    page = booking_tool("page", "read", {"limit": {"type": "integer"}}, theatre().tools[2].result)
    world = theatre(*theatre().tools, page)
    take(world, "create_booking", {"name": "Ada"}, ADA)
    take(world, "page", {"limit": 1}, {"bookings": [{"id": "B0"}]})
    with pytest.raises(Contradiction, match="'B1' must be in the result"):
        take(world, "page", {}, {"bookings": [{"id": "B0"}]})


# --- comparisons ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "told", "where"),
    [
        ({"a": 1}, {"b": 2}, None),
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": 1}, {"a": "1"}, None),
        ({"a": "Ada"}, {"a": "ADA"}, None),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, "a.b.c is 2, got 3"),
        ({"a": [1]}, {"a": [1, 2]}, "a has 1 items, got 2"),
        ({"a": True}, {"a": 1}, "a is True, got 1"),
        ({"a": None}, {"a": 0}, "a is None, got 0"),
        ({"owner": "U1"}, {"owner": {"id": "U1"}}, None),
    ],
)
def test_differs(known, told, where):
    assert differs(known, told) == where


def test_records_are_the_outermost_objects_with_the_key():
    inner = {"id": "P1"}
    value = {"page": 1, "found": [{"id": "B1", "who": inner}, {"id": 2}, {"id": None}, {"x": 1}]}
    assert list(records_in(value, "id")) == [
        ("B1", {"id": "B1", "who": inner}),
        ("2", {"id": 2}),
    ]
    assert list(records_in(value, None)) == []


@pytest.mark.parametrize(
    ("value", "keys"),
    [("a", ["a"]), (7, ["7"]), (["a", 1, None], ["a", "1"]), (True, []), (1.5, []), (None, [])],
)
def test_keys_of(value, keys):
    assert keys_of(value) == keys
