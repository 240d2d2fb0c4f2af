"""The catalogue: raw products in WebShop's schema, checked and turned into ``Product`` objects.

What the environment never shows or scores is dropped at once. Whatever is wrong in the data is an
error here, naming file, product and field, rather than a surprise in the middle of an episode.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from agentgym.errors import DataError
from agentgym.types import clean_text

MISSING_PRICE = 100.0
"""Price of a product whose file gives none, in dollars."""


@dataclass(frozen=True, slots=True)
class RawData:
    """A catalogue in the original's raw schema, as its three files hold it.

    Attributes:
        products: One dict per product: ``asin, name, full_description, small_description, pricing,
            customization_options, images, product_category, category, query``.
        attributes: ``asin`` to ``{"attributes": [...]}`` with, for synthetic goals, ``instruction``
            and ``instruction_attributes``.
        human_instructions: ``asin`` to a list of ``{"instruction", "instruction_attributes",
            "instruction_options"}``.
        source: Names the three parts in error messages.
    """

    products: Iterable[Mapping[str, Any]]
    attributes: Mapping[str, Mapping[str, Any]]
    human_instructions: Mapping[str, Sequence[Mapping[str, Any]]]
    source: tuple[str, str, str] = ("products", "attributes", "human instructions")


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """One instruction a person wrote for a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One article of the shop.

    Attributes:
        options: Group name to values, both lower case, in page order.
        price_tag: The price as the pages show it.
        prices: One price, or the two ends of a range, in dollars.
        synthetic_instruction: Text of the synthetic goals, ``None`` where the file has none.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_tag: str
    prices: tuple[float, ...]
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    synthetic_instruction: str | None = None
    synthetic_attributes: tuple[str, ...] = ()
    human_instructions: tuple[HumanInstruction, ...] = ()

    @property
    def search_text(self) -> str:
        """The text the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(v)}" for name, v in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return " ".join((self.title, self.description, first, options)).lower()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products of one data set, in file order, with the digest that names the set.

    Attributes:
        digest: SHA-256 over what the environment uses of the data, 64 hex digits.
        attributes_known: ``False`` for products the attributes file lacks, by asin.
    """

    products: tuple[Product, ...]
    digest: str
    name: str
    without_attributes: frozenset[str] = frozenset()
    by_asin: dict[str, Product] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.products)


class _Record:
    """One raw product with checked access: every complaint names file, product and field."""

    def __init__(self, raw: object, source: str, position: int, *, where: str = "") -> None:
        self.source = source
        self.where = where or f"product number {position + 1}"
        if not isinstance(raw, Mapping):
            raise DataError(f"{source}: {self.where} is {kind_of(raw)}, not an object")
        self.raw: Mapping[str, Any] = raw
        if not where and isinstance(raw.get("asin"), str):
            self.where = f"product {raw['asin']!r}"

    def fault(self, name: str, complaint: str) -> DataError:
        return DataError(f"{self.source}: {self.where}: field {name!r} {complaint}")

    def text(self, name: str) -> str:
        if name not in self.raw:
            raise self.fault(name, "is missing; a string is needed")
        value = self.raw[name]
        if not isinstance(value, str):
            raise self.fault(name, f"is {kind_of(value)}; a string is needed")
        return clean_text(value)

    def strings(self, name: str, *, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self.raw.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.fault(name, f"is {kind_of(value)}; a list of strings is needed")
        return tuple(clean_text(entry) for entry in value)

    def bullets(self) -> tuple[str, ...]:
        value = self.raw.get("small_description")
        return (clean_text(value),) if isinstance(value, str) else self.strings("small_description")

    def prices(self) -> tuple[str, tuple[float, ...]]:
        """Price tag and prices of the ``pricing`` field; a missing price is 100 dollars."""
        value = self.raw.get("pricing")
        if value is None or value == "":
            return f"${MISSING_PRICE}", (MISSING_PRICE,)
        if not isinstance(value, str):
            raise self.fault("pricing", f"is {kind_of(value)}; a string such as '$12.50' is needed")
        try:
            prices = [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in value.split("$")[1:]]
        except InvalidOperation:
            prices = []
        if not prices or not all(map(math.isfinite, prices)):
            raise self.fault(
                "pricing", f"is {value!r:.100}; '$12.50' or '$12.50 - $20.00' is needed"
            )
        if len(prices) == 1:
            return f"${prices[0]}", (prices[0],)
        return f"${prices[0]} to ${prices[1]}", (prices[0], prices[1])

    def options(self) -> dict[str, tuple[str, ...]]:
        groups = self.raw.get("customization_options")
        if not groups:
            return {}
        if not isinstance(groups, Mapping):
            raise self.fault("customization_options", f"is {kind_of(groups)}; an object is needed")
        options: dict[str, tuple[str, ...]] = {}
        for name, entries in groups.items():
            if entries is None:
                continue
            if not isinstance(entries, list):
                raise self.fault("customization_options", f"{name!r} is {kind_of(entries)}")
            options[clean_text(name).lower()] = tuple(
                self._option(name, entry) for entry in entries
            )
        return options

    def _option(self, group: str, entry: object) -> str:
        value = entry.get("value") if isinstance(entry, Mapping) else None
        if not isinstance(value, str):
            raise self.fault("customization_options", f"{group!r} has an entry without a 'value'")
        return clean_text(value).strip().replace("/", " | ").lower()

    def check_image(self) -> None:
        images = self.raw.get("images")
        if not isinstance(images, list) or not images:
            raise self.fault("images", "must be a list with at least one address")


def kind_of(value: object) -> str:
    """Name the JSON kind of a value, for error messages."""
    names = {type(None): "null", dict: "an object", list: "a list", str: "a string"}
    return names.get(type(value), f"a {type(value).__name__}")


def _human_instructions(entries: object, source: str, asin: str) -> tuple[HumanInstruction, ...]:
    if not isinstance(entries, list):
        raise DataError(f"{source}: product {asin!r}: is {kind_of(entries)}, not a list")
    found = []
    for position, entry in enumerate(entries):
        where = f"product {asin!r}, instruction {position + 1}"
        record = _Record(entry, source, position, where=where)
        found.append(
            HumanInstruction(
                text=record.text("instruction"),
                attributes=record.strings("instruction_attributes"),
                options=record.strings("instruction_options"),
            )
        )
    return tuple(found)


def _product(record: _Record, data: RawData) -> Product:
    """Turn one raw product into a ``Product``."""
    asin = record.text("asin")
    record.check_image()
    price_tag, prices = record.prices()
    notes = data.attributes.get(asin, {})
    noted = _Record(notes, data.source[1], 0, where=f"product {asin!r}")
    synthetic = noted.text("instruction") if notes.get("instruction") is not None else None
    title = record.text("name")
    return Product(
        asin=asin,
        title=title,
        description=record.text("full_description"),
        bullets=record.bullets(),
        price_tag=price_tag,
        prices=prices,
        options=record.options(),
        attributes=noted.strings("attributes", default=("DUMMY_ATTR",)),
        category=record.text("category"),
        query=record.text("query").lower().strip(),
        product_category=record.text("product_category"),
        synthetic_instruction=synthetic,
        synthetic_attributes=noted.strings("instruction_attributes", default=()),
        human_instructions=_human_instructions(
            data.human_instructions.get(asin, []), data.source[2], asin
        ),
    )


def build_catalogue(
    data: RawData, *, name: str = "catalogue", num_products: int | None = None
) -> Catalogue:
    """Check and convert raw data.

    Args:
        data: The raw catalogue.
        name: Names the catalogue in messages and metadata.
        num_products: Use only this many entries from the head of the product file; all if ``None``.

    Raises:
        DataError: If a field is missing or of the wrong kind, or no product is left.
    """
    products: dict[str, Product] = {}
    missing = set()
    digest = hashlib.sha256()
    for position, raw in enumerate(data.products):
        if num_products is not None and position >= num_products:
            break
        record = _Record(raw, data.source[0], position)
        asin = record.text("asin")
        if asin == "nan" or len(asin) > 10 or asin in products:
            continue
        product = products[asin] = _product(record, data)
        digest.update(repr(product).encode())
        if asin not in data.attributes:
            missing.add(asin)
    if not products:
        raise DataError(f"{data.source[0]}: no product in it; the shop would be empty")
    return Catalogue(
        products=tuple(products.values()),
        digest=digest.hexdigest(),
        name=name,
        without_attributes=frozenset(missing),
        by_asin=products,
    )
