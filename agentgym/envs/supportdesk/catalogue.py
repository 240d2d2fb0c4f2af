"""The shop's products, and the names and places its customers have: words, no logic."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A product before it has prices and stock."""

    name: str
    category: str
    prices: tuple[int, int]
    """Lowest and highest, dollars."""
    options: dict[str, tuple[str, ...]]


_PRODUCTS = """
Trail Backpack | outdoor | 59-119 | color: green, navy, orange; volume: 20 l, 35 l
Rain Jacket | clothing | 79-159 | color: black, yellow, teal; size: small, medium, large
Running Shoes | shoes | 69-149 | color: white, red, gray; size: 40, 41, 42, 43
Wool Sweater | clothing | 49-99 | color: cream, burgundy, charcoal; size: small, medium, large
Desk Lamp | home | 29-69 | color: white, black, brass; brightness: 450 lm, 800 lm
Coffee Grinder | kitchen | 39-129 | material: steel, bamboo; power: manual, electric
Espresso Maker | kitchen | 34-89 | material: aluminum, steel; cups: 3 cups, 6 cups
Bluetooth Speaker | electronics | 39-139 | color: black, blue, coral; battery: 10 hours, 20 hours
Wireless Headphones | electronics | 59-199 | color: black, silver, rose; fit: on-ear, over-ear
Mechanical Keyboard | electronics | 69-169 | layout: full, compact; switch: clicky, linear, silent
Yoga Mat | sports | 24-64 | color: purple, mint, slate; thickness: 4 mm, 6 mm
Water Bottle | outdoor | 14-39 | color: lime, cobalt, ruby; capacity: 500 ml, 750 ml, 1000 ml
Cotton Bedsheets | home | 44-109 | color: ivory, sage, rust; width: twin, queen, king
Bath Towel Set | home | 24-59 | color: aqua, sand, plum; pieces: 2 pieces, 4 pieces
Camping Tent | outdoor | 119-289 | color: olive, amber; persons: 2 persons, 4 persons
Hiking Boots | shoes | 99-189 | color: brown, graphite; size: 40, 41, 42, 43
Cycling Helmet | sports | 39-119 | color: white, neon, matte black; size: small, medium, large
Leather Wallet | accessories | 29-79 | color: tan, espresso, black; style: bifold, slim
Smart Watch | electronics | 129-299 | color: graphite, gold; band: silicone, leather, metal
Chef's Knife | kitchen | 39-149 | handle: walnut, resin; length: 6 inch, 8 inch
Board Game | toys | 24-69 | edition: classic, deluxe, travel
Jigsaw Puzzle | toys | 14-34 | motif: harbor, forest, skyline; pieces: 500 pieces, 1000 pieces
"""
"""Name, category, price range in dollars, options; all values of a product differ."""


def _kind(line: str) -> Kind:
    name, category, prices, options = (part.strip() for part in line.split("|"))
    low, _, high = prices.partition("-")
    groups = (group.partition(":") for group in options.split(";"))
    values = {key.strip(): tuple(v.strip() for v in each.split(",")) for key, _, each in groups}
    return Kind(name, category, (int(low), int(high)), values)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PRODUCTS = tuple(_kind(line) for line in _PRODUCTS.strip().splitlines())
FIRST_NAMES = _words(
    """
    Ada Amir Anika Beatriz Boris Carmen Chen Clara Dario Deniz Elena Emeka Farah Felix Greta
    Hana Hugo Imani Ines Ivan Jonas Julia Kenji Lars Leila Lucia Mateo Maya Milan Nadia Nils
    Noor Olga Omar Paula Pedro Priya Quinn Rafael Rosa Samir Sofia Tariq Tessa Uma Viktor Wanda
    Xenia Yara Zoltan
    """
)
LAST_NAMES = _words(
    """
    Abara Alvarez Bauer Bennett Castillo Cheng Dubois Eriksen Farouk Fischer Garcia Haddad
    Hansen Ibrahim Ivanova Jansen Kapoor Keller Kowalski Laurent Lindgren Marchetti Mendoza
    Moreau Nakamura Novak Okafor Olsen Petrov Quintero Ramirez Rossi Santos Schmidt Sharma Silva
    Tanaka Torres Ueda Vargas Weber Yilmaz Zhang
    """
)
STREETS = (
    "Maple Street",
    "Oak Avenue",
    "Cedar Lane",
    "Birch Road",
    "Elm Street",
    "Willow Drive",
    "Juniper Avenue",
    "Chestnut Street",
    "Magnolia Road",
    "Sycamore Lane",
    "Aspen Drive",
    "Hawthorn Road",
    "Poplar Avenue",
    "Laurel Street",
    "Spruce Lane",
)
CITIES = (
    ("Portland", "OR", "972"),
    ("Austin", "TX", "787"),
    ("Denver", "CO", "802"),
    ("Columbus", "OH", "432"),
    ("Madison", "WI", "537"),
    ("Tucson", "AZ", "857"),
    ("Raleigh", "NC", "276"),
    ("Boise", "ID", "837"),
    ("Albany", "NY", "122"),
    ("Omaha", "NE", "681"),
)
"""City, state and the first three digits of its zip codes."""
CARDS = ("Visa", "Mastercard", "Amex")
