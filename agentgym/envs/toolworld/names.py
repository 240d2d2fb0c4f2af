"""Names that several domains draw from; none is the beginning or a part of another."""

import random

FIRST = (
    "Ada", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas",
    "Keiko", "Lars", "Mina", "Noor", "Otto", "Priya", "Quentin", "Rosa", "Stefan", "Tara",
    "Ulrich", "Vera", "Wanda", "Xavier", "Yara", "Zoltan",
)  # fmt: skip
LAST = (
    "Abbott", "Bergström", "Castillo", "Dubois", "Eriksen", "Fontaine", "Grimaldi", "Hofmann",
    "Ivanov", "Jansen", "Kowalski", "Lindqvist", "Moreau", "Nakamura", "Okafor", "Petrov",
    "Quispe", "Rossi", "Sørensen", "Tanaka", "Umarov", "Vargas", "Weiss", "Yamada", "Zhang",
)  # fmt: skip
CITIES = ("Lisbon", "Oslo", "Vienna", "Prague", "Dublin", "Athens", "Zurich", "Tallinn")


def people(rng: random.Random, count: int) -> list[str]:
    """Full names, all different, no two with the same first or the same last name.

    Args:
        rng: Where they are drawn from.
        count: At most 25.
    """
    return [
        f"{first} {last}"
        for first, last in zip(rng.sample(FIRST, count), rng.sample(LAST, count), strict=True)
    ]


def dates(rng: random.Random, count: int, *, month: int = 5, year: int = 2026) -> list[str]:
    """Days of one month as YYYY-MM-DD, in order."""
    return [f"{year}-{month:02d}-{day:02d}" for day in sorted(rng.sample(range(1, 29), count))]


def minutes(time: str) -> int:
    """Minutes since midnight of an HH:MM time."""
    hours, rest = time.split(":")
    return 60 * int(hours) + int(rest)


def clock(minutes_since_midnight: int) -> str:
    """The HH:MM time of so many minutes since midnight."""
    hours, rest = divmod(minutes_since_midnight, 60)
    return f"{hours:02d}:{rest:02d}"
