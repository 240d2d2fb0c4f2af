"""The shop's books, audited: what they should show after a service, and what they do show.

Both come as a `Posting`: facts about orders and items, and sums of money. What should be there is
computed from the price list and the orders as they were, in plain arithmetic; no operation of the
shop is run for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.supportdesk.reference import Write
from agentgym.envs.supportdesk.store import COLUMNS, Changes, Row

_NAMES = {
    table: [column.split()[0] for column in columns.split(",")]
    for table, columns in COLUMNS.items()
}
_ADDRESS = ("street", "city", "state", "zip")
_ROAD = {"st": "street", "ave": "avenue", "rd": "road", "ln": "lane", "dr": "drive"}


@dataclass
class Posting:
    """What a service left in the books."""

    orders: dict[str, dict[str, str]] = field(default_factory=dict)
    """Changed order to what it shows now: status, address, payment method."""
    items: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Changed item to what became of it, and the variant that takes its place."""
    money: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Order, kind and payment method to cents."""


class Books:
    """The shop as every conversation finds it.

    Args:
        rows: By table, in the order of `COLUMNS`.
    """

    def __init__(self, rows: Mapping[str, Sequence[Row]]) -> None:
        self._rows = rows

    def order(self, order_id: str) -> dict[str, Any]:
        """An order's row."""
        return next(row for row in self._of("orders") if row["order_id"] == order_id)

    def items(self, order_id: str) -> list[dict[str, Any]]:
        """An order's items."""
        return [row for row in self._of("order_items") if row["order_id"] == order_id]

    def price(self, variant_id: str) -> int:
        """What a variant costs today, cents."""
        variants = self._of("variants")
        return int(next(v["price_cents"] for v in variants if v["variant_id"] == variant_id))

    def paid(self, order_id: str) -> Counter[str]:
        """Cents paid for an order and not given back, by payment method."""
        paid: Counter[str] = Counter()
        for row in self._of("ledger"):
            if row["order_id"] == order_id and row["kind"] in ("charge", "refund"):
                sign = 1 if row["kind"] == "charge" else -1
                paid[row["payment_method_id"]] += sign * row["amount_cents"]
        return paid

    def gift_card_of(self, customer_id: str) -> str:
        """The payment method that store credit goes to."""
        methods = self._of("payment_methods")
        cards = (m for m in methods if m["customer_id"] == customer_id and m["kind"] == "gift_card")
        return str(next(cards)["payment_method_id"])

    def _of(self, table: str) -> list[dict[str, Any]]:
        return [dict(zip(_NAMES[table], row, strict=True)) for row in self._rows[table]]


def expected_of(books: Books, writes: Sequence[Write]) -> Posting:
    """What the books must show once a set of changes is made.

    Args:
        books: Before.
        writes: The changes.
    """
    posting = Posting()
    for write in writes:
        _EXPECT[write.tool](books, posting, **write.arguments)
    return _settled(posting)


def booked(changes: Changes) -> Posting:
    """What the books do show, from the rows that an episode removed and added."""
    posting = Posting()
    before = _rows(changes, "removed")
    for row in _rows(changes, "added").get("orders", ()):
        old = next((r for r in before.get("orders", ()) if r["order_id"] == row["order_id"]), {})
        shown = {key: str(row[key]) for key in ("status", "payment_method_id", "cancel_reason")}
        shown["address"] = _spelled(row)
        known = {key: str(old.get(key)) for key in shown} | {"address": _spelled(old)}
        posting.orders[row["order_id"]] = {k: v for k, v in shown.items() if v != known[k]}
    for row in _rows(changes, "added").get("order_items", ()):
        variant = row["new_variant_id"] if row["status"] == "exchanged" else row["variant_id"]
        posting.items[row["item_id"]] = (row["status"], variant)
    for row in _rows(changes, "added").get("ledger", ()):
        key = (row["order_id"], row["kind"], row["payment_method_id"])
        posting.money[key] += row["amount_cents"]
    if changes.keys() - {"orders", "order_items", "ledger", "payment_methods", "variants"}:
        posting.orders["?"] = {"changed": "something that no service changes"}
    return _settled(posting)


def _settled(posting: Posting) -> Posting:
    """Without entries that say nothing."""
    posting.money = Counter({key: cents for key, cents in posting.money.items() if cents})
    posting.orders = {order_id: shown for order_id, shown in posting.orders.items() if shown}
    return posting


def _rows(changes: Changes, side: str) -> dict[str, list[dict[str, Any]]]:
    return {
        table: [dict(zip(_NAMES[table], row, strict=True)) for row in both.get(side, ())]
        for table, both in changes.items()
        if table in _NAMES
    }


def _spelled(row: Mapping[str, Any]) -> str:
    """An address, however it is abbreviated."""
    text = " ".join(str(row.get(key, "")) for key in _ADDRESS).casefold()
    return " ".join(_ROAD.get(word, word) for word in re.findall(r"[a-z0-9]+", text))


# --- what each change means -----------------------------------------------------------------------


def _cancel(books: Books, posting: Posting, *, order_id: str, reason: str) -> None:
    posting.orders[order_id] = {"status": "cancelled", "cancel_reason": reason}
    for item in books.items(order_id):
        posting.items[item["item_id"]] = ("cancelled", item["variant_id"])
    for method, cents in books.paid(order_id).items():
        posting.money[order_id, "refund", method] += cents


def _readdress(books: Books, posting: Posting, *, order_id: str, **address: str) -> None:
    new = _spelled({**address, "zip": address["zip_code"]})
    if new != _spelled(books.order(order_id)):
        posting.orders[order_id] = {"address": new}


def _pay_otherwise(books: Books, posting: Posting, *, order_id: str, method_id: str) -> None:
    posting.orders[order_id] = {"payment_method_id": method_id}
    for method, cents in books.paid(order_id).items():
        posting.money[order_id, "refund", method] += cents
        posting.money[order_id, "charge", method_id] += cents


def _swap(
    books: Books,
    posting: Posting,
    *,
    order_id: str,
    item_ids: Sequence[str],
    variant_ids: Sequence[str],
    method_id: str | None = None,
) -> None:
    """Items for other variants: of a delivered order if a payment method is named."""
    difference = 0
    there = {item["item_id"]: item for item in books.items(order_id)}
    for item_id, variant_id in zip(item_ids, variant_ids, strict=True):
        old = there[item_id]
        status = old["status"] if method_id is None else "exchanged"
        posting.items[item_id] = (status, variant_id)
        difference += books.price(variant_id) - old["price_cents"]
    method = method_id or books.order(order_id)["payment_method_id"]
    kind = "charge" if difference > 0 else "refund"
    posting.money[order_id, kind, method] += abs(difference)


def _take_back(
    books: Books, posting: Posting, *, order_id: str, item_ids: Sequence[str], method_id: str
) -> None:
    for item in books.items(order_id):
        if item["item_id"] in item_ids:
            posting.items[item["item_id"]] = ("returned", item["variant_id"])
            posting.money[order_id, "refund", method_id] += item["price_cents"]


def _credit(books: Books, posting: Posting, *, order_id: str, amount_cents: int) -> None:
    card = books.gift_card_of(books.order(order_id)["customer_id"])
    posting.money[order_id, "store_credit", card] += amount_cents


_EXPECT: dict[str, Any] = {
    "cancel_order": _cancel,
    "change_shipping_address": _readdress,
    "change_payment_method": _pay_otherwise,
    "change_items": _swap,
    "return_items": _take_back,
    "exchange_items": _swap,
    "issue_store_credit": _credit,
}
