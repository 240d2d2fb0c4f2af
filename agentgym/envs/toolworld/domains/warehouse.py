"""A warehouse: products, suppliers, stock at several sites, purchases and transfers."""

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import CITIES
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
from agentgym.simulators.actions import Create, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import AMOUNT, COUNT, TEXT, Entity, Records, Row, State, one_of

_CATEGORIES = ("cables", "lighting", "pumps", "sensors")
_SITES = ("north", "east", "harbour")
_BRANDS = ["Acero", "Bolda", "Corvex", "Delph", "Entara", "Fenix"]
_THINGS = {
    "cables": ("ribbon cable", "power cord", "fibre lead"),
    "lighting": ("flood lamp", "strip light", "desk lamp"),
    "pumps": ("bilge pump", "dosing pump", "vacuum pump"),
    "sensors": ("level probe", "smoke detector", "flow meter"),
}

PRODUCT = Entity(
    name="product",
    key="sku",
    prefix="sk",
    fields={
        "name": TEXT,
        "category": one_of(*_CATEGORIES),
        "weight_kg": AMOUNT,
        "unit_cost": AMOUNT,
        "supplier_id": TEXT,
    },
)
SUPPLIER = Entity(
    name="supplier",
    key="supplier_id",
    prefix="sp",
    fields={"name": TEXT, "city": one_of(*CITIES), "lead_days": COUNT},
)
STOCK = Entity(
    name="stock",
    plural="stock",
    key="stock_id",
    prefix="st",
    fields={"sku": TEXT, "site": one_of(*_SITES), "quantity": COUNT},
)
PURCHASE = Entity(
    name="purchase",
    key="purchase_id",
    prefix="pu",
    fields={
        "sku": TEXT,
        "quantity": {**COUNT, "minimum": 1},
        "cost": AMOUNT,
        "status": one_of("placed", "received", "cancelled"),
    },
    refers={"sku": "product"},
)
TRANSFER = Entity(
    name="transfer",
    key="transfer_id",
    prefix="tr",
    fields={
        "sku": TEXT,
        "from_site": one_of(*_SITES),
        "to_site": one_of(*_SITES),
        "quantity": {**COUNT, "minimum": 1},
    },
    refers={"sku": "product"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """Two dozen products, each at two or three sites."""
    suppliers = [
        {"supplier_id": key, "name": f"{brand} Supply", "city": rng.choice(CITIES), "lead_days": d}
        for key, brand, d in zip(
            keys(rng, "sp", 6), _BRANDS, rng.sample(range(2, 30), 6), strict=True
        )
    ]
    kinds = [
        (category, f"{brand} {thing}")
        for category, things in _THINGS.items()
        for thing in things
        for brand in rng.sample(_BRANDS, 2)
    ]
    products, stock = [], []
    for key, (category, name) in zip(keys(rng, "sk", len(kinds)), kinds, strict=True):
        products.append(
            {
                "sku": key,
                "name": name,
                "category": category,
                "weight_kg": rng.randrange(2, 60) / 4,
                "unit_cost": rng.randrange(8, 600) / 4,
                "supplier_id": rng.choice(suppliers)["supplier_id"],
            }
        )
        stock += [
            {"sku": key, "site": site, "quantity": rng.randrange(3, 90)}
            for site in rng.sample(_SITES, rng.choice((2, 3, 3)))
        ]
    for key, row in zip(keys(rng, "st", len(stock)), stock, strict=True):
        row["stock_id"] = key
    purchases = []
    for key in keys(rng, "pu", 12):
        product: Row = rng.choice(products)
        quantity = rng.randrange(5, 60)
        cost = product["unit_cost"] * quantity
        status = rng.choice(("placed", "received", "cancelled"))
        purchases.append(
            {
                "purchase_id": key,
                "sku": product["sku"],
                "quantity": quantity,
                "cost": cost,
                "status": status,
            }
        )
    return {
        "product": products,
        "supplier": suppliers,
        "stock": stock,
        "purchase": purchases,
        "transfer": [],
    }


def _cost(records: Records, arguments: Mapping[str, Any]) -> Row:
    unit = records.get("product", arguments["sku"])["unit_cost"]
    return {"cost": round(unit * arguments["quantity"], 2)}


def _stock_at(records: Records, sku: str, site: str) -> Row | None:
    return next((s for s in records.all("stock") if (s["sku"], s["site"]) == (sku, site)), None)


def _has_stock(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if arguments["from_site"] == arguments["to_site"]:
        raise ToolError("Error: from_site and to_site are the same.")
    source = _stock_at(records, arguments["sku"], arguments["from_site"])
    there = source["quantity"] if source else 0
    if there < arguments["quantity"]:
        raise ToolError(f"Error: {arguments['from_site']} has only {there} of it.")


def _move(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    source = _stock_at(records, row["sku"], row["from_site"])
    target = _stock_at(records, row["sku"], row["to_site"])
    if target is None:
        new = {"sku": row["sku"], "site": row["to_site"], "quantity": 0}
        target = records.add("stock", new)
    if source is not None:
        source["quantity"] -= row["quantity"]
        target["quantity"] += row["quantity"]


DOMAIN = Domain(
    name="warehouse",
    background="A trading company's stock at the sites north, east and harbour. Purchases cost the "
    "product's unit cost times the quantity.",
    entities=(PRODUCT, SUPPLIER, STOCK, PURCHASE, TRANSFER),
    actions=(
        Find(
            name="search_products",
            description="Search products by name or category.",
            entity="product",
            where={"name": ("name", "contains"), "category": "category"},
            shows=("name",),
        ),
        Get(name="get_product", description="Everything about one product.", entity="product"),
        Get(name="get_supplier", description="Everything about one supplier.", entity="supplier"),
        Find(
            name="list_stock",
            description="Stock of a product or of a site.",
            entity="stock",
            where={"sku": "sku", "site": "site"},
        ),
        Find(
            name="list_purchases",
            description="Purchases by product and status.",
            entity="purchase",
            where={"sku": "sku", "status": "status"},
            shows=("sku", "quantity", "status"),
        ),
        Create(
            name="place_purchase",
            description="Order a quantity of a product from its supplier.",
            entity="purchase",
            takes=("sku", "quantity"),
            sets={"status": "placed"},
            derive=_cost,
        ),
        Update(
            name="cancel_purchase",
            description="Cancel a purchase that is placed and not received.",
            entity="purchase",
            sets={"status": "cancelled"},
            when={"status": ("placed",)},
        ),
        Create(
            name="transfer_stock",
            description="Move a quantity of a product from one site to another.",
            entity="transfer",
            takes=("sku", "from_site", "to_site", "quantity"),
            check=_has_stock,
            then=_move,
        ),
    ),
    populate=populate,
)


class TotalWeight(Template):
    """Weight of all stock of one product."""

    name = "total_weight"
    split = "train"
    prompts = (
        "What do all units of the “{product}” in stock, at all sites together, weigh in kg?",
        "Work out the total weight in kg of the warehouse's stock of “{product}” over all sites.",
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any product."""
        product = rng.choice(rows_of(state, "product"))
        stock = rows_of(state, "stock", sku=product["sku"])
        return Posed(
            slots={"product": product["name"]},
            answer=answers.number(product["weight_kg"] * sum(row["quantity"] for row in stock)),
            evidence=[*(row["stock_id"] for row in stock), (product["sku"], "weight_kg")],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Product, weight, stock."""
        found = yield "search_products", {"name": slots["product"]}
        product = yield "get_product", {"sku": found["products"][0]["sku"]}
        listed = yield "list_stock", {"sku": product["sku"]}
        total = sum(row["quantity"] for row in listed["stock"])
        return f"{product['weight_kg'] * total:.2f}"


class FastestSupplier(Template):
    """The product of a category whose supplier delivers soonest."""

    name = "fastest_supplier"
    split = "validation"
    prompts = (
        (
            "Among the suppliers of the warehouse's products in the category {category}, which has"
            " the shortest lead time? Answer with the supplier's name."
        ),
        (
            "Who delivers fastest of all suppliers from which products of the category {category} "
            "come? Give the supplier's name."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A category with at least two suppliers."""
        category = rng.choice(_CATEGORIES)
        products = rows_of(state, "product", category=category)
        ids = sorted({product["supplier_id"] for product in products})
        fastest = only_extreme([state["supplier"][key] for key in ids], "lead_days")
        if fastest is None or len(ids) < 2:
            return None
        return Posed(
            slots={"category": category},
            answer=answers.name(fastest["name"], field_of(state, "supplier", "name")),
            evidence=[(key, "lead_days") for key in ids],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Products, their suppliers, each one's lead time."""
        found = yield "search_products", {"category": slots["category"]}
        suppliers: dict[str, Row] = {}
        for entry in found["products"]:
            product = yield "get_product", {"sku": entry["sku"]}
            key = product["supplier_id"]
            if key not in suppliers:
                suppliers[key] = yield "get_supplier", {"supplier_id": key}
        return str(min(suppliers.values(), key=lambda supplier: supplier["lead_days"])["name"])


class Reorder(Template):
    """Order what is missing, if anything is."""

    name = "reorder"
    none_share = 0.3
    split = "train"
    prompts = (
        (
            "There should be {level} units of “{product}”. Count the stock at all sites together, "
            "leave earlier purchases aside, and order what is missing. Answer with the cost of the"
            " order, or none if nothing is missing."
        ),
        (
            "If the stock of “{product}” over all sites is below {level} units, purchase exactly "
            "the difference, whatever was purchased before, and answer with what it costs. If not,"
            " answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A level above or below the stock."""
        product = rng.choice(rows_of(state, "product"))
        stock = rows_of(state, "stock", sku=product["sku"])
        there = sum(row["quantity"] for row in stock)
        level = there + rng.choice((-10, -3, 4, 11, 25, 40))
        missing = level - there
        order = {"sku": product["sku"], "quantity": missing}
        enough = answers.no_number()
        return Posed(
            slots={"level": level, "product": product["name"]},
            answer=answers.number(missing * product["unit_cost"]) if missing > 0 else enough,
            evidence=[row["stock_id"] for row in stock],
            writes=[("place_purchase", order)] if missing > 0 else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Product, stock, perhaps an order."""
        found = yield "search_products", {"name": slots["product"]}
        sku = found["products"][0]["sku"]
        listed = yield "list_stock", {"sku": sku}
        missing = int(slots["level"]) - sum(row["quantity"] for row in listed["stock"])
        if missing <= 0:
            return "none"
        order = yield "place_purchase", {"sku": sku, "quantity": missing}
        return f"{order['cost']:.2f}"


class FillUp(Template):
    """A transfer from where most is."""

    name = "fill_up"
    split = "train"
    prompts = (
        (
            "Move {quantity} units of “{product}” to the site {site}, from whichever other site "
            "has most of it. How many units does {site} have afterwards?"
        ),
        (
            "The site {site} needs {quantity} more of “{product}”. Transfer them from the other "
            "site with the largest stock, and answer with the number of units at {site} after "
            "that."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A site that has some of a product, and another that has most of it."""
        stock_at = rng.choice(rows_of(state, "stock"))
        stock = rows_of(state, "stock", sku=stock_at["sku"])
        others = [row for row in stock if row is not stock_at]
        source = only_extreme(others, "quantity", lowest=False)
        if source is None or source["quantity"] < 4:
            return None
        quantity = rng.randrange(2, source["quantity"])
        sites = {"from_site": source["site"], "to_site": stock_at["site"]}
        return Posed(
            slots={
                "quantity": quantity,
                "site": stock_at["site"],
                "product": state["product"][stock_at["sku"]]["name"],
            },
            answer=answers.number(stock_at["quantity"] + quantity),
            evidence=[row["stock_id"] for row in stock],
            writes=[("transfer_stock", {"sku": stock_at["sku"], **sites, "quantity": quantity})],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Product, stock, transfer."""
        found = yield "search_products", {"name": slots["product"]}
        sku, site, quantity = found["products"][0]["sku"], slots["site"], int(slots["quantity"])
        listed = yield "list_stock", {"sku": sku}
        here = next(row["quantity"] for row in listed["stock"] if row["site"] == site)
        others = (row for row in listed["stock"] if row["site"] != site)
        source = max(others, key=lambda row: row["quantity"])["site"]
        move = {"sku": sku, "from_site": source, "to_site": site, "quantity": quantity}
        yield "transfer_stock", move
        return str(here + quantity)


CATALOGUE = Catalogue(DOMAIN, (TotalWeight(), FastestSupplier(), Reorder(), FillUp()))
