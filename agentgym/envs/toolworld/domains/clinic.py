"""A clinic's front desk: doctors, patients, insurers, slots, appointments."""

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import clock, dates, people
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Posed,
    Script,
    Template,
    field_of,
    keys,
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
    FLAG,
    TEXT,
    TIME,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_SPECIALTIES = ("cardiology", "dermatology", "orthopaedics")
_SITES = ("hillside", "riverside")
_INSURERS = ("Concordia", "Helios", "Sanitas")

DOCTOR = Entity(
    name="doctor",
    key="doctor_id",
    prefix="dr",
    fields={
        "name": TEXT,
        "specialty": one_of(*_SPECIALTIES),
        "site": one_of(*_SITES),
        "fee": {**AMOUNT, "description": "Of one visit"},
    },
)
PATIENT = Entity(
    name="patient",
    key="patient_id",
    prefix="pt",
    fields={"name": TEXT, "born": DATE, "insurer": one_of(*_INSURERS)},
)
INSURER = Entity(
    name="insurer",
    key="insurer",
    prefix="insurer",
    fields={"covers_percent": {**COUNT, "maximum": 100}},
)
SLOT = Entity(
    name="slot",
    key="slot_id",
    prefix="sl",
    fields={"doctor_id": TEXT, "date": DATE, "time": TIME, "free": FLAG},
)
APPOINTMENT = Entity(
    name="appointment",
    key="appointment_id",
    prefix="ap",
    fields={"slot_id": TEXT, "patient_id": TEXT, "status": one_of("booked", "cancelled")},
    refers={"slot_id": "slot", "patient_id": "patient"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """Slots on a few days; about half are taken, and some doctors have none left."""
    names = people(rng, 24)
    doctors = [
        {
            "doctor_id": key,
            "name": f"Dr {name}",
            "specialty": rng.choice(_SPECIALTIES),
            "site": rng.choice(_SITES),
            "fee": rng.randrange(60, 240) + 0.0,
        }
        for key, name in zip(keys(rng, "dr", 10), names[:10], strict=True)
    ]
    patients = [
        {"patient_id": key, "name": name, "born": born, "insurer": rng.choice(_INSURERS)}
        for key, name, born in zip(
            keys(rng, "pt", 14), names[10:], dates(rng, 14, year=1980), strict=True
        )
    ]
    days = dates(rng, 5)
    times = [
        (doctor["doctor_id"], date, clock(60 * hour))
        for doctor in doctors
        for date in rng.sample(days, 3)
        for hour in rng.sample(range(8, 17), 2)
    ]
    slots = [
        {"slot_id": key, "doctor_id": doctor, "date": date, "time": time, "free": True}
        for key, (doctor, date, time) in zip(keys(rng, "sl", len(times)), times, strict=True)
    ]
    booked_out = {doctor["doctor_id"] for doctor in doctors[:3]}
    taken = [slot for slot in slots if slot["doctor_id"] in booked_out or rng.random() < 0.4]
    appointments = []
    for key, slot in zip(keys(rng, "ap", len(taken)), taken, strict=True):
        cancelled = slot["doctor_id"] not in booked_out and rng.random() < 0.3
        status = "cancelled" if cancelled else "booked"
        slot["free"] = status == "cancelled"
        appointments.append(
            {
                "appointment_id": key,
                "slot_id": slot["slot_id"],
                "status": status,
                "patient_id": rng.choice(patients)["patient_id"],
            }
        )
    shares = rng.sample((40, 50, 60, 75, 80, 90), len(_INSURERS))
    insurers = [
        {"insurer": insurer, "covers_percent": share}
        for insurer, share in zip(_INSURERS, shares, strict=True)
    ]
    return {
        "doctor": doctors,
        "patient": patients,
        "insurer": insurers,
        "slot": slots,
        "appointment": appointments,
    }


def _is_free(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if not records.get("slot", arguments["slot_id"])["free"]:
        raise ToolError(f"Error: slot {arguments['slot_id']} is taken.")


def _take(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("slot", row["slot_id"])["free"] = False


def _give_back(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("slot", row["slot_id"])["free"] = True


DOMAIN = Domain(
    name="clinic",
    background="A clinic's front desk. A visit costs the doctor's fee, of which the patient's "
    "insurer covers a percentage. Booking takes a slot, cancelling gives it back.",
    entities=(DOCTOR, PATIENT, INSURER, SLOT, APPOINTMENT),
    actions=(
        Find(
            name="find_doctors",
            description="Find doctors by name, specialty or site.",
            entity="doctor",
            where={"name": ("name", "contains"), "specialty": "specialty", "site": "site"},
            shows=("name",),
        ),
        Get(name="get_doctor", description="Everything about one doctor.", entity="doctor"),
        Find(
            name="find_patients",
            description="Find patients by name.",
            entity="patient",
            where={"name": ("name", "contains")},
            required=("name",),
            shows=("name",),
        ),
        Get(name="get_patient", description="Everything about one patient.", entity="patient"),
        Get(name="get_insurer", description="What an insurer covers.", entity="insurer"),
        Find(
            name="list_slots",
            description="Slots of a doctor, by date or only the free ones.",
            entity="slot",
            where={
                "doctor_id": "doctor_id",
                "date": "date",
                "free": "free",
                "from_date": ("date", "at_least"),
            },
            required=("doctor_id",),
        ),
        Get(name="get_slot", description="One slot: doctor, date, time.", entity="slot"),
        Find(
            name="list_appointments",
            description="Appointments of a patient, by status.",
            entity="appointment",
            where={"patient_id": "patient_id", "status": "status"},
            required=("patient_id",),
        ),
        Create(
            name="book_appointment",
            description="Book a free slot for a patient.",
            entity="appointment",
            takes=("slot_id", "patient_id"),
            sets={"status": "booked"},
            check=_is_free,
            then=_take,
        ),
        Update(
            name="cancel_appointment",
            description="Cancel a booked appointment.",
            entity="appointment",
            sets={"status": "cancelled"},
            when={"status": ("booked",)},
            then=_give_back,
        ),
    ),
    populate=populate,
)


def _earliest(slots: list[Row]) -> Row | None:
    ordered = sorted(slots, key=lambda slot: (slot["date"], slot["time"]))
    if len(ordered) > 1 and _when(ordered[0]) == _when(ordered[1]):
        return None
    return ordered[0] if ordered else None


def _when(slot: Row) -> tuple[str, str]:
    return slot["date"], slot["time"]


class OwnShare(Template):
    """Fee less what the insurer covers."""

    name = "own_share"
    split = "validation"
    prompts = (
        (
            "What does {patient} have to pay themselves for one visit to {doctor}, after the "
            "insurer's share? Round to cents."
        ),
        (
            "{patient} sees {doctor} once. How much of the fee is left to pay when the patient's "
            "insurer has covered its part? Round to cents."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any patient and doctor."""
        patient, doctor = (
            rng.choice(rows_of(state, "patient")),
            rng.choice(rows_of(state, "doctor")),
        )
        covered = state["insurer"][patient["insurer"]]["covers_percent"]
        return Posed(
            slots={"patient": patient["name"], "doctor": doctor["name"]},
            answer=answers.number(doctor["fee"] * (100 - covered) / 100),
            evidence=[
                (patient["patient_id"], patient["insurer"]),
                (patient["insurer"], "covers_percent"),
                (doctor["doctor_id"], "fee"),
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Patient, insurer, doctor."""
        found = yield "find_patients", {"name": slots["patient"]}
        patient = yield "get_patient", {"patient_id": found["patients"][0]["patient_id"]}
        insurer = yield "get_insurer", {"insurer": patient["insurer"]}
        listed = yield "find_doctors", {"name": slots["doctor"]}
        doctor = yield "get_doctor", {"doctor_id": listed["doctors"][0]["doctor_id"]}
        return f"{doctor['fee'] * (100 - insurer['covers_percent']) / 100:.2f}"


class BookEarliest(Template):
    """The first free slot with any doctor of a specialty at a site."""

    name = "book_earliest"
    none_share = 0.2
    split = "validation"
    prompts = (
        (
            "Book {patient} into the earliest free slot with any doctor for {specialty} at the "
            "site {site}. Answer with the doctor's name, or none if no such slot is free."
        ),
        (
            "{patient} wants the first possible appointment in {specialty} at {site}, whoever the "
            "doctor is. Book it and answer with the doctor's name; if nothing is free, answer "
            "none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A specialty at a site, with doctors there."""
        patient, doctor = (
            rng.choice(rows_of(state, "patient")),
            rng.choice(rows_of(state, "doctor")),
        )
        where = {"specialty": doctor["specialty"], "site": doctor["site"]}
        doctors = rows_of(state, "doctor", **where)
        free = [
            slot
            for each in doctors
            for slot in rows_of(state, "slot", doctor_id=each["doctor_id"], free=True)
        ]
        slot = _earliest(free)
        if slot is None and free:
            return None
        booking = slot and {"slot_id": slot["slot_id"], "patient_id": patient["patient_id"]}
        return Posed(
            slots={"patient": patient["name"], **where},
            answer=answers.name(
                state["doctor"][slot["doctor_id"]]["name"] if slot else None,
                field_of(state, "doctor", "name"),
            ),
            evidence=[(each["doctor_id"], "slots") for each in doctors],
            writes=[("book_appointment", booking)] if booking else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Doctors, their free slots, one booking."""
        where = {"specialty": slots["specialty"], "site": slots["site"]}
        listed = yield "find_doctors", where
        free: list[Row] = []
        names: dict[str, str] = {}
        for doctor in listed["doctors"]:
            names[doctor["doctor_id"]] = doctor["name"]
            which = {"doctor_id": doctor["doctor_id"], "free": True}
            found = yield "list_slots", which
            free += found["slots"]
        if not free:
            return "none"
        slot = min(free, key=_when)
        patients = yield "find_patients", {"name": slots["patient"]}
        patient = patients["patients"][0]["patient_id"]
        yield "book_appointment", {"slot_id": slot["slot_id"], "patient_id": patient}
        return names[slot["doctor_id"]]


class Reschedule(Template):
    """The next free slot of the same doctor instead."""

    name = "reschedule"
    none_share = 0.25
    split = "validation"
    prompts = (
        (
            "{patient} has one booked appointment. Move it to the same doctor's earliest free slot"
            " after it: cancel the old one, book the new one, and answer with the new date. If "
            "there is no later free slot, change nothing and answer none."
        ),
        (
            "Postpone the one booked appointment of {patient} to the next free slot of that "
            "doctor, cancelling the old appointment and booking a new one; answer with the date. "
            "Without a later free slot leave everything as it is and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A patient with exactly one booked appointment."""
        appointment = pick(rng, rows_of(state, "appointment", status="booked"))
        if appointment is None:
            return None
        whose = {"patient_id": appointment["patient_id"], "status": "booked"}
        if len(rows_of(state, "appointment", **whose)) != 1:
            return None
        old = state["slot"][appointment["slot_id"]]
        free = rows_of(state, "slot", doctor_id=old["doctor_id"], free=True)
        later = sorted((slot for slot in free if _when(slot) > _when(old)), key=_when)
        cancel = ("cancel_appointment", {"appointment_id": appointment["appointment_id"]})
        patient = appointment["patient_id"]
        return Posed(
            slots={"patient": state["patient"][patient]["name"]},
            answer=answers.date(later[0]["date"] if later else None),
            evidence=[old["slot_id"], (old["doctor_id"], "slots")],
            writes=[
                cancel,
                ("book_appointment", {"slot_id": later[0]["slot_id"], "patient_id": patient}),
            ]
            if later
            else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Patient, appointment, slot, later slots, two writes."""
        patients = yield "find_patients", {"name": slots["patient"]}
        patient = patients["patients"][0]["patient_id"]
        booked = yield "list_appointments", {"patient_id": patient, "status": "booked"}
        appointment = booked["appointments"][0]
        old = yield "get_slot", {"slot_id": appointment["slot_id"]}
        found = yield "list_slots", {"doctor_id": old["doctor_id"], "free": True}
        later = [slot for slot in found["slots"] if _when(slot) > _when(old)]
        if not later:
            return "none"
        slot = min(later, key=_when)
        yield "cancel_appointment", {"appointment_id": appointment["appointment_id"]}
        yield "book_appointment", {"slot_id": slot["slot_id"], "patient_id": patient}
        return str(slot["date"])


class FreeOn(Template):
    """Which doctors have something free on a day."""

    name = "free_on"
    none_share = 0.2
    split = "test"
    prompts = (
        (
            "Which doctors for {specialty} have a free slot on {date}, at any site? Answer with "
            "their names, or none."
        ),
        (
            "Name all doctors for {specialty}, whatever their site, with at least one slot free on"
            " {date}; none if there are none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A specialty with at least two doctors."""
        specialty = rng.choice(_SPECIALTIES)
        date = rng.choice(rows_of(state, "slot"))["date"]
        doctors = rows_of(state, "doctor", specialty=specialty)
        free = [
            doctor["name"]
            for doctor in doctors
            if rows_of(state, "slot", doctor_id=doctor["doctor_id"], date=date, free=True)
        ]
        if len(doctors) < 2:
            return None
        return Posed(
            slots={"specialty": specialty, "date": date},
            answer=answers.names(free, field_of(state, "doctor", "name")),
            evidence=[(doctor["doctor_id"], "slots") for doctor in doctors],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Doctors, each one's slots."""
        listed = yield "find_doctors", {"specialty": slots["specialty"]}
        names = []
        for doctor in listed["doctors"]:
            which = {"doctor_id": doctor["doctor_id"], "date": slots["date"], "free": True}
            found = yield "list_slots", which
            if found["total"]:
                names.append(doctor["name"])
        return ", ".join(names) or "none"


CATALOGUE = Catalogue(DOMAIN, (OwnShare(), BookEarliest(), Reschedule(), FreeOn()))
