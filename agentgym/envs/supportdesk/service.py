"""What the shop's systems can do, as opposed to what its policy allows.

An operation refuses what no system could do (cancel a parcel that is on its way, charge an empty
gift card) and does everything else it is told. Whether it *should* be done, who may ask for it and
whether they agreed is the written policy's business, and keeping to it is the agent's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentgym.envs.supportdesk.store import Store
from agentgym.errors import ToolError

TODAY = "2025-06-30"
"""The day on which every conversation takes place."""


def dollars(cents: int) -> float:
    """Cents as the number of dollars that tools show."""
    return round(cents / 100, 2)


def cents(amount: float) -> int:
    """Dollars, as an agent gives them, in cents."""
    return round(amount * 100)


# --- looking things up --------------------------------------------------------------------------


def customer(store: Store, customer_id: str) -> dict[str, Any]:
    """A customer's profile."""
    row = store.one("SELECT * FROM customers WHERE customer_id = ?", customer_id)
    if row is None:
        raise ToolError(f"Error: there is no customer {customer_id!r:.60}.")
    methods = store.all("SELECT * FROM payment_methods WHERE customer_id = ?", customer_id)
    orders = store.all("SELECT order_id FROM orders WHERE customer_id = ?", customer_id)
    return {
        "customer_id": customer_id,
        "name": f"{row['first_name']} {row['last_name']}",
        "email": row["email"],
        "address": {key: row[key] for key in ("street", "city", "state", "zip")},
        "payment_methods": [_method(method) for method in methods],
        "order_ids": [order["order_id"] for order in orders],
    }


def _method(row: dict[str, Any]) -> dict[str, Any]:
    shown = {key: row[key] for key in ("payment_method_id", "kind", "label")}
    if row["balance_cents"] is not None:
        shown["balance"] = dollars(row["balance_cents"])
    return shown


def order_row(store: Store, order_id: str) -> dict[str, Any]:
    """An order's row."""
    row = store.one("SELECT * FROM orders WHERE order_id = ?", order_id)
    if row is None:
        raise ToolError(f"Error: there is no order {order_id!r:.60}; ids look like W1234567.")
    return row


def order(store: Store, order_id: str) -> dict[str, Any]:
    """An order with its items and payments."""
    row = order_row(store, order_id)
    items = store.all(
        "SELECT i.*, v.product_id, v.options, p.name FROM order_items i"
        " JOIN variants v ON v.variant_id = i.variant_id"
        " JOIN products p ON p.product_id = v.product_id WHERE i.order_id = ?",
        order_id,
    )
    ledger = store.all("SELECT * FROM ledger WHERE order_id = ?", order_id)
    shown = {
        key: row[key]
        for key in ("order_id", "customer_id", "status", "placed_on", "promised_on", "shipped_on")
    }
    return shown | {
        "delivered_on": row["delivered_on"],
        "shipping_address": {key: row[key] for key in ("street", "city", "state", "zip")},
        "payment_method_id": row["payment_method_id"],
        "items": [_item(item) for item in items],
        "total": dollars(sum(item["price_cents"] for item in items)),
        "payments": [
            {
                "kind": entry["kind"],
                "payment_method_id": entry["payment_method_id"],
                "amount": dollars(entry["amount_cents"]),
                "day": entry["day"],
            }
            for entry in ledger
        ],
    }


def _item(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "item_id": row["item_id"],
        "product_id": row["product_id"],
        "product": row["name"],
        "variant_id": row["variant_id"],
        "options": json.loads(row["options"]),
        "price": dollars(row["price_cents"]),
        "final_sale": bool(row["final_sale"]),
        "status": row["status"],
        "packed_variant_id": row["packed_variant_id"],
        "new_variant_id": row["new_variant_id"],
    }


def product(store: Store, product_id: str) -> dict[str, Any]:
    """A product with its variants, prices and stock."""
    row = store.one("SELECT * FROM products WHERE product_id = ?", product_id)
    if row is None:
        raise ToolError(f"Error: there is no product {product_id!r:.60}; try search_products.")
    variants = store.all("SELECT * FROM variants WHERE product_id = ?", product_id)
    return row | {
        "variants": [
            {
                "variant_id": variant["variant_id"],
                "options": json.loads(variant["options"]),
                "price": dollars(variant["price_cents"]),
                "in_stock": variant["stock"],
            }
            for variant in variants
        ]
    }


def records_of(
    store: Store, customer_id: str, *, also: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """What the systems hold on a customer, by kind and id, as the tools show it.

    Args:
        store: The database.
        customer_id: Whose records.
        also: Orders of others.
    """
    profile = customer(store, customer_id)
    orders = {each: order(store, each) for each in dict.fromkeys((*profile["order_ids"], *also))}
    products = {item["product_id"] for each in orders.values() for item in each["items"]}
    return {
        "customer": {customer_id: profile},
        "order": orders,
        "product": {product_id: product(store, product_id) for product_id in sorted(products)},
    }


# --- changing things ----------------------------------------------------------------------------


def cancel(store: Store, order_id: str, reason: str) -> None:
    """Cancel a pending order and give back what was paid for it."""
    row = _order_in(store, order_id, "pending", "cancelled")
    for method, amount in _paid(store, order_id).items():
        _book(store, order_id, "refund", method, amount)
    for item in _items(store, order_id):
        _move_stock(store, item["variant_id"], 1)
    store.run(
        "UPDATE orders SET status = 'cancelled', cancel_reason = ? WHERE order_id = ?",
        reason,
        row["order_id"],
    )
    store.run("UPDATE order_items SET status = 'cancelled' WHERE order_id = ?", order_id)


def change_address(
    store: Store, order_id: str, street: str, city: str, state: str, zip_code: str
) -> None:
    """Send a pending order elsewhere."""
    _order_in(store, order_id, "pending", "readdressed")
    store.run(
        "UPDATE orders SET street = ?, city = ?, state = ?, zip = ? WHERE order_id = ?",
        *(street.strip(), city.strip(), state.strip(), zip_code.strip(), order_id),
    )


def change_payment(store: Store, order_id: str, method_id: str) -> None:
    """Charge a pending order to another payment method, and give back the first charge."""
    row = _order_in(store, order_id, "pending", "charged otherwise")
    method = payment_method(store, row["customer_id"], method_id)
    if method_id == row["payment_method_id"]:
        raise ToolError(f"Error: order {order_id} is already paid with {method_id}.")
    amount = sum(_paid(store, order_id).values())
    _require_balance(method, amount)
    for old, paid in _paid(store, order_id).items():
        _book(store, order_id, "refund", old, paid)
    _book(store, order_id, "charge", method_id, amount)
    store.run("UPDATE orders SET payment_method_id = ? WHERE order_id = ?", method_id, order_id)


def change_items(
    store: Store, order_id: str, item_ids: Sequence[str], variant_ids: Sequence[str]
) -> int:
    """Swap items of a pending order for other variants; the order's payment method settles it.

    Returns:
        The price difference in cents: positive is charged, negative given back.
    """
    row = _order_in(store, order_id, "pending", "changed")
    pairs = _pairs(store, order_id, item_ids, variant_ids, same=False)
    difference: int = sum(new["price_cents"] - item["price_cents"] for item, new in pairs)
    method = payment_method(store, row["customer_id"], row["payment_method_id"])
    _require_balance(method, difference)
    for item, new in pairs:
        _move_stock(store, item["variant_id"], 1)
        _move_stock(store, new["variant_id"], -1)
        store.run(
            "UPDATE order_items SET variant_id = ?, packed_variant_id = ?, price_cents = ?"
            " WHERE item_id = ?",
            *(new["variant_id"], new["variant_id"], new["price_cents"], item["item_id"]),
        )
    _settle(store, order_id, row["payment_method_id"], difference)
    return difference


def return_items(store: Store, order_id: str, item_ids: Sequence[str], method_id: str) -> int:
    """Take back delivered items and refund them.

    Returns:
        The refund in cents.
    """
    row = _order_in(store, order_id, "delivered", "returned")
    payment_method(store, row["customer_id"], method_id)
    items = _delivered(store, order_id, item_ids)
    amount: int = sum(item["price_cents"] for item in items)
    for item in items:
        store.run("UPDATE order_items SET status = 'returned' WHERE item_id = ?", item["item_id"])
    _book(store, order_id, "refund", method_id, amount)
    return amount


def exchange_items(
    store: Store,
    order_id: str,
    item_ids: Sequence[str],
    variant_ids: Sequence[str],
    method_id: str,
) -> int:
    """Take back delivered items and send others of the same products.

    Returns:
        The price difference in cents: positive is charged, negative given back.
    """
    row = _order_in(store, order_id, "delivered", "exchanged")
    method = payment_method(store, row["customer_id"], method_id)
    _delivered(store, order_id, item_ids)
    pairs = _pairs(store, order_id, item_ids, variant_ids, same=True)
    difference: int = sum(new["price_cents"] - item["price_cents"] for item, new in pairs)
    _require_balance(method, difference)
    for item, new in pairs:
        _move_stock(store, new["variant_id"], -1)
        store.run(
            "UPDATE order_items SET status = 'exchanged', new_variant_id = ? WHERE item_id = ?",
            *(new["variant_id"], item["item_id"]),
        )
    _settle(store, order_id, method_id, difference)
    return difference


def store_credit(store: Store, order_id: str, amount_cents: int) -> str:
    """Put store credit on the customer's gift card.

    Returns:
        The gift card's payment method id.
    """
    row = order_row(store, order_id)
    card = store.one(
        "SELECT * FROM payment_methods WHERE customer_id = ? AND kind = 'gift_card'",
        row["customer_id"],
    )
    if card is None:
        raise ToolError("Error: the customer has no gift card that store credit could go to.")
    if amount_cents <= 0:
        raise ToolError("Error: the amount must be more than 0.")
    method_id: str = card["payment_method_id"]
    _book(store, order_id, "store_credit", method_id, amount_cents)
    return method_id


# --- what they share ----------------------------------------------------------------------------


def payment_method(store: Store, customer_id: str, method_id: str) -> dict[str, Any]:
    """A payment method of a customer's."""
    row = store.one("SELECT * FROM payment_methods WHERE payment_method_id = ?", method_id)
    if row is None or row["customer_id"] != customer_id:
        raise ToolError(
            f"Error: {method_id!r:.60} is no payment method of the order's customer; "
            "get_customer lists those there are."
        )
    return row


def _order_in(store: Store, order_id: str, status: str, done: str) -> dict[str, Any]:
    row = order_row(store, order_id)
    if row["status"] != status:
        raise ToolError(
            f"Error: order {order_id} is {row['status']}; only {status} orders can be {done}."
        )
    return row


def _items(store: Store, order_id: str) -> list[dict[str, Any]]:
    return store.all("SELECT * FROM order_items WHERE order_id = ?", order_id)


def _chosen(store: Store, order_id: str, item_ids: Sequence[str]) -> list[dict[str, Any]]:
    there = {item["item_id"]: item for item in _items(store, order_id)}
    if not item_ids or len(set(item_ids)) != len(item_ids) or not there.keys() >= set(item_ids):
        raise ToolError(
            f"Error: item_ids must name items of order {order_id}, each once: {', '.join(there)}."
        )
    return [there[item_id] for item_id in item_ids]


def _delivered(store: Store, order_id: str, item_ids: Sequence[str]) -> list[dict[str, Any]]:
    items = _chosen(store, order_id, item_ids)
    for item in items:
        if item["status"] != "delivered":
            raise ToolError(f"Error: item {item['item_id']} is already {item['status']}.")
    return items


def _pairs(
    store: Store,
    order_id: str,
    item_ids: Sequence[str],
    variant_ids: Sequence[str],
    *,
    same: bool,
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Items with the variants that replace them; `same`: also by the very same variant."""
    items = _chosen(store, order_id, item_ids)
    if len(variant_ids) != len(items):
        raise ToolError("Error: new_variant_ids must have one variant for each of item_ids.")
    wanted: dict[str, int] = {}
    pairs = []
    for item, variant_id in zip(items, variant_ids, strict=True):
        query = "SELECT * FROM variants WHERE variant_id = ?"
        old = store.one(query, item["variant_id"]) or {}
        new = store.one(query, variant_id)
        if new is None or new["product_id"] != old["product_id"]:
            raise ToolError(
                f"Error: {variant_id!r:.60} is no variant of product {old['product_id']}; "
                "get_product lists them."
            )
        if new["variant_id"] == old["variant_id"] and not same:
            raise ToolError(f"Error: item {item['item_id']} already is variant {variant_id}.")
        wanted[variant_id] = wanted.get(variant_id, 0) + 1
        if new["stock"] < wanted[variant_id]:
            raise ToolError(f"Error: variant {variant_id} is out of stock.")
        pairs.append((item, new))
    return pairs


def _paid(store: Store, order_id: str) -> dict[str, int]:
    """Cents paid and not given back, by payment method."""
    paid: dict[str, int] = {}
    for entry in store.all("SELECT * FROM ledger WHERE order_id = ?", order_id):
        sign = {"charge": 1, "refund": -1}.get(entry["kind"], 0)
        method = entry["payment_method_id"]
        paid[method] = paid.get(method, 0) + sign * entry["amount_cents"]
    return {method: amount for method, amount in paid.items() if amount > 0}


def _require_balance(method: dict[str, Any], amount: int) -> None:
    balance = method["balance_cents"]
    if balance is not None and balance < amount:
        raise ToolError(
            f"Error: the balance of {method['label']} is ${balance / 100:.2f}, which doesn't "
            f"cover ${amount / 100:.2f}."
        )


def _settle(store: Store, order_id: str, method_id: str, difference: int) -> None:
    if difference:
        kind = "charge" if difference > 0 else "refund"
        _book(store, order_id, kind, method_id, abs(difference))


def _book(store: Store, order_id: str, kind: str, method_id: str, amount: int) -> None:
    store.run("INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", order_id, kind, method_id, amount, TODAY)
    store.run(
        "UPDATE payment_methods SET balance_cents = balance_cents + ?"
        " WHERE payment_method_id = ? AND balance_cents IS NOT NULL",
        *(-amount if kind == "charge" else amount, method_id),
    )


def _move_stock(store: Store, variant_id: str, count: int) -> None:
    store.run("UPDATE variants SET stock = stock + ? WHERE variant_id = ?", count, variant_id)
