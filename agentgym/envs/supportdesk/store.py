"""One episode's database: SQLite in memory, opened from the image of a finished one.

Thousands of episodes start from the same shop. Its image is made once per process; an episode
copies it (a tenth of a millisecond) and has a real database of its own, which a snapshot copies
again. What an episode changed is the difference of its rows to the image's.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = dict[str, dict[str, list[list[Any]]]]
"""Table to the rows `removed` and `added`; a changed row is one of each. Sorted, so comparable."""

COLUMNS: Mapping[str, str] = {
    "customers": "customer_id TEXT PRIMARY KEY, first_name TEXT, last_name TEXT, email TEXT,"
    " street TEXT, city TEXT, state TEXT, zip TEXT",
    "payment_methods": "payment_method_id TEXT PRIMARY KEY, customer_id TEXT, kind TEXT,"
    " label TEXT, balance_cents INTEGER",
    "products": "product_id TEXT PRIMARY KEY, name TEXT, category TEXT",
    "variants": "variant_id TEXT PRIMARY KEY, product_id TEXT, options TEXT,"
    " price_cents INTEGER, stock INTEGER",
    "orders": "order_id TEXT PRIMARY KEY, customer_id TEXT, status TEXT, placed_on TEXT,"
    " promised_on TEXT, shipped_on TEXT, delivered_on TEXT, street TEXT, city TEXT, state TEXT,"
    " zip TEXT, payment_method_id TEXT, cancel_reason TEXT",
    "order_items": "item_id TEXT PRIMARY KEY, order_id TEXT, variant_id TEXT,"
    " price_cents INTEGER, final_sale INTEGER, status TEXT, packed_variant_id TEXT,"
    " new_variant_id TEXT",
    # Charges, refunds and store credits; what was paid is never changed, only added to.
    "ledger": "order_id TEXT, kind TEXT, payment_method_id TEXT, amount_cents INTEGER, day TEXT",
}
PAGE_BYTES = 1024
"""Small pages and no indexes: every episode holds a copy, and few tables have a thousand rows."""


def make_image(rows: Mapping[str, Sequence[Row]]) -> bytes:
    """Write rows into a fresh database and return its image.

    Args:
        rows: By table, in the order of `COLUMNS`.
    """
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    for table, columns in COLUMNS.items():
        clustered = " WITHOUT ROWID" if "PRIMARY KEY" in columns else ""
        connection.execute(f"CREATE TABLE {table} ({columns}){clustered}")
        marks = ", ".join("?" * (columns.count(",") + 1))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
    connection.commit()
    connection.execute("VACUUM")
    image = connection.serialize()
    connection.close()
    return image


class Store:
    """A database that is one episode's own.

    Args:
        image: Of the shop as it starts, or of a snapshot.
        touched: Tables that differ from the shop's start, in a snapshot.
    """

    def __init__(self, image: bytes, touched: Iterable[str] = ()) -> None:
        self.touched = set(touched)
        """Tables that a statement was run on; only they can differ from the image."""
        # Steps may come from different threads, one at a time.
        self._connection = sqlite3.connect(
            ":memory:", check_same_thread=False, isolation_level=None
        )
        self._connection.deserialize(image)
        self._connection.row_factory = sqlite3.Row

    def all(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Every row of a query, by column name."""
        return [dict(row) for row in self._connection.execute(query, values)]

    def one(self, query: str, *values: Any) -> dict[str, Any] | None:
        """The first row of a query, or None."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else dict(row)

    def run(self, statement: str, *values: Any) -> None:
        """Change something, by an `INSERT INTO table …` or an `UPDATE table …`."""
        words = statement.split(maxsplit=3)
        self.touched.add(words[2] if words[0] == "INSERT" else words[1])
        self._connection.execute(statement, values)

    def image(self) -> bytes:
        """A copy of the whole database."""
        return self._connection.serialize()

    def rows(self, tables: Iterable[str] = tuple(COLUMNS)) -> dict[str, list[Row]]:
        """Every row of some tables, by default of all."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return {table: cursor.execute(f"SELECT * FROM {table}").fetchall() for table in tables}

    def close(self) -> None:
        """Free the memory."""
        self._connection.close()


def changes(before: Mapping[str, Sequence[Row]], after: Mapping[str, Sequence[Row]]) -> Changes:
    """What differs, by table; tables that don't differ, or aren't in `after`, are left out."""
    found: Changes = {}
    for table in sorted(after):
        if before[table] != after[table]:
            old, new = Counter(before[table]), Counter(after[table])
            found[table] = {"removed": _sorted(old - new), "added": _sorted(new - old)}
    return {table: both for table, both in found.items() if both["removed"] or both["added"]}


def _sorted(rows: Iterable[Row]) -> list[list[Any]]:
    elements = rows.elements() if isinstance(rows, Counter) else rows
    return sorted((list(row) for row in elements), key=repr)
