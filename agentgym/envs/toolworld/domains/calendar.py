"""An office calendar: people, meeting rooms, meetings."""

import random
from collections.abc import Mapping, Set
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import clock, dates, minutes, people
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Look,
    Posed,
    Script,
    Template,
    field_of,
    keys,
    only_extreme,
    rows_of,
)
from agentgym.errors import ToolError
from agentgym.simulators.actions import Create, Delete, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import (
    COUNT,
    DATE,
    FLAG,
    NAMES,
    TEXT,
    TIME,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_TEAMS = ("design", "finance", "platform", "research")
_ROOMS = ["Aspen", "Birch", "Cedar", "Hazel", "Juniper", "Maple", "Rowan", "Willow"]
_SUBJECTS = ["Budget", "Hiring", "Launch", "Migration", "Pricing", "Roadmap", "Safety", "Vendor"]
_KINDS = ("kick-off", "review", "sync", "workshop")

PERSON = Entity(
    name="person",
    plural="people",
    key="person_id",
    prefix="pe",
    fields={"name": TEXT, "team": one_of(*_TEAMS), "desk": TEXT},
)
ROOM = Entity(
    name="room",
    key="room_id",
    prefix="rm",
    fields={"name": TEXT, "floor": COUNT, "seats": COUNT, "screen": FLAG},
)
EVENT = Entity(
    name="event",
    key="event_id",
    prefix="ev",
    fields={
        "title": TEXT,
        "date": DATE,
        "start": TIME,
        "end": TIME,
        "room_id": TEXT,
        "attendees": {**NAMES, "description": "person_id of each"},
    },
    refers={"room_id": "room"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """A week of meetings; no room is double-booked, and nobody is in two places."""
    persons = [
        {"person_id": key, "name": name, "team": rng.choice(_TEAMS), "desk": f"D{number}"}
        for key, name, number in zip(
            keys(rng, "pe", 14), people(rng, 14), rng.sample(range(100, 500), 14), strict=True
        )
    ]
    rooms = [
        {
            "room_id": key,
            "name": name,
            "floor": rng.randrange(1, 5),
            "seats": seats,
            "screen": rng.random() < 0.6,
        }
        for key, name, seats in zip(
            keys(rng, "rm", 8), _ROOMS, rng.sample(range(4, 30), 8), strict=True
        )
    ]
    titles = [f"{subject} {kind}" for subject in _SUBJECTS for kind in _KINDS]
    events: list[Row] = []
    days = dates(rng, 4)
    for key, title in zip(keys(rng, "ev", 32), rng.sample(titles, 32), strict=True):
        date, start = rng.choice(days), rng.randrange(16, 34) * 30
        end = start + rng.choice((25, 30, 35, 40, 45, 50, 55, 60, 75, 90))
        clash = [event for event in events if _overlap(event, date, clock(start), clock(end))]
        free_rooms = [r for r in rooms if all(e["room_id"] != r["room_id"] for e in clash)]
        busy = {person for event in clash for person in event["attendees"]}
        free = [p["person_id"] for p in persons if p["person_id"] not in busy]
        if len(free) < 2 or not free_rooms:
            continue
        events.append(
            {
                "event_id": key,
                "title": title,
                "date": date,
                "start": clock(start),
                "end": clock(end),
                "room_id": rng.choice(free_rooms)["room_id"],
                "attendees": rng.sample(free, min(len(free), rng.randrange(2, 6))),
            }
        )
    return {"person": persons, "room": rooms, "event": events}


def _overlap(event: Row, date: str, start: str, end: str) -> bool:
    return bool(event["date"] == date and event["start"] < end and start < event["end"])


def _fits(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    """A room holds one meeting at a time, and a meeting ends after it starts."""
    planned = {**row, **arguments}
    if planned["end"] <= planned["start"]:
        raise ToolError("Error: the end must be after the start.")
    for person in planned["attendees"]:
        records.get("person", person)
    for event in records.all("event"):
        if event["room_id"] != planned["room_id"] or event is row:
            continue
        if _overlap(event, planned["date"], planned["start"], planned["end"]):
            raise ToolError(
                f"Error: room {planned['room_id']} is taken from {event['start']} to "
                f"{event['end']} on {event['date']}."
            )


DOMAIN = Domain(
    name="calendar",
    background="An office calendar. A room holds one meeting at a time; meetings have attendees, "
    "named by person_id.",
    entities=(PERSON, ROOM, EVENT),
    actions=(
        Find(
            name="find_people",
            description="Find colleagues by name or team.",
            entity="person",
            where={"name": ("name", "contains"), "team": "team"},
            shows=("name",),
        ),
        Get(name="get_person", description="Everything about a colleague.", entity="person"),
        Find(
            name="find_rooms",
            description="Find meeting rooms by seats, floor or screen.",
            entity="room",
            where={"min_seats": ("seats", "at_least"), "floor": "floor", "screen": "screen"},
            shows=("name",),
        ),
        Get(name="get_room", description="Everything about a meeting room.", entity="room"),
        Find(
            name="list_events",
            description="List meetings by date, attendee, room or words of the title.",
            entity="event",
            where={
                "date": "date",
                "attendee": ("attendees", "includes"),
                "room_id": "room_id",
                "title": ("title", "contains"),
            },
            shows=("title", "date", "start", "end"),
        ),
        Get(name="get_event", description="Everything about one meeting.", entity="event"),
        Create(
            name="create_event",
            description="Put a meeting into the calendar.",
            entity="event",
            takes=("title", "date", "start", "end", "room_id", "attendees"),
            check=_fits,
        ),
        Update(
            name="move_event",
            description="Move a meeting to another time, in the same room.",
            entity="event",
            takes=("date", "start", "end"),
            check=_fits,
        ),
        Delete(name="cancel_event", description="Cancel a meeting.", entity="event"),
    ),
    populate=populate,
)


def _of(state: State, person: Row, date: str) -> list[Row]:
    return [e for e in rows_of(state, "event", date=date) if person["person_id"] in e["attendees"]]


def _someones_day(rng: random.Random, state: State) -> tuple[Row, str, list[Row]]:
    person, date = (
        rng.choice(rows_of(state, "person")),
        rng.choice(rows_of(state, "event"))["date"],
    )
    return person, date, _of(state, person, date)


class BusyMinutes(Template):
    """The length of a person's day in meetings."""

    name = "busy_minutes"
    split = "train"
    prompts = (
        "How many minutes does {person} spend in meetings on {date}, according to the calendar?",
        "Add up the length of all meetings {person} attends on {date}. How many minutes are they?",
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A day with at least two meetings."""
        person, date, events = _someones_day(rng, state)
        if len(events) < 2:
            return None
        total = sum(minutes(event["end"]) - minutes(event["start"]) for event in events)
        return Posed(
            slots={"person": person["name"], "date": date},
            answer=answers.number(total),
            evidence=[event["event_id"] for event in events],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Person, meetings, sum."""
        found = yield "find_people", {"name": slots["person"]}
        which = {"date": slots["date"], "attendee": found["people"][0]["person_id"]}
        listed = yield "list_events", which
        total = sum(minutes(event["end"]) - minutes(event["start"]) for event in listed["events"])
        return str(total)


class InBoth(Template):
    """Who attends both of two meetings, if anybody."""

    name = "in_both"
    none_share = 0.2
    split = "train"
    prompts = (
        (
            "Who is invited to both the “{one}” and the “{other}”? Answer with the full names, or "
            "none if nobody is."
        ),
        (
            "List everybody, by full name, who attends the “{one}” as well as the “{other}”; none "
            "if there is nobody."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any two meetings."""
        one, other = rng.sample(rows_of(state, "event"), 2)
        both = [person for person in one["attendees"] if person in other["attendees"]]
        return Posed(
            slots={"one": one["title"], "other": other["title"]},
            answer=answers.names(
                [state["person"][person]["name"] for person in both],
                field_of(state, "person", "name"),
            ),
            evidence=[(event["event_id"], "attendees") for event in (one, other)],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Both meetings, then the name of each shared attendee."""
        attendees = []
        for title in (slots["one"], slots["other"]):
            listed = yield "list_events", {"title": title}
            event = yield "get_event", {"event_id": listed["events"][0]["event_id"]}
            attendees.append(event["attendees"])
        names = []
        for person in attendees[0]:
            if person in attendees[1]:
                found = yield "get_person", {"person_id": person}
                names.append(found["name"])
        return ", ".join(names) or "none"


def _room_looked_at(room_id: str) -> Set[Look]:
    """The room itself, or a search for rooms by their screens."""
    return {(room_id, "screen"), ("screen", "total")}


class NoScreen(Template):
    """Which of a person's meetings is in a room without a screen."""

    name = "no_screen"
    none_share = 0.2
    split = "train"
    prompts = (
        (
            "Which meetings of {person} on {date} are in a room without a screen? Answer with "
            "their titles, or none."
        ),
        (
            "{person} has slides to show on {date}. Give the titles of all their meetings that day"
            " whose room has no screen, or none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A day with at least two meetings."""
        person, date, events = _someones_day(rng, state)
        if len(events) < 2:
            return None
        without = [e["title"] for e in events if not state["room"][e["room_id"]]["screen"]]
        return Posed(
            slots={"person": person["name"], "date": date},
            answer=answers.names(without, field_of(state, "event", "title")),
            evidence=[
                piece
                for event in events
                if event["title"] in without or not without
                for piece in (event["event_id"], _room_looked_at(event["room_id"]))
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Person, meetings, each one's room."""
        found = yield "find_people", {"name": slots["person"]}
        which = {"date": slots["date"], "attendee": found["people"][0]["person_id"]}
        listed = yield "list_events", which
        titles = []
        for entry in listed["events"]:
            event = yield "get_event", {"event_id": entry["event_id"]}
            room = yield "get_room", {"room_id": event["room_id"]}
            if not room["screen"]:
                titles.append(event["title"])
        return ", ".join(titles) or "none"


class SmallestFreeRoom(Template):
    """A meeting in the smallest room that is big enough and free."""

    name = "smallest_free_room"
    split = "validation"
    prompts = (
        (
            "Schedule a meeting “{title}” on {date} from {start} to {end} with {person} as the "
            "only attendee, in the room with the fewest seats that has at least {seats} and is "
            "free then. Answer with the room's name."
        ),
        (
            "Put “{title}” into the calendar: {date}, {start} to {end}, attendee {person} alone. "
            "Of the rooms with {seats} seats or more that are free at that time take the one with "
            "fewest seats, and answer with its name."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A time at which a room that would do is taken."""
        taken = rng.choice(rows_of(state, "event"))
        start = minutes(taken["start"])
        when = {"date": taken["date"], "start": taken["start"], "end": clock(start + 60)}
        seats = max(4, state["room"][taken["room_id"]]["seats"] - rng.randrange(3))
        big = [room for room in rows_of(state, "room") if room["seats"] >= seats]
        busy = {e["room_id"] for e in rows_of(state, "event") if _overlap(e, **when)}
        room = only_extreme([room for room in big if room["room_id"] not in busy], "seats")
        if room is None:
            return None
        person = rng.choice(rows_of(state, "person"))
        event = {"title": f"Offsite planning {rng.randrange(10, 99)}", **when}
        return Posed(
            slots={**event, "person": person["name"], "seats": seats},
            answer=answers.name(room["name"], field_of(state, "room", "name")),
            evidence=[room["room_id"], person["person_id"]],
            writes=[
                (
                    "create_event",
                    {**event, "room_id": room["room_id"], "attendees": [person["person_id"]]},
                )
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Rooms by size, the first that is free, the meeting."""
        found = yield "find_people", {"name": slots["person"]}
        listed = yield "find_rooms", {"min_seats": int(slots["seats"])}
        rooms = []
        for entry in listed["rooms"]:
            room = yield "get_room", {"room_id": entry["room_id"]}
            rooms.append(room)
        when = {name: slots[name] for name in ("date", "start", "end")}
        for room in sorted(rooms, key=lambda room: room["seats"]):
            which = {"date": slots["date"], "room_id": room["room_id"]}
            events = yield "list_events", which
            if not any(_overlap(event, **when) for event in events["events"]):
                where = {"room_id": room["room_id"]}
                who = {"attendees": [found["people"][0]["person_id"]]}
                yield "create_event", {"title": slots["title"], **when, **where, **who}
                return str(room["name"])
        return "none"


class CancelLast(Template):
    """The last meeting of somebody's day goes."""

    name = "cancel_last"
    split = "test"
    prompts = (
        "Cancel the last meeting {person} has on {date} and answer with its title.",
        (
            "{person} has to leave early on {date}: cancel whichever of their meetings that day "
            "starts latest, and answer with its title."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A day with at least two meetings."""
        person, date, events = _someones_day(rng, state)
        last = only_extreme(events, "start", lowest=False)
        if last is None or len(events) < 2:
            return None
        return Posed(
            slots={"person": person["name"], "date": date},
            answer=answers.name(last["title"], field_of(state, "event", "title")),
            evidence=[event["event_id"] for event in events],
            writes=[("cancel_event", {"event_id": last["event_id"]})],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Person, meetings, one cancellation."""
        found = yield "find_people", {"name": slots["person"]}
        which = {"date": slots["date"], "attendee": found["people"][0]["person_id"]}
        listed = yield "list_events", which
        last = max(listed["events"], key=lambda event: event["start"])
        yield "cancel_event", {"event_id": last["event_id"]}
        return str(last["title"])


CATALOGUE = Catalogue(
    DOMAIN, (BusyMinutes(), InBoth(), NoScreen(), SmallestFreeRoom(), CancelLast())
)
