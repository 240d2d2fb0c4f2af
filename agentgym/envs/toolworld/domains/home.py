"""A smart home: devices, readings, timers, an electricity tariff."""

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import clock
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Posed,
    Script,
    Template,
    field_of,
    keys,
    only_extreme,
    rows_of,
)
from agentgym.errors import ToolError
from agentgym.simulators.actions import Compute, Create, Delete, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import (
    AMOUNT,
    COUNT,
    FLAG,
    TEXT,
    TIME,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_ROOMS = ("attic", "bathroom", "cellar", "kitchen", "lounge", "study")
_KINDS = {"lamp": (5, 60), "heater": (600, 2000), "fan": (30, 90), "purifier": (40, 120)}

DEVICE = Entity(
    name="device",
    key="device_id",
    prefix="dv",
    fields={
        "name": TEXT,
        "room": one_of(*_ROOMS),
        "kind": one_of(*_KINDS),
        "watts": COUNT,
        "on": FLAG,
    },
)
READING = Entity(
    name="reading",
    key="reading_id",
    prefix="rg",
    fields={
        "room": one_of(*_ROOMS),
        "measures": one_of("temperature", "humidity"),
        "value": AMOUNT,
    },
)
TARIFF = Entity(
    name="tariff",
    key="hour",
    prefix="h",
    fields={"cents_per_kwh": AMOUNT},
)
TIMER = Entity(
    name="timer",
    key="timer_id",
    prefix="tm",
    fields={"device_id": TEXT, "time": TIME, "turns_on": FLAG},
    refers={"device_id": "device"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """A lamp and a few other devices in each of six rooms."""
    places = [(room, kind) for room in _ROOMS for kind in ("lamp", "fan")]
    places += [(room, kind) for room in rng.sample(_ROOMS, 4) for kind in ("heater", "purifier")]
    devices = [
        {
            "device_id": key,
            "name": f"{room} {kind}",
            "room": room,
            "kind": kind,
            "watts": rng.randrange(*_KINDS[kind]),
            "on": rng.random() < 0.5,
        }
        for key, (room, kind) in zip(keys(rng, "dv", len(places)), places, strict=True)
    ]
    temperatures = rng.sample(range(160, 290), len(_ROOMS))
    humidities = rng.sample(range(30, 80), len(_ROOMS))
    values = [
        *(zip(_ROOMS, ["temperature"] * 6, [t / 10 for t in temperatures], strict=True)),
        *(zip(_ROOMS, ["humidity"] * 6, [float(h) for h in humidities], strict=True)),
    ]
    readings = [
        {"reading_id": key, "room": room, "measures": measures, "value": value}
        for key, (room, measures, value) in zip(keys(rng, "rg", 12), values, strict=True)
    ]
    tariffs = [
        {"hour": clock(60 * hour), "cents_per_kwh": rng.randrange(80, 480) / 10}
        for hour in range(24)
    ]
    timers = [
        {
            "timer_id": key,
            "device_id": rng.choice(devices)["device_id"],
            "time": clock(60 * hour + 15),
            "turns_on": rng.random() < 0.6,
        }
        for key, hour in zip(keys(rng, "tm", 12), rng.sample(range(24), 12), strict=True)
    ]
    return {"device": devices, "reading": readings, "tariff": tariffs, "timer": timers}


def _changes(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if row["on"] == arguments["on"]:
        raise ToolError(_is_already(row))


def _is_already(device: Row) -> str:
    return f"Error: {device['name']} is already {'on' if device['on'] else 'off'}."


def _load(records: Records, room: str) -> dict[str, Any]:
    on = [device for device in records.all("device") if device["room"] == room and device["on"]]
    return {"devices_on": len(on), "watts": sum(device["watts"] for device in on)}


DOMAIN = Domain(
    name="home",
    background="A smart home with devices in six rooms, thermometers and hygrometers, timers that "
    "switch devices every day, and an electricity price for every hour of the day.",
    entities=(DEVICE, READING, TARIFF, TIMER),
    actions=(
        Find(
            name="list_devices",
            description="List devices by room or kind.",
            entity="device",
            where={"room": "room", "kind": "kind"},
            shows=("name", "room"),
        ),
        Get(name="get_device", description="Power and state of one device.", entity="device"),
        Compute(
            name="room_load",
            description="How many devices of a room are on and what they draw.",
            entity="device",
            takes={"room": one_of(*_ROOMS)},
            gives={"devices_on": COUNT, "watts": COUNT},
            function=_load,
        ),
        Find(
            name="list_readings",
            description="What the sensors of one or all rooms read.",
            entity="reading",
            where={"room": "room", "measures": "measures"},
        ),
        Update(
            name="switch_device",
            description="Switch a device on or off.",
            entity="device",
            takes=("on",),
            check=_changes,
        ),
        Get(
            name="get_tariff",
            description="Electricity price of the hour that starts at HH:00.",
            entity="tariff",
        ),
        Find(
            name="list_timers",
            description="Timers of one device, or all.",
            entity="timer",
            where={"device_id": "device_id", "turns_on": "turns_on"},
        ),
        Create(
            name="add_timer",
            description="Switch a device on or off every day at a time.",
            entity="timer",
            takes=("device_id", "time", "turns_on"),
        ),
        Delete(name="remove_timer", description="Remove a timer.", entity="timer"),
    ),
    populate=populate,
)


class RunningCost(Template):
    """Power times the price of each hour."""

    name = "running_cost"
    split = "test"
    prompts = (
        (
            "What does running the {device} from {start} to {end} cost in cents, at the tariff of "
            "each hour? Round to two decimals."
        ),
        (
            "The {device} is to run from {start} until {end}. How many cents of electricity is "
            "that, each hour at its own price? Round to two decimals."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Two or three whole hours of a heater or purifier."""
        kinds = ("heater", "purifier")
        devices = [device for device in rows_of(state, "device") if device["kind"] in kinds]
        device, start, hours = rng.choice(devices), rng.randrange(20), rng.randrange(2, 4)
        prices = [
            state["tariff"][clock(60 * hour)]["cents_per_kwh"]
            for hour in range(start, start + hours)
        ]
        cost = device["watts"] / 1000 * sum(prices)
        if not answers.rounds_clearly(cost):
            return None
        return Posed(
            slots={
                "device": device["name"],
                "start": clock(60 * start),
                "end": clock(60 * (start + hours)),
            },
            answer=answers.number(cost),
            evidence=[
                (device["device_id"], "watts"),
                *((clock(60 * hour), "cents_per_kwh") for hour in range(start, start + hours)),
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Device, then each hour's price."""
        room, kind = slots["device"].split(" ")
        found = yield "list_devices", {"room": room, "kind": kind}
        device = yield "get_device", {"device_id": found["devices"][0]["device_id"]}
        total = 0.0
        for hour in range(int(slots["start"][:2]), int(slots["end"][:2])):
            tariff = yield "get_tariff", {"hour": clock(60 * hour)}
            total += tariff["cents_per_kwh"]
        return f"{device['watts'] / 1000 * total:.2f}"


class AllOff(Template):
    """Everything in a room that is on, off."""

    name = "all_off"
    split = "test"
    prompts = (
        "Switch off everything that is on in the {room}. How many watts does that save?",
        (
            "Nobody is in the {room}: turn every device there off that is still on, and answer "
            "with the watts they drew together."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A room with something on and something off."""
        room = rng.choice(_ROOMS)
        on = rows_of(state, "device", room=room, on=True)
        if not on or not rows_of(state, "device", room=room, on=False):
            return None
        return Posed(
            slots={"room": room},
            answer=answers.number(sum(device["watts"] for device in on)),
            evidence=[(device["device_id"], "watts") for device in on],
            writes=[("switch_device", {"device_id": d["device_id"], "on": False}) for d in on],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Devices of the room, each looked at, those on switched off."""
        found = yield "list_devices", {"room": slots["room"]}
        watts = 0
        for entry in found["devices"]:
            device = yield "get_device", {"device_id": entry["device_id"]}
            if device["on"]:
                watts += device["watts"]
                yield "switch_device", {"device_id": device["device_id"], "on": False}
        return str(watts)


class CoolWarmest(Template):
    """The fan of the warmest room, unless it runs already."""

    name = "cool_warmest"
    none_share = 0.4
    split = "test"
    prompts = (
        (
            "Switch on the fan in the warmest room and answer with the room. If that fan is on "
            "already, leave it on and answer none."
        ),
        (
            "Find the room with the highest temperature. If its fan is off, turn it on and answer "
            "with the room's name; if it is running, change nothing and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any home."""
        warmest = only_extreme(
            rows_of(state, "reading", measures="temperature"), "value", lowest=False
        )
        if warmest is None:
            return None
        (fan,) = rows_of(state, "device", room=warmest["room"], kind="fan")
        switch = {"device_id": fan["device_id"], "on": True}
        return Posed(
            slots={},
            answer=answers.name(None if fan["on"] else fan["room"], _ROOMS),
            evidence=[warmest["reading_id"], {(fan["device_id"], "on"), _is_already(fan)}],
            writes=() if fan["on"] else [("switch_device", switch)],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Temperatures, fan, perhaps a switch."""
        read = yield "list_readings", {"measures": "temperature"}
        room = max(read["readings"], key=lambda reading: reading["value"])["room"]
        found = yield "list_devices", {"room": room, "kind": "fan"}
        fan = yield "get_device", {"device_id": found["devices"][0]["device_id"]}
        if fan["on"]:
            return "none"
        yield "switch_device", {"device_id": fan["device_id"], "on": True}
        return str(room)


class NextTimer(Template):
    """Which device a timer switches on first."""

    name = "next_timer"
    split = "test"
    prompts = (
        (
            "Which device is the first of the day, counted from 00:00, to be switched on by a "
            "timer? Answer with its name."
        ),
        (
            "Of all timers that turn something on, take the earliest in the day, from midnight. "
            "What is the name of its device?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Several timers that switch something on."""
        timers = rows_of(state, "timer", turns_on=True)
        first = only_extreme(timers, "time")
        if first is None or len(timers) < 3:
            return None
        return Posed(
            slots={},
            answer=answers.name(
                state["device"][first["device_id"]]["name"], field_of(state, "device", "name")
            ),
            evidence=[first["timer_id"], first["device_id"]],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Timers, then the device."""
        listed = yield "list_timers", {"turns_on": True}
        first = min(listed["timers"], key=lambda timer: timer["time"])
        device = yield "get_device", {"device_id": first["device_id"]}
        return str(device["name"])


CATALOGUE = Catalogue(DOMAIN, (RunningCost(), AllOff(), CoolWarmest(), NextTimer()))
