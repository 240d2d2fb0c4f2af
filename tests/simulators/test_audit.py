"""The audit tells a faithful simulator from an unfaithful one, tool by tool."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from theatre import Backend

from agentgym.clients import ScriptedClient
from agentgym.core import AgentEnv
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.policies import POLICIES
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.policies import POLICIES as SHOP_POLICIES
from agentgym.errors import ConfigError, EndpointError, SimulatorError, ToolError
from agentgym.json_schema import JsonSchema
from agentgym.judge import Score
from agentgym.metering import report_refusal
from agentgym.simulators.audit import audit, compare, infer_schema, likeness
from agentgym.simulators.real_calls import gather_calls
from agentgym.simulators.tools import HostedTools
from agentgym.tools import Tool
from agentgym.types import Task


class NoJudge:
    inline = True

    async def score(self, episode):
        return Score(total=0.0)


class BoxOfficeEnv(AgentEnv):
    """Real tools: a theatre's bookings, kept in a dict."""

    def __init__(self):
        tools = [Tool(self.book, inline=True), Tool(self.find, inline=True),
                 Tool(self.opening_hours, inline=True)]  # fmt: skip
        super().__init__(tools=tools, judge=NoJudge(), max_turns=6)

    def choose_task(self, options):
        return Task(task_id="box/0")

    async def start(self, task):
        self._bookings = {}
        return [{"role": "system", "content": "A box office."}, {"role": "user", "content": "Hi."}]

    def book(self, name: str, seats: int) -> dict:
        """Book seats."""
        booking = {"id": f"B{len(self._bookings) + 1}", "name": name, "seats": seats}
        self._bookings[booking["id"]] = booking
        return booking

    def find(self, id: str) -> dict:  # noqa: A002
        """Find a booking."""
        if id not in self._bookings:
            raise ToolError("Error: no such booking.")
        return self._bookings[id]

    def opening_hours(self) -> str:
        """When the box office is open."""
        return "ten to six"


def act(name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


CLERK = [
    act("book", {"name": "Ada", "seats": 2}),
    act("find", {"id": "B1"}),
    act("find", {"id": "B9"}),
    act("book", {"name": "Bob"}),
    "Bye.",
]


class Answers:
    """A tool simulator that is a function of world, tool and arguments."""

    inline = True

    def __init__(self, function):
        self._function = function
        self.worlds = []

    async def call(self, world, name, arguments):
        self.worlds.append(world)
        return self._function(world, name, arguments)


def faithful(world, name, arguments):
    if name == "book":
        return {"id": "B1", **arguments}
    if arguments["id"] == "B1":
        return {"id": "B1", "name": "Ada", "seats": 2}
    raise ToolError("Error: unknown.")


async def audited(function, **options):
    simulator = Answers(function)
    found = await audit(BoxOfficeEnv(), simulator, calls=3, policy=ScriptedClient(CLERK), **options)
    return {tool.name: tool for tool in found.tools}, found, simulator


async def test_a_faithful_simulator_agrees_in_everything():
    tools, found, _ = await audited(faithful)
    assert [(t.calls, t.faults, t.same_status, t.valid) for t in tools.values()] == [
        (1, 0, 1, 1),
        (2, 0, 2, 1),
    ]
    assert [(t.shape, t.values, t.examples) for t in tools.values()] == [(1.0, 1.0, ())] * 2
    assert (found.episodes, found.unobserved) == (1, ("opening_hours",))


async def test_an_unfaithful_simulator_is_shown_with_examples():
    def unfaithful(world, name, arguments):
        if name == "book":
            return {"id": "B1", "name": "Ada", "seats": 3, "price": 40}
        return {"id": arguments["id"], "seats": "two"}

    tools, _, _ = await audited(unfaithful)
    book, find = tools["book"], tools["find"]
    assert (book.same_status, book.shape, book.values) == (1, 3 / 4, 2 / 4)
    assert book.examples[0].arguments == {"name": "Ada", "seats": 2}
    assert book.examples[0].differs == ("seats", "price")
    assert json.loads(book.examples[0].real) == {"id": "B1", "name": "Ada", "seats": 2}
    assert (find.same_status, find.results, find.valid) == (1, 2, 0)
    assert (find.shape, find.values) == (2 / 3, 1 / 3)
    assert json.loads(find.examples[1].real) == {"error": "Error: no such booking."}


async def test_a_simulator_that_fails_is_counted_apart():
    def broken(world, name, arguments):
        raise SimulatorError("out of order")

    tools, _, _ = await audited(broken)
    assert [(t.calls, t.faults, t.same_status, t.shape) for t in tools.values()] == [
        (1, 1, 0, None),
        (2, 2, 0, None),
    ]
    assert tools["book"].examples[0].simulated == "fault: out of order"


async def test_a_simulator_that_crashes_is_counted_as_failing():
    tools, _, _ = await audited(lambda world, name, arguments: {}[name])
    assert [t.faults for t in tools.values()] == [1, 2]
    assert tools["book"].examples[0].simulated == "fault: KeyError: 'book'"


async def test_an_endpoint_that_refuses_to_go_on_gives_no_figures():
    def out_of_credit(world, name, arguments):
        report_refusal("simulator", "no credit left")
        raise SimulatorError("no reply: no credit left")

    with pytest.raises(EndpointError, match="the audit is not complete: no credit left"):
        await audited(out_of_credit)


async def test_every_call_is_put_with_the_real_answers_before_it_as_memory():
    _, _, simulator = await audited(lambda world, name, arguments: {"id": "wrong"})
    assert [len(world.log) for world in simulator.worlds] == [0, 1, 2]
    assert simulator.worlds[2].log == [
        {"name": "book", "arguments": {"name": "Ada", "seats": 2},
         "result": {"id": "B1", "name": "Ada", "seats": 2}},
        {"name": "find", "arguments": {"id": "B1"},
         "result": {"id": "B1", "name": "Ada", "seats": 2}},
    ]  # fmt: skip
    assert simulator.worlds[0].background == "A box office."


async def test_a_hosted_simulator_is_audited_and_what_it_costs_is_told():
    answer = {"answer": {"result": {"id": "B1", "name": "Ada", "seats": 2}}}
    refusal = {"answer": {"error": "no such booking"}}
    backend = Backend(answer, answer, refusal)
    counted = []
    found = await audit(
        BoxOfficeEnv(), HostedTools(backend), calls=3, policy=ScriptedClient(CLERK),
        on_call=lambda: counted.append(1),
    )  # fmt: skip
    assert [(t.name, t.same_status, t.values) for t in found.tools] == [
        ("book", 1, 1.0),
        ("find", 2, 1.0),
    ]
    assert len(counted) == 3
    assert '"name": "book"' in backend.prompts[0][0]["content"]


async def test_random_calls_need_no_policy_and_are_the_same_for_the_same_seed():
    async def calls(seed):
        episodes = await gather_calls(BoxOfficeEnv(), calls=20, seed=seed)
        return [call.entry for episode in episodes for call in episode.calls]

    first = await calls(1)
    assert len(first) == 20
    assert {entry["name"] for entry in first} == {"book", "find", "opening_hours"}
    assert await calls(1) == first
    assert await calls(2) != first


async def test_malformed_calls_are_nothing_to_compare():
    episodes = await gather_calls(BoxOfficeEnv(), calls=6, policy=ScriptedClient(CLERK))
    assert [[call.name for call in e.calls] for e in episodes] == [["book", "find", "find"]] * 2


async def test_a_policy_that_calls_nothing_is_refused():
    with pytest.raises(ConfigError, match="choose a policy that calls tools"):
        await gather_calls(BoxOfficeEnv(), calls=1, policy=ScriptedClient(["Hello."]))
    with pytest.raises(ConfigError, match="at least 1"):
        await audit(BoxOfficeEnv(), Answers(faithful), calls=0)


async def test_an_env_with_a_declared_world_is_audited_with_it():
    """The embedded back end agrees with itself, writes and errors included."""
    env = ToolWorldEnv()
    policy = ScriptedClient(POLICIES["expert"](env, 0))
    backend = env.tasks.simulator
    found = await audit(env, backend, calls=40, policy=policy)
    assert sum(tool.calls for tool in found.tools) == 40
    assert all(tool.same_status == tool.calls and tool.faults == 0 for tool in found.tools)
    assert all(tool.values in (None, 1.0) and tool.valid == tool.results for tool in found.tools)
    random = await audit(env, backend, calls=40)
    assert all(tool.same_status == tool.calls for tool in random.tools)


async def test_an_env_played_in_text_is_audited_too():
    env = WebShopEnv(num_products=50)
    policy = ScriptedClient(SHOP_POLICIES["rule"](env, 0))
    page = {"answer": {"result": "Back to Search Page 1 Total results 50"}}
    found = await audit(
        env, HostedTools(ScriptedClient([json.dumps(page)], repeat=True)), calls=4, policy=policy
    )
    assert {tool.name for tool in found.tools} == {"search", "click"}
    assert all(tool.shape == 1.0 and 0 < tool.values < 1 for tool in found.tools)


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("real", "simulated", "shape", "values", "differing"),
    [
        ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}, 1.0, 1.0, []),
        ({"a": 1, "b": [1, 2]}, {"a": 1.0, "b": [1]}, 2 / 3, 2 / 3, ["b[1]"]),
        ({"a": {"x": 1}}, {"a": {"x": 2, "y": 0}}, 1 / 2, 0.0, ["a.x", "a.y"]),
        ([], [], 1.0, 1.0, []),
        ([], [1], 0.0, 0.0, ["result", "[0]"]),
        ("ok", "OK", 1.0, 0.0, ["result"]),
        (True, 1, 1.0, 0.0, ["result"]),
    ],
)
def test_compare(real, simulated, shape, values, differing):
    assert compare(real, simulated) == (shape, values, differing)


def test_texts_are_alike_by_the_words_they_share():
    assert likeness("one two three four five", "one two three four six") == 8 / 10
    assert likeness("one two three four five!", "One, two three four five") == 0.99
    assert likeness("B1", "B2") == 0.0


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([], {"type": ["object", "array", "string", "number", "boolean", "null"]}),
        ([1, 2.5], {"type": "number"}),
        (["a", None], {"type": ["null", "string"]}),
        (
            [{"a": 1, "b": "x"}, {"a": 2}],
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                "required": ["a"],
            },
        ),
        ([[1], [], ["x"]], {"type": "array", "items": {"type": ["integer", "string"]}}),
    ],
)
def test_infer_schema(values, schema):
    assert infer_schema(values) == schema


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.lists(JSON, min_size=1, max_size=4))
def test_an_inferred_schema_fits_what_it_was_inferred_from(values):
    schema = JsonSchema(infer_schema(values), where="inferred")
    assert [schema.faults(value) for value in values] == [[]] * len(values)
    assert all(compare(value, value) == (1.0, 1.0, []) for value in values)
