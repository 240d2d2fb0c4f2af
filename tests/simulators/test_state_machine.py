"""The embedded tool backend: declared domains, consistent worlds, refusals, recorded answers."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ConfigError, SimulatorError, ToolError
from agentgym.json_schema import JsonSchema
from agentgym.simulator import SimulatedWorld, ToolSimulator
from agentgym.simulators.actions import Compute, Create, Delete, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import AMOUNT, COUNT, FLAG, NAMES, TEXT, Entity, one_of
from agentgym.simulators.state_machine import FixtureTools, StateMachineTools
from agentgym.sync import run_inline

SHELF = Entity(
    name="shelf",
    plural="shelves",
    key="shelf_id",
    prefix="sh",
    fields={"room": TEXT, "slots": COUNT},
)
PLANT = Entity(
    name="plant",
    key="plant_id",
    prefix="pl",
    fields={
        "name": TEXT,
        "height": COUNT,
        "stage": one_of("seed", "sprout", "bloom"),
        "tags": NAMES,
        "watered": FLAG,
        "shelf_id": TEXT,
    },
    refers={"shelf_id": "shelf"},
    moves={"stage": {"seed": ("sprout",), "sprout": ("bloom", "seed"), "bloom": ()}},
)


def populate(rng):
    shelves = [{"shelf_id": f"sh{n}", "room": room, "slots": 2} for n, room in enumerate("ABC")]
    plants = [
        {
            "plant_id": f"pl{n}",
            "name": name,
            "height": rng.randrange(5, 50),
            "stage": "seed",
            "tags": ["green"] if n % 2 else ["green", "tall"],
            "watered": False,
            "shelf_id": f"sh{n % 3}",
        }
        for n, name in enumerate(("Aloe", "Basil", "Big Basil", "Cress"))
    ]
    return {"shelf": shelves, "plant": plants}


def has_room(records, arguments, row):
    if records.get("shelf", arguments["shelf_id"])["slots"] < 1:
        raise ToolError("Error: the shelf is full.")


def take_slot(records, arguments, row):
    records.get("shelf", row["shelf_id"])["slots"] -= 1


def regret(records, arguments, row):
    """Changes something, and only then refuses."""
    records.get("shelf", row["shelf_id"])["slots"] = 99
    raise ToolError("Error: changed its mind.")


def crash(records):
    raise ZeroDivisionError("by design")


def make_domain(**changes):
    actions = (
        Find(
            name="find_plants",
            description="Find plants.",
            entity="plant",
            where={
                "name": "name",
                "like": ("name", "contains"),
                "tag": ("tags", "includes"),
                "min_height": ("height", "at_least"),
                "max_height": ("height", "at_most"),
                "watered": "watered",
            },
            shows=("name", "height"),
        ),
        Get(name="get_plant", description="One plant.", entity="plant"),
        Get(name="get_shelf", description="One shelf.", entity="shelf"),
        Create(
            name="add_plant",
            description="Add a plant.",
            entity="plant",
            takes=("name", "shelf_id"),
            sets={"stage": "seed", "tags": ["new"], "watered": False},
            derive=lambda records, arguments: {"height": len(arguments["name"])},
            check=has_room,
            then=take_slot,
        ),
        Update(name="grow", description="Set the stage.", entity="plant", takes=("stage",)),
        Update(
            name="water",
            description="Water a dry plant.",
            entity="plant",
            sets={"watered": True},
            when={"watered": (False,)},
        ),
        Update(
            name="move",
            description="Put it on another shelf.",
            entity="plant",
            takes=("shelf_id",),
            check=has_room,
        ),
        Update(name="dither", description="Never works.", entity="plant", then=regret),
        Delete(name="remove", description="Throw it away.", entity="plant"),
        Compute(
            name="tallest",
            description="The tallest plant.",
            entity="plant",
            takes={},
            gives={"name": TEXT, "height": COUNT},
            function=lambda records: max(
                ({"name": p["name"], "height": p["height"]} for p in records.all("plant")),
                key=lambda p: p["height"],
            ),
        ),
        Compute(name="crash", description="!", entity="plant", takes={}, gives={}, function=crash),
    )
    fields = {"name": "garden", "background": "A garden.", "entities": (SHELF, PLANT)}
    return Domain(**{**fields, "actions": actions, "populate": populate, **changes})


GARDEN = make_domain()
TOOLS = StateMachineTools(GARDEN)


@pytest.fixture
def world():
    return GARDEN.world(seed=1)


def ask(world, tool, /, **arguments):
    return run_inline(TOOLS.call(world, tool, arguments))


# --- reading ----------------------------------------------------------------------------------


def test_equal_seeds_give_equal_worlds():
    assert GARDEN.world(seed=1).state == GARDEN.world(seed=1).state
    assert GARDEN.world(seed=1).state != GARDEN.world(seed=2).state


def test_it_is_a_tool_simulator_that_never_waits():
    assert isinstance(TOOLS, ToolSimulator)
    assert TOOLS.inline


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({}, ["Aloe", "Basil", "Big Basil", "Cress"]),
        ({"name": "basil"}, ["Basil"]),
        ({"name": " BASIL "}, ["Basil"]),
        ({"like": "basil"}, ["Basil", "Big Basil"]),
        ({"tag": "tall"}, ["Aloe", "Big Basil"]),
        ({"like": "basil", "tag": "tall"}, ["Big Basil"]),
        ({"watered": True}, []),
        ({"name": None, "watered": False}, ["Aloe", "Basil", "Big Basil", "Cress"]),
        ({"like": "rose"}, []),
    ],
)
def test_find_applies_every_condition_given(world, conditions, names):
    found = ask(world, "find_plants", **conditions)
    assert [plant["name"] for plant in found["plants"]] == names
    assert found["total"] == len(names)
    assert all(set(plant) == {"plant_id", "name", "height"} for plant in found["plants"])


def test_find_compares_numbers(world):
    heights = {row["name"]: row["height"] for row in world.state["plant"].values()}
    bound = sorted(heights.values())[1]
    tall = ask(world, "find_plants", min_height=bound)["plants"]
    short = ask(world, "find_plants", max_height=bound)["plants"]
    assert {p["name"] for p in tall} == {n for n, h in heights.items() if h >= bound}
    assert {p["name"] for p in short} == {n for n, h in heights.items() if h <= bound}


def test_find_shows_no_more_than_its_limit_and_counts_all(world):
    short = make_domain(actions=(Find(name="list", description="All.", entity="plant", limit=3),))
    found = run_inline(StateMachineTools(short).call(short.world(seed=1), "list", {}))
    assert (len(found["plants"]), found["total"]) == (3, 4)


def test_results_are_copies(world):
    ask(world, "get_plant", plant_id="pl1")["tags"].append("changed by the caller")
    assert ask(world, "get_plant", plant_id="pl1")["tags"] == ["green"]
    world.log[-1]["result"]["tags"].append("changed in the log")
    assert ask(world, "get_plant", plant_id="pl1")["tags"] == ["green"]


# --- writing ----------------------------------------------------------------------------------


def test_what_is_created_is_found_under_a_new_key(world):
    made = ask(world, "add_plant", name="Dill", shelf_id="sh0")
    assert made["plant_id"] == "pl4"
    assert (made["height"], made["stage"], made["tags"]) == (4, "seed", ["new"])
    assert ask(world, "get_plant", plant_id="pl4") == made
    assert ask(world, "find_plants", name="dill")["total"] == 1
    assert ask(world, "get_shelf", shelf_id="sh0")["slots"] == 1


def test_what_is_deleted_is_gone_and_its_key_is_not_used_again(world):
    made = ask(world, "add_plant", name="Dill", shelf_id="sh0")
    assert ask(world, "remove", plant_id=made["plant_id"]) == {"deleted": "pl4"}
    with pytest.raises(ToolError, match="plant 'pl4' was deleted"):
        ask(world, "get_plant", plant_id="pl4")
    with pytest.raises(ToolError, match="was deleted"):
        ask(world, "remove", plant_id="pl4")
    assert ask(world, "add_plant", name="Dill", shelf_id="sh0")["plant_id"] == "pl5"
    assert world.deleted == {"plant": ["pl4"]}


def test_what_never_was_does_not_exist(world):
    for name, arguments in (
        ("get_plant", {"plant_id": "pl77"}),
        ("water", {"plant_id": ""}),
        ("remove", {"plant_id": "sh0"}),
        ("add_plant", {"name": "Dill", "shelf_id": "sh9"}),
        ("move", {"plant_id": "pl0", "shelf_id": "pl1"}),
    ):
        with pytest.raises(ToolError, match="does not exist"):
            ask(world, name, **arguments)


def test_an_update_is_seen_by_every_later_read(world):
    after = ask(world, "water", plant_id="pl2")
    assert after["watered"] is True
    assert ask(world, "get_plant", plant_id="pl2") == after
    assert [p["name"] for p in ask(world, "find_plants", watered=True)["plants"]] == ["Big Basil"]


def test_a_condition_that_does_not_hold_is_refused_with_what_is_needed(world):
    ask(world, "water", plant_id="pl2")
    with pytest.raises(ToolError, match="plant pl2 has watered True; water needs False"):
        ask(world, "water", plant_id="pl2")


def test_only_legal_transitions_are_possible(world):
    with pytest.raises(ToolError, match="can't go from 'seed' to 'bloom'; .* become 'sprout'"):
        ask(world, "grow", plant_id="pl0", stage="bloom")
    ask(world, "grow", plant_id="pl0", stage="sprout")
    ask(world, "grow", plant_id="pl0", stage="bloom")
    with pytest.raises(ToolError, match="can become nothing"):
        ask(world, "grow", plant_id="pl0", stage="seed")


def test_a_check_sees_what_earlier_calls_did(world):
    for name in ("Dill", "Fern"):
        ask(world, "add_plant", name=name, shelf_id="sh0")
    with pytest.raises(ToolError, match="full"):
        ask(world, "add_plant", name="Ivy", shelf_id="sh0")
    with pytest.raises(ToolError, match="full"):
        ask(world, "move", plant_id="pl1", shelf_id="sh0")


def test_a_refused_call_changes_nothing(world):
    before = copy.deepcopy((world.state, world.deleted))
    for name, arguments in (
        ("dither", {"plant_id": "pl0"}),
        ("grow", {"plant_id": "pl0", "stage": "bloom"}),
        ("remove", {"plant_id": "nothing"}),
    ):
        with pytest.raises(ToolError):
            ask(world, name, **arguments)
    assert (world.state, world.deleted) == before


def test_a_computed_result_follows_the_records(world):
    ask(world, "add_plant", name="Sequoia" * 20, shelf_id="sh1")
    assert ask(world, "tallest") == {"name": "Sequoia" * 20, "height": 140}


def test_the_log_has_every_call_in_order_refused_ones_too(world):
    ask(world, "get_plant", plant_id="pl1")
    with pytest.raises(ToolError):
        ask(world, "get_plant", plant_id="pl9")
    assert [(entry["name"], set(entry)) for entry in world.log] == [
        ("get_plant", {"name", "arguments", "result"}),
        ("get_plant", {"name", "arguments", "error"}),
    ]


# --- many worlds ------------------------------------------------------------------------------


def test_worlds_share_nothing():
    one, other = GARDEN.world(seed=1), GARDEN.world(seed=1)
    ask(one, "remove", plant_id="pl0")
    assert ask(other, "get_plant", plant_id="pl0")["name"] == "Aloe"
    assert other.log[-1]["result"]["name"] == "Aloe"


def test_a_copied_world_goes_its_own_way(world):
    ask(world, "water", plant_id="pl0")
    twin = copy.deepcopy(world)
    ask(twin, "remove", plant_id="pl0")
    assert ask(world, "get_plant", plant_id="pl0")["watered"] is True


def test_tools_of_built_in_kinds_can_be_pickled(world):
    plain = make_domain(actions=GARDEN.actions[:3])
    tools = pickle.loads(pickle.dumps(StateMachineTools(plain)))
    assert asyncio.run(tools.call(plain.world(1), "get_plant", {"plant_id": "pl0"}))


def test_the_global_generator_is_left_alone():
    state = random.getstate()
    GARDEN.world(seed=3)
    assert random.getstate() == state


CALLS = st.one_of(
    st.tuples(st.just("find_plants"), st.fixed_dictionaries({"like": st.sampled_from("aeio")})),
    st.tuples(
        st.sampled_from(["get_plant", "water", "remove", "dither"]),
        st.fixed_dictionaries({"plant_id": st.integers(0, 9).map("pl{}".format)}),
    ),
    st.tuples(
        st.just("grow"),
        st.fixed_dictionaries(
            {
                "plant_id": st.integers(0, 9).map("pl{}".format),
                "stage": st.sampled_from(["seed", "sprout", "bloom"]),
            }
        ),
    ),
    st.tuples(
        st.just("add_plant"),
        st.fixed_dictionaries(
            {"name": st.text(max_size=5), "shelf_id": st.integers(0, 3).map("sh{}".format)}
        ),
    ),
    st.tuples(st.just("tallest"), st.just({})),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(CALLS, max_size=15))
def test_whatever_is_called_results_fit_their_schemas_and_the_state_stays_sound(calls):
    world = GARDEN.world(seed=1)
    schemas = {tool.name: JsonSchema(tool.result, where=tool.name) for tool in world.tools}
    plant = JsonSchema(PLANT.schema(), where="plant")
    gone: set[str] = set()
    for name, arguments in calls:
        try:
            result = ask(world, name, **arguments)
        except ToolError:
            continue
        except SimulatorError:
            assert not world.state["plant"]  # the tallest of none
            continue
        assert schemas[name].faults(result) == []
        if name == "remove":
            gone.add(result["deleted"])
    for key, row in world.state["plant"].items():
        assert plant.faults(row) == []
        assert row["plant_id"] == key
        assert row["shelf_id"] in world.state["shelf"]
    assert not gone & set(world.state["plant"])
    assert set(world.deleted.get("plant", ())) == gone
    assert all(shelf["slots"] >= 0 for shelf in world.state["shelf"].values())


# --- what is wrong with a declaration or a caller ---------------------------------------------


def test_a_tool_of_no_domain_is_the_simulators_fault(world):
    with pytest.raises(SimulatorError, match="no domain .* has a tool 'fly'; tools: add_plant"):
        ask(world, "fly")
    world.tools = world.tools[:1]
    with pytest.raises(SimulatorError, match="'get_plant'"):
        ask(world, "get_plant", plant_id="pl0")


def test_a_crash_in_a_domains_function_is_the_simulators_fault(world):
    with pytest.raises(SimulatorError, match="action 'crash' crashed: ZeroDivisionError"):
        ask(world, "crash")


@pytest.mark.parametrize("count", [10**400, 10**308])
def test_numbers_too_large_to_work_with_are_the_callers_fault(count):
    """Otherwise a policy masks any episode that goes badly."""
    box = Entity(name="box", key="box_id", prefix="bx", fields={"count": COUNT, "cost": AMOUNT})
    buy = Create(
        name="buy",
        description="Buy.",
        entity="box",
        takes=("count",),
        derive=lambda records, arguments: {"cost": 7.5 * arguments["count"]},
    )
    shop = Domain(
        name="shop",
        background="",
        entities=(box,),
        actions=(buy,),
        populate=lambda rng: {"box": []},
    )
    world = shop.world(seed=0)
    with pytest.raises(ToolError, match="buy can't work with numbers as large as these"):
        run_inline(StateMachineTools(shop).call(world, "buy", {"count": count}))
    assert world.state == {"box": {}}
    assert "error" in world.log[0]


def test_domains_that_share_a_name_are_refused():
    with pytest.raises(ConfigError, match="'plant'|'shelf'"):
        StateMachineTools(GARDEN, make_domain(name="other"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entities": (SHELF, SHELF)}, "must differ"),
        ({"actions": (GARDEN.actions[0],) * 2}, "must differ"),
        ({"entities": (SHELF,)}, "no entity 'plant'; there are shelf"),
        (
            {"actions": (Find(name="f", description="", entity="plant", where={"x": "colour"}),)},
            "no field 'colour'; it has name, height",
        ),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_domain(**changes)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ({"tree": []}, "unknown entities \\['tree'\\]"),
        ({"shelf": [{"shelf_id": "a", "room": "A"}]}, "shelf_id, room, slots"),
        ({"shelf": [{"shelf_id": "a", "room": "A", "slots": 1}] * 2}, "a key of its own"),
    ],
)
def test_wrong_records_say_what_is_wrong(drawn, message):
    with pytest.raises(ConfigError, match=message):
        make_domain(populate=lambda rng: drawn).world(seed=0)


# --- fixtures ---------------------------------------------------------------------------------


def empty_world():
    return SimulatedWorld(tools=GARDEN.tools(), seed=0)


def answer(tools, world, name, **arguments):
    return run_inline(tools.call(world, name, arguments))


def test_a_recorded_world_is_played_back(world):
    ask(world, "get_plant", plant_id="pl0")
    ask(world, "water", plant_id="pl0")
    ask(world, "get_plant", plant_id="pl0")
    with pytest.raises(ToolError):
        ask(world, "get_plant", plant_id="pl9")
    tools, replay = FixtureTools(world.log), empty_world()
    dry, wet = (entry["result"] for entry in (world.log[0], world.log[2]))
    assert answer(tools, replay, "get_plant", plant_id="pl0") == dry
    assert answer(tools, replay, "get_plant", plant_id="pl0") == wet
    assert answer(tools, replay, "get_plant", plant_id="pl0") == wet
    with pytest.raises(ToolError, match="'pl9' does not exist"):
        answer(tools, replay, "get_plant", plant_id="pl9")
    assert answer(tools, empty_world(), "get_plant", plant_id="pl0") == dry
    assert isinstance(tools, ToolSimulator)


def test_the_order_of_arguments_does_not_matter():
    entry = {"name": "f", "arguments": {"a": 1, "b": [2]}, "result": 3}
    assert answer(FixtureTools([entry]), empty_world(), "f", b=[2], a=1) == 3


def test_a_call_that_was_not_recorded_is_the_simulators_fault_unless_told_otherwise():
    with pytest.raises(SimulatorError, match="no recorded answer to get_plant"):
        answer(FixtureTools([]), empty_world(), "get_plant", plant_id="pl0")
    with pytest.raises(ToolError, match="nothing known"):
        answer(FixtureTools([], missing="nothing known"), empty_world(), "get_plant")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "f", "result": 1},
        {"arguments": {}, "result": 1},
        {"name": "f", "arguments": {}},
        {"name": "f", "arguments": {}, "result": 1, "error": "x"},
    ],
)
def test_a_fixture_of_another_form_is_refused(entry):
    with pytest.raises(ConfigError, match="fixture 0: needs name, arguments and either"):
        FixtureTools([entry])
