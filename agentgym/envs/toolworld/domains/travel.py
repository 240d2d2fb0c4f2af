"""A travel desk: flights, airlines with fees, hotels, bookings."""

import random
from collections.abc import Mapping, Set
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import CITIES, clock, dates, minutes, people
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Look,
    Posed,
    Script,
    Template,
    keys,
    only_extreme,
    pick,
    rows_of,
)
from agentgym.errors import ToolError
from agentgym.simulators.actions import Create, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import (
    AMOUNT,
    COUNT,
    DATE,
    TEXT,
    TIME,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_AIRLINES = {"Aerolis": "AE", "Nordwind": "NW", "Solair": "SO", "Vectra": "VC"}
_CITIES = CITIES[:5]

FLIGHT = Entity(
    name="flight",
    key="flight_id",
    prefix="fl",
    fields={
        "airline": one_of(*_AIRLINES),
        "origin": one_of(*_CITIES),
        "destination": one_of(*_CITIES),
        "date": DATE,
        "departs": TIME,
        "minutes": {**COUNT, "description": "Duration"},
        "price": AMOUNT,
        "seats": COUNT,
    },
)
AIRLINE = Entity(
    name="airline",
    key="airline",
    prefix="airline",
    fields={"bag_fee": AMOUNT, "cancellation_fee": AMOUNT},
)
HOTEL = Entity(
    name="hotel",
    key="hotel_id",
    prefix="ht",
    fields={
        "name": TEXT,
        "city": one_of(*_CITIES),
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "nightly_price": AMOUNT,
    },
)
BOOKING = Entity(
    name="booking",
    key="booking_id",
    prefix="bn",
    fields={
        "traveller": TEXT,
        "flight_id": TEXT,
        "bags": {**COUNT, "maximum": 5},
        "total": AMOUNT,
        "status": one_of("confirmed", "cancelled"),
    },
    refers={"flight_id": "flight"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """Flights between five cities on a few days, some full."""
    days = dates(rng, 3)
    flights = []
    for key in keys(rng, "fl", 60):
        origin, destination = rng.sample(_CITIES[:4], 2)
        flights.append(
            {
                "flight_id": key,
                "airline": rng.choice(list(_AIRLINES)),
                "origin": origin,
                "destination": destination,
                "date": rng.choice(days),
                "departs": clock(rng.randrange(60, 200) * 5),
                "minutes": rng.randrange(60, 300),
                "price": rng.randrange(60, 400) + 0.5,
                "seats": rng.choice((0, 0, 1, 4, 9)),
            }
        )
    fees = rng.sample(range(15, 80), 8)
    airlines = [
        {"airline": airline, "bag_fee": float(fees[i]), "cancellation_fee": float(fees[-1 - i])}
        for i, airline in enumerate(_AIRLINES)
    ]
    houses = [
        f"{a} {n}" for a in ("Grand", "Royal", "Old", "Park") for n in ("Inn", "House", "Spa")
    ]
    hotels = [
        {
            "hotel_id": key,
            "name": f"{city} {house}",
            "city": city,
            "stars": rng.randrange(2, 6),
            "nightly_price": rng.randrange(55, 260) + 0.0,
        }
        for city in _CITIES[:4]
        for key, house in zip(
            keys(rng, f"ht{city[:1].lower()}", 6), rng.sample(houses, 6), strict=True
        )
    ]
    bookings = []
    for key, traveller in zip(keys(rng, "bn", 20), people(rng, 10) * 2, strict=True):
        flight: Row = rng.choice(flights)
        bags = rng.randrange(3)
        bag_fee = fees[list(_AIRLINES).index(flight["airline"])]
        bookings.append(
            {
                "booking_id": key,
                "traveller": traveller,
                "flight_id": flight["flight_id"],
                "bags": bags,
                "total": flight["price"] + bags * bag_fee,
                "status": rng.choice(("confirmed", "confirmed", "cancelled")),
            }
        )
    return {"flight": flights, "airline": airlines, "hotel": hotels, "booking": bookings}


def _has_seat(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if records.get("flight", arguments["flight_id"])["seats"] < 1:
        raise ToolError(_is_full(arguments["flight_id"]))


def _is_full(flight_id: str) -> str:
    return f"Error: flight {flight_id} has no seat left."


def _priced(records: Records, arguments: Mapping[str, Any]) -> Row:
    flight = records.get("flight", arguments["flight_id"])
    bag_fee = records.get("airline", flight["airline"])["bag_fee"]
    return {"total": round(flight["price"] + arguments["bags"] * bag_fee, 2)}


def _take_seat(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("flight", row["flight_id"])["seats"] -= 1


def _free_seat(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("flight", row["flight_id"])["seats"] += 1


DOMAIN = Domain(
    name="travel",
    background="A travel desk. A booking costs the flight's price and its airline's fee for every "
    "bag; cancelling refunds what was paid less the airline's cancellation fee.",
    entities=(FLIGHT, AIRLINE, HOTEL, BOOKING),
    actions=(
        Find(
            name="search_flights",
            description="Flights between two cities, optionally on one date.",
            entity="flight",
            where={"origin": "origin", "destination": "destination", "date": "date"},
            required=("origin", "destination"),
            shows=("airline", "date", "departs"),
        ),
        Get(
            name="get_flight",
            description="Everything about one flight: duration, price, seats left.",
            entity="flight",
        ),
        Get(name="get_airline", description="An airline's fees.", entity="airline"),
        Find(
            name="search_hotels",
            description="Hotels in a city, optionally by stars and price per night.",
            entity="hotel",
            where={
                "city": "city",
                "min_stars": ("stars", "at_least"),
                "max_price": ("nightly_price", "at_most"),
            },
            required=("city",),
            shows=("name", "stars"),
        ),
        Get(name="get_hotel", description="Everything about one hotel.", entity="hotel"),
        Find(
            name="find_bookings",
            description="Bookings of a traveller, by full name.",
            entity="booking",
            where={"traveller": "traveller", "status": "status"},
            required=("traveller",),
            shows=("flight_id", "status"),
        ),
        Get(name="get_booking", description="Everything about one booking.", entity="booking"),
        Create(
            name="book_flight",
            description="Book a seat on a flight, with bags.",
            entity="booking",
            takes=("traveller", "flight_id", "bags"),
            sets={"status": "confirmed"},
            derive=_priced,
            check=_has_seat,
            then=_take_seat,
        ),
        Update(
            name="cancel_booking",
            description="Cancel a confirmed booking.",
            entity="booking",
            sets={"status": "cancelled"},
            when={"status": ("confirmed",)},
            then=_free_seat,
        ),
    ),
    populate=populate,
)


def _route(rng: random.Random, state: State) -> tuple[dict[str, str], list[Row]]:
    """Two cities and a day with at least one flight, and the flights."""
    flight = rng.choice(rows_of(state, "flight"))
    route = {name: flight[name] for name in ("origin", "destination", "date")}
    return route, rows_of(state, "flight", **route)


class CheapestWithBags(Template):
    """Price and bag fee come from different tools."""

    name = "cheapest_with_bags"
    split = "train"
    prompts = (
        (
            "What is the lowest total price of a flight from {origin} to {destination} on {date} "
            "with {bags} bags, bag fees included? Only flights with a seat left count."
        ),
        (
            "I fly from {origin} to {destination} on {date} with {bags} bags. What do I pay at "
            "least, with the airlines' fees for the bags, on a flight that still has a seat?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """At least two flights with seats."""
        route, flights = _route(rng, state)
        open_ = [flight for flight in flights if flight["seats"]]
        if len(open_) < 2:
            return None
        bags = rng.randrange(2, 4)
        totals = [f["price"] + bags * state["airline"][f["airline"]]["bag_fee"] for f in open_]
        return Posed(
            slots={**route, "bags": bags},
            answer=answers.number(min(totals)),
            evidence=[*((flight["flight_id"], "seats") for flight in flights), "bag_fee"],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Flights, each one's price, each airline's fee."""
        route = {name: slots[name] for name in ("origin", "destination", "date")}
        found = yield "search_flights", route
        fees: dict[str, float] = {}
        totals = []
        for entry in found["flights"]:
            flight = yield "get_flight", {"flight_id": entry["flight_id"]}
            if not flight["seats"]:
                continue
            if flight["airline"] not in fees:
                airline = yield "get_airline", {"airline": flight["airline"]}
                fees[flight["airline"]] = airline["bag_fee"]
            totals.append(flight["price"] + int(slots["bags"]) * fees[flight["airline"]])
        return f"{min(totals):.2f}"


class FastestArrival(Template):
    """When the quickest flight lands."""

    name = "fastest_arrival"
    split = "train"
    prompts = (
        (
            "At what time does the flight with the shortest duration from {origin} to "
            "{destination} on {date} land? Ignore time zones."
        ),
        (
            "Take the quickest flight on {date} from {origin} to {destination}: when does it "
            "arrive, time zones left aside?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """One of at least two flights is the quickest, and it lands the same day."""
        route, flights = _route(rng, state)
        quickest = only_extreme(flights, "minutes")
        if quickest is None or len(flights) < 2:
            return None
        lands = minutes(quickest["departs"]) + quickest["minutes"]
        if lands >= 24 * 60:
            return None
        return Posed(
            slots=route,
            answer=answers.time(clock(lands)),
            evidence=[(flight["flight_id"], "minutes") for flight in flights],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Flights, durations, sum."""
        route = {name: slots[name] for name in ("origin", "destination", "date")}
        found = yield "search_flights", route
        flights = []
        for entry in found["flights"]:
            flight = yield "get_flight", {"flight_id": entry["flight_id"]}
            flights.append(flight)
        quickest = min(flights, key=lambda flight: flight["minutes"])
        return clock(minutes(quickest["departs"]) + quickest["minutes"])


class BookCheapest(Template):
    """A booking on the cheapest flight that isn't full; none if all are."""

    name = "book_cheapest"
    none_share = 0.25
    split = "train"
    prompts = (
        (
            "Book {traveller} with {bags} bags on a flight from {origin} to {destination} on "
            "{date}: of those with a seat left, the one with the lowest price before bag fees. "
            "Answer with the booking's total, or none, booking nothing, if every flight is full."
        ),
        (
            "{traveller} needs a seat from {origin} to {destination} on {date} with {bags} bags: "
            "book the flight with the lowest price, fees for bags aside, that isn't full, and "
            "answer with the total charged. If all are full, book nothing and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any route and day."""
        route, flights = _route(rng, state)
        open_ = [flight for flight in flights if flight["seats"]]
        cheapest = only_extreme(open_, "price")
        if open_ and (cheapest is None or len(flights) < 2):
            return None
        slots = {**route, "traveller": people(rng, 1)[0], "bags": rng.randrange(2, 4)}
        evidence: list[Set[Look]] = [
            {(flight["flight_id"], "seats"), _is_full(flight["flight_id"])} for flight in flights
        ]
        if cheapest is None:
            return Posed(slots=slots, answer=answers.no_number(), evidence=evidence)
        fee = state["airline"][cheapest["airline"]]["bag_fee"]
        booking = {"traveller": slots["traveller"], "flight_id": cheapest["flight_id"]}
        return Posed(
            slots=slots,
            answer=answers.number(cheapest["price"] + slots["bags"] * fee),
            evidence=evidence,
            writes=[("book_flight", {**booking, "bags": slots["bags"]})],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Flights, prices and seats, one booking."""
        route = {name: slots[name] for name in ("origin", "destination", "date")}
        found = yield "search_flights", route
        open_ = []
        for entry in found["flights"]:
            flight = yield "get_flight", {"flight_id": entry["flight_id"]}
            if flight["seats"]:
                open_.append(flight)
        if not open_:
            return "none"
        cheapest = min(open_, key=lambda flight: flight["price"])
        whose = {"traveller": slots["traveller"], "bags": int(slots["bags"])}
        booking = yield "book_flight", {**whose, "flight_id": cheapest["flight_id"]}
        return f"{booking['total']:.2f}"


class TripCost(Template):
    """A flight and some nights in the cheapest good hotel."""

    name = "trip_cost"
    split = "validation"
    prompts = (
        (
            "What does a trip cost that takes flight {flight} without bags and then {nights} "
            "nights in the cheapest hotel with at least {stars} stars in the city where the flight"
            " lands?"
        ),
        (
            "Add up the price of flight {flight} and {nights} nights at its destination, in "
            "whichever hotel of {stars} stars or more costs least per night."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A flight, and several hotels to compare."""
        flight = rng.choice(rows_of(state, "flight"))
        stars, nights = rng.randrange(3, 5), rng.randrange(2, 7)
        hotels = [
            hotel
            for hotel in rows_of(state, "hotel", city=flight["destination"])
            if hotel["stars"] >= stars
        ]
        if len(hotels) < 2:
            return None
        nightly = min(hotel["nightly_price"] for hotel in hotels)
        return Posed(
            slots={"flight": flight["flight_id"], "nights": nights, "stars": stars},
            answer=answers.number(flight["price"] + nights * nightly),
            evidence=[
                flight["flight_id"],
                *({(h["hotel_id"], "nightly_price"), ("max_price", "hotels")} for h in hotels),
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Flight, hotels, each one's price."""
        flight = yield "get_flight", {"flight_id": slots["flight"]}
        wanted = {"city": flight["destination"], "min_stars": int(slots["stars"])}
        found = yield "search_hotels", wanted
        prices = []
        for entry in found["hotels"]:
            hotel = yield "get_hotel", {"hotel_id": entry["hotel_id"]}
            prices.append(hotel["nightly_price"])
        return f"{flight['price'] + int(slots['nights']) * min(prices):.2f}"


class CancelIfCheap(Template):
    """A cancellation that depends on the airline's fee."""

    name = "cancel_if_cheap"
    none_share = 0.4
    split = "test"
    prompts = (
        (
            "{traveller} has one confirmed flight booking. Cancel it if the airline's cancellation"
            " fee is at most {limit}, and answer with the refund; otherwise leave it as it is and "
            "answer none."
        ),
        (
            "If cancelling the one confirmed booking of {traveller} costs no more than {limit} in "
            "fees, cancel it and answer with what is refunded. If it costs more, change nothing "
            "and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A traveller with one confirmed booking that cost more than the fee."""
        booking = pick(rng, rows_of(state, "booking", status="confirmed"))
        if booking is None:
            return None
        whose = {"traveller": booking["traveller"], "status": "confirmed"}
        airline = state["airline"][state["flight"][booking["flight_id"]]["airline"]]
        fee, limit = airline["cancellation_fee"], rng.randrange(25, 75)
        if len(rows_of(state, "booking", **whose)) != 1 or booking["total"] <= fee:
            return None
        cancels = fee <= limit
        return Posed(
            slots={"traveller": booking["traveller"], "limit": limit},
            answer=answers.number(booking["total"] - fee) if cancels else answers.no_number(),
            evidence=[booking["booking_id"], (airline["airline"], "cancellation_fee")],
            writes=[("cancel_booking", {"booking_id": booking["booking_id"]})] if cancels else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Booking, flight, airline, perhaps a cancellation."""
        whose = {"traveller": slots["traveller"], "status": "confirmed"}
        found = yield "find_bookings", whose
        booking = yield "get_booking", {"booking_id": found["bookings"][0]["booking_id"]}
        flight = yield "get_flight", {"flight_id": booking["flight_id"]}
        airline = yield "get_airline", {"airline": flight["airline"]}
        if airline["cancellation_fee"] > int(slots["limit"]):
            return "none"
        yield "cancel_booking", {"booking_id": booking["booking_id"]}
        return f"{booking['total'] - airline['cancellation_fee']:.2f}"


CATALOGUE = Catalogue(
    DOMAIN,
    (CheapestWithBags(), FastestArrival(), BookCheapest(), TripCost(), CancelIfCheap()),
)
