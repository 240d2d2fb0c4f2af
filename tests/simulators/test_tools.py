"""Hosted tools: valid by the schema, consistent with everything answered before, or masked."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theatre import DONE, ID, TOOLS, Backend, booking_tool, theatre

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.core import AgentEnv
from agentgym.errors import EndpointError, SimulatorError, ToolError
from agentgym.json_schema import JsonSchema
from agentgym.judge import Score
from agentgym.schema_tool import SchemaTool
from agentgym.simulator import SimulatedTool, SimulatedWorld, ToolSimulator
from agentgym.simulators.tools import MAX_HELPER_CALLS, HostedTools, answer_schema
from agentgym.types import Task


def result(value, changes=()):
    return {"answer": {"result": value}, "changes": list(changes)}


def error(text):
    return {"answer": {"error": text}, "changes": []}


def helper(name, *given):
    return {"answer": {"helper": {"name": name, "input": list(given)}}, "changes": []}


@pytest.fixture
def world():
    return theatre()


ADA = {"id": "B1", "name": "Ada", "seats": 2}


async def run(world, backend, *calls):
    """Make the calls; results, and the text of errors."""
    tools = HostedTools(backend)
    found = []
    for name, arguments in calls:
        try:
            found.append(await tools.call(world, name, arguments))
        except ToolError as refusal:
            found.append(str(refusal))
    return found


CREATE = ("create_booking", {"name": "Ada", "seats": 2})
GET = ("get_booking", {"id": "B1"})
LIST = ("list_bookings", {})
CANCEL = ("cancel_booking", {"id": "B1"})


def test_is_a_tool_simulator():
    assert isinstance(HostedTools(ScriptedClient([])), ToolSimulator)


# --- consistent -------------------------------------------------------------------------------


async def test_what_was_created_is_found_and_what_was_deleted_is_gone(world):
    backend = Backend(result(ADA), result(ADA), result({"bookings": [ADA]}), result({"ok": True}))
    found = await run(world, backend, CREATE, GET, LIST, CANCEL, GET)
    assert found == [ADA, ADA, {"bookings": [ADA]}, {"ok": True},
                     "Error: there is no booking 'B1'."]  # fmt: skip
    assert world.state == {"booking": {}}
    assert world.deleted == {"booking": ["B1"]}
    assert [sorted(entry) for entry in world.log] == [["arguments", "name", "result"]] * 4 + [
        ["arguments", "error", "name"]
    ]


async def test_the_same_read_is_answered_from_memory_until_something_is_written(world):
    changed = {**ADA, "seats": 3}
    backend = Backend(result(ADA), result(changed), result(changed))
    change = ("change_booking", {"id": "B1", "seats": 3})
    found = await run(world, backend, GET, GET, change, GET, GET)
    assert found == [ADA, ADA, changed, changed, changed]
    assert len(backend.prompts) == 3


async def test_a_result_from_memory_is_not_the_callers_to_change(world):
    tools = HostedTools(Backend(result(ADA)))
    first = await tools.call(world, *GET)
    first["name"] = "Bob"
    assert await tools.call(world, *GET) == ADA


async def test_what_was_said_not_to_exist_does_not_appear_later(world):
    backend = Backend(error("No such booking."), result({"ok": True}))
    found = await run(world, backend, GET, CANCEL, GET)
    assert found[0] == "Error: No such booking."
    assert found[1] == "Error: there is no booking 'B1'."
    assert found[2] == "Error: No such booking."
    assert len(backend.prompts) == 1


async def test_a_listing_without_filter_keeps_its_own_memory_apart(world):
    other = {"id": "B2", "name": "Bob"}
    backend = Backend(
        result(ADA),
        result({"bookings": [other]}),
        result({"bookings": [ADA, other]}),
        result(other),
    )
    found = await run(
        world, backend, CREATE, ("list_bookings", {"name": "Bob"}), LIST,
        ("get_booking", {"id": "B2"}),
    )  # fmt: skip
    assert found[1:] == [{"bookings": [other]}, {"bookings": [ADA, other]}, other]


async def test_records_given_at_the_start_hold(world):
    world.state = {"booking": {"B9": {"id": "B9", "name": "Grace", "seats": 4}}}
    bad, good = ({"id": "B9", "name": name, "seats": 4} for name in ("Bob", "Grace"))
    backend = Backend(result(bad), result(good))
    assert await run(world, backend, ("get_booking", {"id": "B9"})) == [good]
    assert "name is 'Grace', got 'Bob'" in world.faults[0]


async def test_a_write_may_change_other_things_and_says_so(world):
    seat = SimulatedTool(
        name="get_seat",
        description="One seat.",
        parameters={"properties": {"seat": {"type": "string"}}, "required": ["seat"]},
        result={"type": "object", "properties": {"seat": {"type": "string"},
                "free": {"type": "boolean"}}, "required": ["seat", "free"]},
        entity="seat",
        key="seat",
    )  # fmt: skip
    world.tools = (*TOOLS, seat)
    look = ("get_seat", {"seat": "A1"})
    taken = {"entity": "seat", "key": "A1", "fields": {"free": False}}
    free, not_free = ({"seat": "A1", "free": value} for value in (True, False))
    backend = Backend(result(free), result(ADA, [taken]), result(free), result(not_free))
    assert await run(world, backend, look, CREATE, look) == [free, ADA, not_free]
    assert "free is False, got True" in world.faults[0]


# --- contradictions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "replies", "bad", "says"),
    [
        ([CREATE, GET], [result(ADA)], result({**ADA, "seats": 7}), "seats is 2, got 7"),
        ([CREATE, GET], [result(ADA)], result({**ADA, "id": "B2"}), "'B1' must be in the result"),
        ([CREATE, GET], [result(ADA)], error("Not found."), "'B1' exists, but the answer"),
        ([CREATE, GET], [result(ADA)], error("The system is tired."), "'B1' exists, but"),
        ([CREATE, LIST], [result(ADA)], result({"bookings": []}), "'B1' must be in the result"),
        ([CREATE, LIST], [result(ADA)], error("No bookings."), "'B1' exists"),
        (
            [CREATE, ("list_bookings", {"name": "Ada"})],
            [result(ADA)],
            result({"bookings": [{"id": "B2", "name": "Ada"}]}),
            "'B1' must be in the result",
        ),
        ([CREATE, CANCEL], [result(ADA)], error("There is no such booking."), "'B1' exists"),
        (
            [GET, CANCEL, LIST],
            [result(ADA), result({"ok": True})],
            result({"bookings": [ADA]}),
            "'B1' was deleted",
        ),
        (
            [GET, CANCEL, CREATE],
            [result(ADA), result({"ok": True})],
            result(ADA),
            "'B1' existed before",
        ),
        ([GET, CREATE], [result(ADA)], result(ADA), "names no new booking"),
        ([GET, LIST], [error("Not found.")], result({"bookings": [ADA]}), "said not to exist"),
        (
            [GET],
            [],
            result(ADA, [{"entity": "booking", "key": "B2", "fields": {"seats": 1}}]),
            "only reads",
        ),
        (
            [CREATE],
            [],
            result(ADA, [{"entity": "booking", "key": "B1", "fields": {"seats": 9}}]),
            "differ in booking 'B1'",
        ),
        (
            [GET, CANCEL],
            [result(ADA)],
            result({"ok": True}, [{"entity": "booking", "key": "B1", "fields": {}}]),
            "was deleted",
        ),
        (
            [CREATE],
            [],
            result(ADA, [{"entity": "booking", "key": "B0", "fields": None}]),
            "doesn't delete",
        ),
        (
            [CREATE],
            [],
            result(ADA, [{"entity": "flight", "key": "F", "fields": {}}]),
            "nothing here is called 'flight'",
        ),
    ],
)
async def test_a_contradiction_is_never_delivered_and_is_named(world, calls, replies, bad, says):
    """3.3: the model may mend it once; then it is the simulator's fault."""
    before = await run(world, Backend(*replies), *calls[:-1])
    assert not any(isinstance(each, str) and "there is no" in each for each in before)
    records, deleted, log = map(copy.deepcopy, (world.state, world.deleted, world.log))
    with pytest.raises(SimulatorError, match="contradicts the records") as failed:
        await HostedTools(Backend(bad, bad)).call(world, *calls[-1])
    assert says in str(failed.value)
    assert (world.state, world.deleted, world.log) == (records, deleted, log)
    assert len(world.faults) == 2


async def test_a_contradiction_may_be_mended_once(world):
    backend = Backend(result(ADA), result({**ADA, "seats": 7}), result(ADA))
    assert await run(world, backend, CREATE, GET) == [ADA, ADA]
    direction = json.loads(backend.prompts[2][-1]["content"])["direction"]
    assert "seats is 2, got 7" in direction


SEAT = booking_tool("move_booking", "update", {"id": ID, "seat": ID}, DONE, ["id", "seat"])
FREE = booking_tool("free_on", "read", {"id": ID, "date": ID}, DONE, ["id", "date"])
IDS = {"type": "array", "items": ID}
MANY = booking_tool("get_bookings", "read", {"id": IDS}, TOOLS[2].result, ["id"])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("move_booking", {"id": "B1", "seat": "Z9"}), "Seat Z9 does not exist."),
        (("move_booking", {"id": "B1", "seat": "Z9"}), "No such seat."),
        (("free_on", {"id": "B1", "date": "2026-02-30"}), "2026-02-30 is not a date."),
        (("free_on", {"id": "B1", "date": "2026-02-28"}), "Nothing was found for that day."),
        (("get_bookings", {"id": ["B1", "B9"]}), "There is no booking B9."),
    ],
)
async def test_what_an_error_says_of_other_things_denies_nothing_that_exists(call, reason):
    """And what it says doesn't exist is only what it names."""
    world = theatre(*TOOLS, SEAT, FREE, MANY)
    world.state = {"booking": {"B1": ADA}}
    found = await run(world, Backend(error(reason), result(ADA)), call, GET)
    assert found == [f"Error: {reason}", ADA]
    fresh = theatre(*TOOLS, SEAT, FREE, MANY)
    assert await run(fresh, Backend(error(reason), result(ADA)), call, GET) == found


async def test_of_several_things_those_are_gone_that_the_error_names():
    world = theatre(*TOOLS, MANY)
    backend = Backend(error("There is no booking B9."), result(ADA))
    calls = [("get_bookings", {"id": ["B1", "B9"]}), ("get_booking", {"id": "B9"}), GET]
    found = await run(world, backend, *calls)
    assert found[1:] == ["Error: there is no booking 'B9'.", ADA]


async def test_a_write_may_be_refused_for_reasons_of_its_own(world):
    backend = Backend(result(ADA), error("Bookings can't be cancelled on the day."), result(ADA))
    found = await run(world, backend, CREATE, CANCEL, GET)
    assert found[1:] == ["Error: Bookings can't be cancelled on the day.", ADA]


# --- schemas ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (result({"name": "Ada"}), "id is missing"),
        (result({**ADA, "seats": "two"}), "seats: must be integer"),
        (result({**ADA, "extra": 1}), "extra"),
        (result([ADA]), "must be object"),
        (result(None), "must be object"),
        ({"answer": "result"}, '"answer" must be'),
        ({"result": ADA}, '"answer" must be'),
        (ADA, '"answer" must be'),
        (error(""), '"error" must be'),
        (error(None), '"error" must be'),
        (error("<text>"), "blank"),
        ("Here is your booking: " + json.dumps(result(ADA)), "not one JSON object"),
        ('{"answer": {"result": {"id": "B1", "seats": NaN}}}', "NaN"),
        ('{"answer": {"result": {"id": "B1", "seats": 1e999}}}', "not a JSON number"),
        (result({**ADA, "name": "x" * 60_000}), "characters as JSON"),
        ({**result(ADA), "changes": "none"}, '"changes"'),
        ({**result(ADA), "changes": [{"key": "B1"}]}, '"changes"'),
        (helper("eval", "1"), "calculate"),
        ({"answer": {"result": ADA, "error": "no"}}, '"answer" must be'),
        ({"answer": {"data": ADA}}, '"answer" must have'),
        (Completion(message={"role": "assistant", "content": json.dumps(result(ADA))},
                    finish_reason="length"), "cut off"),
    ],
)  # fmt: skip
async def test_an_invalid_answer_is_asked_for_once_more_and_then_is_the_simulators_fault(
    world, bad, says
):
    backend = Backend(bad, result(ADA))
    assert await HostedTools(backend).call(world, *GET) == ADA
    assert says in world.faults[0]
    with pytest.raises(SimulatorError, match="no usable reply in 2 attempts") as failed:
        await HostedTools(Backend(bad, bad)).call(SimulatedWorld(TOOLS, seed=1), *GET)
    assert says in str(failed.value)


async def test_numbers_sent_as_text_are_read_where_the_schema_has_numbers(world):
    assert await run(world, Backend(result({"id": "B1", "seats": "2"})), GET) == [
        {"id": "B1", "seats": 2}
    ]


async def test_calls_that_do_not_fit_never_reach_the_model(world):
    backend = Backend()
    no_seats = {"name": "Ada", "seats": 0}
    wrong = [("get_booking", arguments) for arguments in ({}, {"id": 1}, {"id": "1", "x": 2})]
    found = await run(world, backend, *wrong, ("create_booking", no_seats))
    assert [text.partition(" for ")[0] for text in found] == ["Error: invalid arguments"] * 4
    assert backend.prompts == []
    assert world.log == []


async def test_a_tool_that_this_world_does_not_have_is_no_fault_of_the_policy(world):
    with pytest.raises(SimulatorError, match="no tool 'pay'; tools: create_booking"):
        await HostedTools(Backend()).call(world, "pay", {})


async def test_an_endpoint_that_fails_is_the_simulators_fault(world):
    down = EndpointError("connection refused", retryable=True)
    with pytest.raises(SimulatorError, match="get_booking: no reply: connection refused") as failed:
        await HostedTools(Backend(down)).call(world, *GET)
    assert failed.value.__cause__ is down


def test_the_answers_schema_holds_the_results_with_its_references():
    tree = SimulatedTool(
        name="tree",
        description="",
        parameters={},
        result={
            "$defs": {"node": {"type": "object", "properties": {
                "next": {"$ref": "#/$defs/node"}, "const": {"$ref": "#/$defs/node"}},
                "additionalProperties": False}},
            "$ref": "#/$defs/node",
        },
    )  # fmt: skip
    schema = JsonSchema(answer_schema(tree), where="answer")
    assert schema.faults(result({"next": {"const": {}}})) == []
    assert schema.faults(result({"next": {"const": {"other": 1}}})) != []


# --- what the model is told -------------------------------------------------------------------


async def test_the_prompt_has_tools_records_and_call_and_begins_the_same_every_time(world):
    backend = Backend(result(ADA), result({**ADA, "seats": 3}))
    await run(world, backend, CREATE, ("change_booking", {"id": "B1", "seats": 3}))
    first, second = backend.prompts
    assert first[0] == second[0]
    system = first[0]["content"]
    assert "A small theatre." in system
    assert all(tool.name in system for tool in TOOLS)
    seen = json.loads(second[1]["content"])
    assert seen["records"] == {"booking": {"B1": ADA}}
    assert seen["call"] == {"tool": "change_booking", "arguments": {"id": "B1", "seats": 3}}
    assert len(seen["earlier calls"]) == 1
    assert len({sampling.seed for sampling in backend.sampling}) == 2


async def test_a_large_memory_is_shown_in_part_with_what_the_call_names(world):
    world.state = {"booking": {f"B{i}": {"id": f"B{i}", "name": "x" * 90} for i in range(1000)}}
    backend = Backend(result({"id": "B0"}))
    await run(world, backend, ("get_booking", {"id": "B0"}))
    seen = json.loads(backend.prompts[0][1]["content"])
    shown = seen["records"]["booking"]
    assert "B0" in shown
    assert "B999" in shown
    assert len(shown) + seen["records not shown, to be looked up"]["booking"] == 1000
    assert len(backend.prompts[0][1]["content"]) < 30_000


async def test_one_large_record_hides_no_other(world):
    """A policy may create it."""
    world.state = {"booking": {"B0": {"id": "B0"}, "B1": {"id": "B1", "name": "x" * 40_000}}}
    backend = Backend(result({"bookings": []}))
    await run(world, backend, LIST)
    seen = json.loads(backend.prompts[0][1]["content"])
    assert list(seen["records"]["booking"]) == ["B0"]
    assert seen["records not shown, to be looked up"] == {"booking": 1}


async def test_the_prompt_does_not_grow_with_what_was_deleted(world):
    world.deleted = {"booking": [f"B{i}" for i in range(100_000)]}
    backend = Backend(result({**ADA, "id": "N1"}))
    await run(world, backend, CREATE)
    seen = json.loads(backend.prompts[0][1]["content"])
    assert seen["deleted"]["booking"][0] == "B99999"
    assert len(backend.prompts[0][1]["content"]) < 12_000


async def test_arguments_too_long_for_a_prompt_are_refused_and_not_remembered(world):
    found = await run(world, Backend(), ("create_booking", {"name": "x" * 1_000_000}))
    assert "20000 are allowed" in found[0]
    assert world.log == []


@pytest.mark.parametrize(
    "huge",
    [
        result(ADA, [{"entity": "booking", "key": "B2", "fields": {"name": "x" * 1_000_000}}]),
        helper("calculate", "x" * 1_000_000),
    ],
)
async def test_a_huge_reply_becomes_no_record_and_no_prompt(world, huge):
    backend = Backend(huge, result(ADA))
    assert await run(world, backend, GET) == [ADA]
    assert "characters" in world.faults[0]
    assert max(len(m["content"]) for p in backend.prompts for m in p) < 10_000
    assert list(world.state["booking"]) == ["B1"]


@pytest.mark.parametrize("levels", [101, 900, 40_000])
@pytest.mark.parametrize(
    "form",
    [
        '{"answer": {"result": %s}, "changes": []}',
        '{"answer": {"helper": {"name": "calculate", "input": %s}}, "changes": []}',
        '{"answer": {"error": "No."}, "changes": %s}',
    ],
)
async def test_a_reply_nested_too_deep_is_no_crash(world, levels, form):
    deep = form % ("[" * levels + "]" * levels)
    with pytest.raises(SimulatorError, match="nested|recursion"):
        await HostedTools(Backend(deep, deep)).call(world, *GET)


# --- helpers ----------------------------------------------------------------------------------


async def test_the_model_may_have_things_computed_and_looked_up(world):
    world.state = {"booking": {"B1": ADA}}
    backend = Backend(
        helper("calculate", "2 * 19.5"), helper("lookup", "booking", "B1"),
        helper("days_between", "2026-01-01", "2026-03-01"),
        helper("shift_date", "2026-01-31", "1", "month"), result(ADA),
    )  # fmt: skip
    assert await run(world, backend, GET) == [ADA]
    told = [json.loads(m["content"]) for m in backend.prompts[-1][3::2]]
    assert told == [{"helper result": value} for value in (39.0, ADA, 59, "2026-02-28")]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (helper("calculate", "9**9**9"), "4096 bits"),
        (helper("calculate"), "can't take"),
        (helper("shift_date", "2026-01-31", "two", "days"), "can't take"),
        (helper("lookup", "booking"), "can't take"),
    ],
)
async def test_a_helper_that_cannot_says_why(world, asked, says):
    backend = Backend(asked, result(ADA))
    assert await run(world, backend, GET) == [ADA]
    assert says in json.loads(backend.prompts[1][-1]["content"])["helper error"]


async def test_helpers_without_an_answer_come_to_an_end(world):
    backend = Backend(*[helper("calculate", "1 + 1")] * (MAX_HELPER_CALLS + 1))
    with pytest.raises(SimulatorError, match="8 helpers used and no answer"):
        await HostedTools(backend).call(world, *GET)


# --- in an episode ----------------------------------------------------------------------------


class NoJudge:
    inline = True

    async def score(self, episode):
        return Score(total=1.0)


class TheatreEnv(AgentEnv):
    """Simulated tools for the whole episode, and a user message in between."""

    awaits = True

    def __init__(self, client):
        super().__init__(tools=[], judge=NoJudge(), max_turns=5)
        self._simulator = HostedTools(client)

    def choose_task(self, options):
        return Task(task_id="theatre/0")

    async def start(self, task):
        self._world = SimulatedWorld(tools=TOOLS, seed=0)
        self.use_tools(
            SchemaTool(
                t.name, t.description, t.parameters, handler=functools.partial(self._call, t.name)
            )
            for t in TOOLS
        )
        return [{"role": "user", "content": "Book two seats."}]

    async def _call(self, name, arguments):
        return await self._simulator.call(self._world, name, arguments)

    async def reply(self, message):
        if message["content"] == "done":
            self.finish("answered", answer="done")
            return ()
        return [{"role": "user", "content": "Go on."}]


def act(name, arguments):
    call = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]}


def test_simulated_tools_answer_on_every_turn_of_an_episode():
    """C19: also after a user turn."""
    env = TheatreEnv(ScriptedClient([json.dumps(result(ADA)), json.dumps(result(ADA))]))
    _, info = env.reset(seed=0)
    assert [t["function"]["name"] for t in info["tools"]] == [t.name for t in TOOLS]
    first, *_ = env.step(act(*CREATE))
    between, *_ = env.step("One moment.")
    third, *_ = env.step(act(*GET))
    assert json.loads(first[0]["content"]) == json.loads(third[0]["content"]) == ADA
    assert between[0]["content"] == "Go on."
    *_, terminated, _, info = env.step("done")
    assert terminated
    assert info["verdict"].reward == 1.0


def test_a_contradicting_simulator_masks_the_episode_and_names_the_contradiction():
    wrong = json.dumps(result({**ADA, "seats": 9}))
    env = TheatreEnv(ScriptedClient([json.dumps(result(ADA)), wrong, wrong]))
    env.reset(seed=0)
    env.step(act(*CREATE))
    _, reward, terminated, truncated, info = env.step(act(*GET))
    verdict = info["verdict"]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (verdict.reward, verdict.masked, verdict.failure_class) == (None, True, "simulator")
    assert "seats is 2, got 9" in verdict.reason


# --- whatever the model says ------------------------------------------------------------------

IDS = st.sampled_from(["B1", "B2", "B3"])
BOOKINGS = st.fixed_dictionaries(
    {"id": IDS, "seats": st.integers(1, 2)}, optional={"name": st.sampled_from(["Ada", "Bob"])}
)
CHANGES = st.lists(
    st.fixed_dictionaries(
        {
            "entity": st.sampled_from(["booking", "seat"]),
            "key": IDS,
            "fields": st.none() | st.fixed_dictionaries({"seats": st.integers(1, 2)}),
        }
    ),
    max_size=1,
)
RESULTS = (
    BOOKINGS
    | st.builds(lambda found: {"bookings": found}, st.lists(BOOKINGS, max_size=3))
    | st.just({"ok": True})
)
ANSWERS = (
    st.builds(result, RESULTS, CHANGES)
    | st.builds(error, st.sampled_from(["Not found.", "Not allowed."]))
    | st.just({"answer": "nonsense"})
)
KINDS = st.sampled_from(["honest", "honest", "stale", "altered", "short", "denied"])


def made_up(kind, world, name, arguments):
    """An answer that fits, or that is nearly right: random ones hardly get past the first call."""
    known, key = world.state.get("booking", {}), arguments.get("id")
    gone = [{"id": each} for each in world.deleted.get("booking", ())]
    if kind == "denied":
        return error("Not found.")
    if name == "cancel_booking":
        return result({"ok": True})
    if name == "list_bookings":
        listed = list(known.values())
        if kind == "stale":
            listed += gone
        if kind == "altered":
            listed = [{**each, "seats": 9} for each in listed]
        return result({"bookings": listed[1:] if kind == "short" else listed})
    if name == "create_booking":
        taken = set() if kind == "stale" else {*known, *world.deleted.get("booking", ())}
        key = next(k for k in (f"B{i}" for i in range(1, 99)) if k not in taken)
        return result({"id": key, "name": arguments["name"]})
    answer = {**known.get(key, {"id": key}), **arguments}
    return result({**answer, "seats": 9} if kind == "altered" else answer)


CALLS = (
    st.tuples(st.sampled_from(["get_booking", "cancel_booking"]), st.builds(dict, id=IDS))
    | st.tuples(st.just("change_booking"), st.builds(dict, id=IDS, seats=st.integers(1, 2)))
    | st.tuples(st.just("create_booking"), st.builds(dict, name=st.sampled_from(["Ada", "Bob"])))
    | st.tuples(st.just("list_bookings"), st.just({}))
)


class Observer:
    """Knows only what was delivered, and what may not follow from it."""

    def __init__(self):
        self.there, self.gone, self.last_read = {}, set(), {}

    def check(self, name, arguments, outcome):
        failed = isinstance(outcome, str)
        records = [] if failed else outcome.get("bookings", [outcome] if "id" in outcome else [])
        ids = [record["id"] for record in records]
        asked = arguments.get("id")
        assert not set(ids) & self.gone or name == "create_booking"
        if name == "get_booking":
            assert failed == (asked not in ids)
            if asked in self.there:
                assert not failed
            if asked in self.gone:
                assert failed
        if name == "list_bookings":
            assert not failed or not self.there
            assert failed or set(self.there) <= set(ids)
        if name in ("get_booking", "list_bookings"):
            for record in records:
                seen = self.last_read.setdefault(record["id"], {})
                assert all(seen.get(k, v) == v for k, v in record.items())
                seen.update(record)
            return
        if failed:
            return
        self.last_read = {}
        if name == "create_booking":
            assert ids[0] not in self.there
            assert ids[0] not in self.gone
            self.there[ids[0]] = records[0]
        if name == "cancel_booking":
            self.there.pop(asked, None)
            self.gone.add(asked)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CALLS, KINDS | ANSWERS), min_size=1, max_size=20))
@pytest.mark.thorough
def test_nothing_inconsistent_is_ever_delivered_whatever_the_model_says(steps):
    """What was created is found and what was deleted is gone, or the episode is masked."""

    async def play():
        world, observer = SimulatedWorld(tools=TOOLS, seed=0), Observer()
        for (name, arguments), answer in steps:
            fits = made_up("honest", world, name, arguments)
            if isinstance(answer, str):
                answer = made_up(answer, world, name, arguments)
            backend = Backend(answer, fits)
            try:
                outcome = await HostedTools(backend).call(world, name, arguments)
            except ToolError as refusal:
                outcome = str(refusal)
            except SimulatorError:
                return  # masked here
            schema = JsonSchema(world.tool(name).result, where=name)
            assert isinstance(outcome, str) or schema.faults(outcome) == []
            observer.check(name, arguments, outcome)

    asyncio.run(play())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FORMS = {
    "result": BOOKINGS | JSON,
    "error": st.text(max_size=5) | JSON,
    "helper": st.fixed_dictionaries({"name": JSON | st.just("lookup"), "input": JSON}) | JSON,
}
FIELDS = {
    "answer": st.fixed_dictionaries({}, optional=FORMS) | JSON,
    "changes": CHANGES | JSON,
}
REPLIES = st.fixed_dictionaries({}, optional=FIELDS).map(json.dumps) | st.text(max_size=30)


@given(CALLS, st.lists(REPLIES, min_size=20, max_size=20))
@pytest.mark.thorough
def test_no_reply_whatever_breaks_anything_but_its_own_episode(call, replies):
    tools = HostedTools(ScriptedClient(replies))
    with contextlib.suppress(ToolError, SimulatorError):
        asyncio.run(tools.call(theatre(), *call))
