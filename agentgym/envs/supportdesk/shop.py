"""Building the shop: products, and customers with orders as a task needs them.

One generator, seeded once, makes everything in a fixed order, so that the same seed gives the same
shop and tasks anywhere. Every id is drawn until it is new.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from agentgym.envs.supportdesk import catalogue
from agentgym.envs.supportdesk.service import TODAY
from agentgym.envs.supportdesk.store import COLUMNS, Row
from agentgym.envs.supportdesk.wording import THEIR_CARD


def day(days_ago: int) -> str:
    """The date so many days before today."""
    return (date.fromisoformat(TODAY) - timedelta(days=days_ago)).isoformat()


@dataclass(frozen=True)
class Variant:
    """One form of a product."""

    variant_id: str
    product_id: str
    product: str
    options: dict[str, str]
    price: int
    """Cents."""
    stock: int

    def differs_from(self, other: Variant) -> list[str]:
        """Option values that the other variant doesn't have."""
        return [value for key, value in self.options.items() if other.options[key] != value]

    def unlike(self, other: Variant) -> str:
        """The same in words: `the version with color red and size 41`."""
        pairs = [f"{k} {v}" for k, v in self.options.items() if other.options[k] != v]
        return f"the version with {' and '.join(pairs)}"


@dataclass(frozen=True)
class Item:
    """One item of an order."""

    item_id: str
    variant: Variant
    price: int
    """Cents, as paid."""

    @property
    def product(self) -> str:
        """The product's name."""
        return self.variant.product


@dataclass(frozen=True)
class Method:
    """A payment method."""

    method_id: str
    kind: str
    label: str

    @property
    def words(self) -> tuple[str, ...]:
        """What it may be called."""
        if self.kind == "credit_card":
            return (self.method_id, self.label[-4:], self.label.split()[0], *THEIR_CARD)
        return (self.method_id, self.label)


@dataclass(frozen=True)
class Person:
    """A customer."""

    customer_id: str
    first: str
    last: str
    email: str
    street: str
    city: str
    state: str
    zip: str
    methods: tuple[Method, ...]

    @property
    def name(self) -> str:
        """First and last name."""
        return f"{self.first} {self.last}"

    @property
    def card(self) -> Method:
        """Their credit card."""
        return self.methods[0]

    @property
    def paypal(self) -> Method:
        """Their PayPal account."""
        return self.methods[1]

    @property
    def gift_card(self) -> Method:
        """Their gift card."""
        return self.methods[2]


@dataclass(frozen=True)
class Order:
    """An order."""

    order_id: str
    items: tuple[Item, ...]
    method: Method

    @property
    def total(self) -> int:
        """Cents."""
        return sum(item.price for item in self.items)


class Shop:
    """The shop while it is built.

    Args:
        rng: Every draw comes from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[str, list[Row]] = {table: [] for table in COLUMNS}
        self.products: dict[str, list[Variant]] = {}
        self._ids: set[str] = set()
        self._bought: dict[str, set[str]] = defaultdict(set)
        for name, category, prices, options in catalogue.PRODUCTS:
            self._add_product(name, category, prices, options)

    def new_id(self, prefix: str, digits: int = 7) -> str:
        """An id that nothing else has."""
        while True:
            found = f"{prefix}{self.rng.randrange(10 ** (digits - 1), 10**digits)}"
            if found not in self._ids:
                self._ids.add(found)
                return found

    def _add_product(
        self, name: str, category: str, prices: tuple[int, int], options: dict[str, Any]
    ) -> None:
        product_id = self.new_id("P", 5)
        self.rows["products"].append((product_id, name, category))
        base = self.rng.randrange(prices[0], prices[1] - 10)
        variants = []
        for values in itertools.product(*options.values()):
            variant = Variant(
                variant_id=self.new_id("V"),
                product_id=product_id,
                product=name,
                options=dict(zip(options, values, strict=True)),
                price=(base + self.rng.randrange(0, 12)) * 100 + 99,
                stock=self.rng.choice((0, 400, 650, 900)),
            )
            variants.append(variant)
        if sum(variant.stock > 0 for variant in variants) < 2 or all(v.stock for v in variants):
            variants = [replace(v, stock=500 if i else 0) for i, v in enumerate(variants)]
        self.products[name] = variants
        for v in variants:
            row = (v.variant_id, v.product_id, json.dumps(v.options), v.price, v.stock)
            self.rows["variants"].append(row)

    def person(self, *, like: Person | None = None, gift_balance: int = 2500) -> Person:
        """A new customer with a card, a PayPal account and a gift card.

        Args:
            like: Somebody to share name and zip code with.
            gift_balance: Cents on the gift card.
        """
        rng = self.rng
        first, last = rng.choice(catalogue.FIRST_NAMES), rng.choice(catalogue.LAST_NAMES)
        city, state, zip_start = rng.choice(catalogue.CITIES)
        zip_code = f"{zip_start}{rng.randrange(10, 100)}"
        if like is not None:
            first, last, city = like.first, like.last, like.city
            state, zip_code = like.state, like.zip
        customer_id = self.new_id("C", 6)
        person = Person(
            customer_id=customer_id,
            first=first,
            last=last,
            email=f"{first}.{last}{rng.randrange(10, 1000)}{customer_id[-2:]}@example.com".lower(),
            street=self.street(),
            city=city,
            state=state,
            zip=zip_code,
            methods=(
                Method(
                    self.new_id("pm_"),
                    "credit_card",
                    f"{rng.choice(catalogue.CARDS)} ending in {rng.randrange(1000, 10000)}",
                ),
                Method(self.new_id("pm_"), "paypal", "PayPal"),
                Method(self.new_id("pm_"), "gift_card", "Gift card"),
            ),
        )
        self.rows["customers"].append(
            (customer_id, first, last, person.email, person.street, city, state, zip_code)
        )
        for method in person.methods:
            balance = gift_balance if method.kind == "gift_card" else None
            row = (method.method_id, customer_id, method.kind, method.label, balance)
            self.rows["payment_methods"].append(row)
        return person

    def street(self) -> str:
        """A street and house number."""
        return f"{self.rng.randrange(100, 9900)} {self.rng.choice(catalogue.STREETS)}"

    def variants(self, count: int) -> list[Variant]:
        """In-stock variants of different products; each has siblings in stock and out of it."""
        names = self.rng.sample(sorted(self.products), count)
        return [self.rng.choice([v for v in self.products[n] if v.stock]) for n in names]

    def sibling(self, variant: Variant, *, in_stock: bool = True) -> Variant:
        """Another variant of the same product, with as few options different as there are."""
        others = [
            v
            for v in self.products[variant.product]
            if bool(v.stock) == in_stock and v.variant_id != variant.variant_id
        ]
        fewest = min(len(v.differs_from(variant)) for v in others)
        return self.rng.choice([v for v in others if len(v.differs_from(variant)) == fewest])

    def order(
        self,
        person: Person,
        variants: Sequence[Variant],
        *,
        status: str,
        placed: int,
        promised: int | None = None,
        shipped: int | None = None,
        delivered: int | None = None,
        method: Method | None = None,
        final_sale: Sequence[int] = (),
        packed: dict[int, Variant] | None = None,
    ) -> Order:
        """A new order.

        Args:
            person: Whose it is.
            variants: What was ordered.
            status: `pending`, `shipped`, `delivered` or `cancelled`.
            placed: Days ago; so are `promised`, `shipped` and `delivered`.
            promised: Default: 6 days after it was placed.
            shipped: None if it wasn't.
            delivered: None if it wasn't.
            method: How it was paid; default: by card.
            final_sale: Positions of items that can't be taken back.
            packed: What was packed instead, by position.
        """
        method = method or person.card
        order_id = self.new_id("W")
        self._bought[person.customer_id] |= {variant.product for variant in variants}
        items = tuple(Item(self.new_id("I"), v, v.price) for v in variants)
        days = [placed, placed - 6 if promised is None else promised, shipped, delivered]
        self.rows["orders"].append(
            (
                order_id,
                person.customer_id,
                status,
                *(None if d is None else day(d) for d in days),
                person.street,
                person.city,
                person.state,
                person.zip,
                method.method_id,
                None,
            )
        )
        for position, item in enumerate(items):
            sent = (packed or {}).get(position, item.variant)
            self.rows["order_items"].append(
                (
                    item.item_id,
                    order_id,
                    item.variant.variant_id,
                    item.price,
                    int(position in final_sale),
                    status,
                    sent.variant_id,
                    None,
                )
            )
        total = sum(item.price for item in items)
        self.rows["ledger"].append((order_id, "charge", method.method_id, total, day(placed)))
        return Order(order_id, items, method)

    def any_order(self, person: Person) -> Order:
        """An old order, of products that the customer has in no other."""
        placed = self.rng.randrange(45, 200)
        bought = self._bought[person.customer_id]
        fresh = [v for v in self.variants(len(self.products)) if v.product not in bought]
        return self.order(
            person,
            fresh[: self.rng.choice((1, 1, 2))],
            status="delivered",
            placed=placed,
            shipped=placed - 1,
            delivered=placed - 5,
        )
