"""A WebShop catalogue of any size, made from a seed by our own code, in the original's raw schema.

The original's data cannot be shipped (its texts were scraped), and has only 13 human instructions
for its 1,000 products. Here every text is ours, and every product is the target of three
shopper-like instructions and of one synthetic instruction per combination of its options.

Products come in *families*: a base product and siblings that differ from it in one thing only (an
attribute, the price, the options on offer). A policy that buys the first hit often buys a sibling,
which costs reward; buying the target with the wanted options always earns 1.0. For that, the
vocabulary avoids what makes some of the original's goals unreachable (see `vocabulary.options`).

The levels at 1,000 products, seed 0. *First hit* searches the whole instruction and buys the best
hit, without options or with those wanted: the share of human goals it solves, of the first 1,500.

======== ===== =========== ========= ===== ===== ================= ====== ====== ==========
level    human synthetic   no option title goal  price range /     first  with   asks for
         goals goals       groups    words words missing           hit    wanted options
======== ===== =========== ========= ===== ===== ================= ====== ====== ==========
tiny     3000  2118        26 %      3     14    0 / 0             27 %   82 %   67 %
easy     3000  2215        38 %      11    20    0 / 0             48 %   84 %   44 %
standard 3000  3728        35 %      15    23    74 / 19           35 %   72 %   50 %
hard     3000  7786        0 %       21    35    55 / 10           0 %    58 %   99 %
======== ===== =========== ========= ===== ===== ================= ====== ====== ==========

All words of ``tiny``, pages aside, are under 260. A product depends on the seed, the level and its
place only: a smaller catalogue is a prefix of a larger one.
"""

import hashlib
import json
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentgym.envs.webshop.vocabulary import wording
from agentgym.envs.webshop.vocabulary.attributes import ATTRIBUTES, Attribute
from agentgym.envs.webshop.vocabulary.kinds import KINDS, Kind
from agentgym.envs.webshop.vocabulary.options import OPTION_GROUPS, OptionGroup
from agentgym.envs.webshop.vocabulary.tiny import (
    TINY_ATTRIBUTES,
    TINY_KINDS,
    TINY_OPENERS,
    TINY_OPTIONS,
    TINY_PRICES_CENTS,
)
from agentgym.envs.webshop.vocabulary.wording import Draws
from agentgym.errors import ConfigError

__all__ = [
    "LEVELS",
    "MAX_PRODUCTS",
    "MIN_PRODUCTS",
    "Level",
    "RawCatalogue",
    "content_hash",
    "generate",
]

MIN_PRODUCTS = 10
MAX_PRODUCTS = 2_000_000
"""Past the original's 1.18 million; a shop of that size already fills tens of GiB."""
"""Fewest products that can be asked for; one results page."""


class RawCatalogue(NamedTuple):
    """The original's three files, as their JSON would load."""

    products: list[dict[str, Any]]
    """Content of ``items_shuffle.json``."""
    attributes: dict[str, dict[str, Any]]
    """Content of ``items_ins_v2.json``: attributes and synthetic instruction by asin."""
    human_instructions: dict[str, list[dict[str, Any]]]
    """Content of ``items_human_ins.json``: shopper-like instructions by asin."""


class Level(BaseModel):
    """How hard a generated catalogue is."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    siblings: int = Field(ge=0, le=12)
    """Near misses beside each base product."""
    attributes: int = Field(ge=2, le=6)
    """Attributes per product."""
    titled: int = Field(ge=0, le=6)
    """How many of them the title shows; the others are in bullets and description only."""
    wanted: tuple[int, int]
    """Fewest and most attributes a shopper asks for."""
    groups: tuple[float, ...]
    """Probability of 0, 1, 2, … option groups on a product; sums to 1."""
    values: tuple[int, int]
    """Fewest and most values in an option group."""
    asked: float = Field(ge=0, le=1)
    """Probability that a shopper asks for each option group on offer."""
    paraphrase: float = Field(ge=0, le=1)
    """Probability that a shopper says an attribute without using its name."""
    length: int = Field(ge=0, le=3)
    """Length of texts: 0 the closed vocabulary of `vocabulary.tiny`, 1 short, 2 usual, 3 long."""
    price_gap: tuple[int, int] = (41, 70)
    """Least and most dollars from a product to its dearer sibling; 41 is over any price limit."""
    ranges: float = Field(default=0.0, ge=0, le=1)
    """Probability of a price range instead of one price."""
    unpriced: float = Field(default=0.0, ge=0, le=1)
    """Probability of no price, which the shop then sets to $100."""
    instructions: int = Field(default=3, ge=1, le=10)
    """Shopper-like instructions per product."""

    @model_validator(mode="after")
    def _check(self) -> "Level":
        if abs(sum(self.groups) - 1.0) > 1e-9 or min(self.groups) < 0:
            raise ValueError(f"groups is {self.groups}; it must be probabilities that sum to 1")
        for name, least in (("wanted", 1), ("values", 1), ("price_gap", 0)):
            low, high = getattr(self, name)
            if not least <= low <= high:
                raise ValueError(f"{name} is {(low, high)}; {least} <= fewest <= most is needed")
        return self


LEVELS: dict[str, Level] = {
    "tiny": Level(
        siblings=4,
        attributes=2,
        titled=2,
        wanted=(1, 2),
        groups=(0.3, 0.7),
        values=(2, 3),
        asked=0.9,
        paraphrase=0.0,
        length=0,
    ),
    "easy": Level(
        siblings=1,
        attributes=3,
        titled=3,
        wanted=(1, 2),
        groups=(0.4, 0.6),
        values=(2, 4),
        asked=0.7,
        paraphrase=0.0,
        length=1,
    ),
    "standard": Level(
        siblings=2,
        attributes=5,
        titled=3,
        wanted=(1, 3),
        groups=(0.4, 0.35, 0.25),
        values=(2, 4),
        asked=0.7,
        paraphrase=0.1,
        length=2,
        ranges=0.09,
        unpriced=0.02,
    ),
    "hard": Level(
        siblings=4,
        attributes=6,
        titled=2,
        wanted=(2, 4),
        groups=(0.0, 0.1, 0.6, 0.3),
        values=(2, 3),
        asked=0.95,
        paraphrase=0.5,
        length=3,
        price_gap=(41, 49),
        ranges=0.05,
        unpriced=0.01,
    ),
}
"""The named levels, easiest first."""


class _Draft(NamedTuple):
    """A product before its texts are written."""

    kind: Kind
    brand: str
    attributes: tuple[Attribute, ...]
    titled: tuple[int, ...]
    cents: int
    top_cents: int | None
    priced: bool
    options: dict[str, tuple[str, ...]]
    text_key: str


class _Words(NamedTuple):
    """The vocabulary a level draws from."""

    kinds: tuple[Kind, ...]
    attributes: dict[str, Attribute]
    options: dict[str, OptionGroup]


_TINY_AXES = ("price", "attribute", "price", "options")
"""In the order of siblings; price twice, as tiny searches already tell all other siblings apart."""

_FULL = _Words(KINDS, ATTRIBUTES, OPTION_GROUPS)
_TINY = _Words(TINY_KINDS, TINY_ATTRIBUTES, TINY_OPTIONS)


def generate(
    num_products: int = 1000, *, seed: int = 0, difficulty: str | Level = "standard"
) -> RawCatalogue:
    """Make a catalogue.

    The same arguments give the same catalogue on every platform and Python version.

    Args:
        num_products: Number of products, from `MIN_PRODUCTS` to `MAX_PRODUCTS`.
        seed: Chooses the catalogue; other seeds have other products and other asins.
        difficulty: Name of a level in `LEVELS`, or a level of your own.

    Returns:
        The catalogue in the original's raw schema.

    Raises:
        ConfigError: If there are too few products, or no level has this name.
    """
    if not MIN_PRODUCTS <= num_products <= MAX_PRODUCTS:
        raise ConfigError(
            f"num_products is {num_products}; the embedded catalogue has from {MIN_PRODUCTS} to "
            f"{MAX_PRODUCTS}"
        )
    if isinstance(difficulty, str) and difficulty not in LEVELS:
        raise ConfigError(
            f"no difficulty {difficulty!r}; choose one of {', '.join(LEVELS)}, or pass a Level"
        )
    level = LEVELS[difficulty] if isinstance(difficulty, str) else difficulty
    words = _FULL if level.length else _TINY
    key = f"{seed}/{difficulty if isinstance(difficulty, str) else level.model_dump_json()}"
    asin_offset = int.from_bytes(hashlib.sha256(key.encode()).digest()[:5], "big")
    raw = RawCatalogue([], {}, {})
    family = 0
    while len(raw.products) < num_products:
        draws = Draws(f"{key}/{family}")
        drafts = _family(draws, level, words, f"{key}/{family}/text", family)
        for draft in drafts[: num_products - len(raw.products)]:
            asin = _asin(len(raw.products), asin_offset)
            attributes = tuple(sorted(draft.attributes))
            raw.products.append(_raw_product(draws, level, words, draft, asin))
            raw.attributes[asin] = _raw_attributes(draws, level, draft, attributes)
            raw.human_instructions[asin] = [
                _raw_human(draws, level, words, draft, asin, attributes)
                for _ in range(level.instructions)
            ]
        family += 1
    return raw


def content_hash(raw: RawCatalogue) -> str:
    """Hash everything in a catalogue.

    Returns:
        SHA-256 of its canonical JSON, in hexadecimal.
    """
    text = json.dumps(list(raw), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


_ASIN_BITS = 41  # 2**41 < 36**8: every mixed index fits in eight characters
_ASIN_MASK = (1 << _ASIN_BITS) - 1
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _asin(index: int, offset: int) -> str:
    """Give the index-th product its asin.

    A bijection, so that asins never repeat, and well mixed: the search engine breaks ties by
    asin, and siblings must not come in a fixed order.
    """
    x = (index + offset) & _ASIN_MASK
    for multiplier in (0x9E3779B97F5, 0x1B873593CC9):
        x ^= x >> 20
        x = (x * multiplier) & _ASIN_MASK
    x ^= x >> 20
    letters = []
    for _ in range(8):
        x, digit = divmod(x, 36)
        letters.append(_DIGITS[digit])
    return "B0" + "".join(letters)


def _family(draws: Draws, level: Level, words: _Words, text_key: str, place: int) -> list[_Draft]:
    """Draw a base product and its siblings, in random order."""
    kind = (
        words.kinds[place % len(words.kinds)]
        if place < len(words.kinds)
        else draws.pick(words.kinds)
    )
    names = draws.some(kind.attributes, level.attributes)
    base = _Draft(
        kind=kind,
        brand=wording.brand(draws) if level.length else "",
        attributes=tuple(words.attributes[name] for name in names),
        titled=tuple(range(min(level.titled, len(names)))),
        cents=_price(draws, level, kind),
        top_cents=None,
        priced=True,
        options=_options(draws, level, words, kind),
        text_key=text_key,
    )
    drafts = [_with_price_form(draws, level, base)]
    axes = draws.some(("attribute", "price", "options"), 3) if level.length else _TINY_AXES
    for n in range(level.siblings):
        sibling = _sibling(draws, level, words, base, axes[n % len(axes)])
        if level.length == 2 and draws.chance(0.5):
            sibling = sibling._replace(brand=wording.brand(draws), text_key=f"{text_key}{n}")
        drafts.append(_with_price_form(draws, level, sibling))
    return draws.some(drafts, len(drafts))


def _price(draws: Draws, level: Level, kind: Kind) -> int:
    if not level.length:
        return draws.pick(TINY_PRICES_CENTS[:3])  # leaves room for dearer siblings
    # Squared, so that cheap products are common; the last digits are a shop's.
    dollars = kind.low_cents // 100 + int(
        (kind.high_cents - kind.low_cents) // 100 * draws.random() ** 2
    )
    return dollars * 100 + draws.pick((99, 99, 95, 49, 0, 90))


def _with_price_form(draws: Draws, level: Level, draft: _Draft) -> _Draft:
    """Turn some prices into a range or leave them out."""
    if draws.chance(level.ranges):
        return draft._replace(
            top_cents=draft.cents + 100 * draws.between(2, 2 + draft.cents // 150)
        )
    if draws.chance(level.unpriced):
        return draft._replace(priced=False)
    return draft


def _options(draws: Draws, level: Level, words: _Words, kind: Kind) -> dict[str, tuple[str, ...]]:
    u, count = draws.random(), 0
    while count < len(level.groups) - 1 and u >= level.groups[count]:
        u -= level.groups[count]
        count += 1
    return {key: _values(draws, level, words.options[key]) for key in kind.options[:count]}


def _values(draws: Draws, level: Level, group: OptionGroup) -> tuple[str, ...]:
    chosen = set(draws.some(group.values, draws.between(*level.values)))
    return tuple(value for value in group.values if value in chosen)


def _sibling(draws: Draws, level: Level, words: _Words, base: _Draft, axis: str) -> _Draft:
    """Copy the base product and change one thing."""
    if axis == "price":
        if not level.length:
            dearer = [p for p in TINY_PRICES_CENTS if p - base.cents >= 4000]
            return base._replace(cents=draws.pick(dearer))
        dearer_cents = base.cents + 100 * draws.between(*level.price_gap)
        if dearer_cents < base.kind.high_cents or level.length == 3:
            return base._replace(cents=dearer_cents)
        axis = "attribute"
    if axis == "options":
        if base.options:
            key = draws.pick(tuple(base.options))
            group = words.options[key]
            rest = tuple(v for v in group.values if v not in base.options[key])
            kept = draws.pick(base.options[key])
            chosen = {kept, *draws.some(rest, max(1, len(base.options[key]) - 1))}
            return base._replace(
                options={**base.options, key: tuple(v for v in group.values if v in chosen)}
            )
        axis = "attribute"
    place = draws.below(len(base.attributes))
    rest = tuple(
        name for name in base.kind.attributes if words.attributes[name] not in base.attributes
    )
    changed = list(base.attributes)
    changed[place] = words.attributes[draws.pick(rest)]
    return base._replace(attributes=tuple(changed))


def _money(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02d}"


def _raw_product(
    draws: Draws, level: Level, words: _Words, draft: _Draft, asin: str
) -> dict[str, Any]:
    """Write a product as the original's file has it, unused fields included."""
    kind, maker = draft.kind, draft.brand
    if level.length:
        text = Draws(draft.text_key)
        shown = [draft.attributes[i] for i in draft.titled]
        name = wording.title(text, kind, maker, shown, length=level.length)
        bullets = wording.bullets(text, kind, maker, draft.attributes, fillers=level.length - 1)
        description = wording.description(text, kind, maker, draft.attributes, length=level.length)
    else:
        name = " ".join([*(a.name for a in draft.attributes), kind.nouns[0]])
        bullets = [" and ".join(a.name for a in draft.attributes)]
        description = ""
    if not draft.priced:
        pricing = ""
    elif draft.top_cents is None:
        pricing = _money(draft.cents)
    else:
        pricing = f"{_money(draft.cents)} - {_money(draft.top_cents)}"
    image = f"https://img.example/{asin}.jpg"
    return {
        "name": name,
        "product_information": {"ASIN": asin, "Manufacturer": maker},
        "brand": f"Brand: {maker}" if maker else "",
        "brand_url": f"https://shop.example/{maker}" if maker else "",
        "full_description": description,
        "pricing": pricing,
        "list_price": "",
        "availability_quantity": draws.between(1, 20),
        "availability_status": "In Stock.",
        "images": [image],
        "product_category": kind.chain,
        "average_rating": draws.between(30, 50) / 10,
        "small_description": bullets,
        "total_reviews": draws.between(1, 900),
        "total_answered_questions": "",
        "customization_options": {
            words.options[key].label: [
                {
                    "is_selected": place == 0,
                    "is_available": True,
                    "value": value,
                    "image": image if words.options[key].label == "Color" else None,
                    "price": None,
                    "price_string": "",
                }
                for place, value in enumerate(values)
            ]
            for key, values in draft.options.items()
        }
        or "",
        "seller_id": f"S{asin[1:]}",
        "seller_name": maker,
        "fulfilled_by_amazon": "",
        "fast_track_message": "",
        "aplus_present": "",
        "asin": asin,
        "category": kind.category,
        "query": kind.query,
        "page": draws.between(1, 40),
        "small_description_old": "About this item",
    }


def _raw_attributes(
    draws: Draws, level: Level, draft: _Draft, attributes: tuple[Attribute, ...]
) -> dict[str, Any]:
    wanted = sorted(draws.some(attributes, draws.between(*level.wanted)))
    if level.length:
        text = wording.search_instruction(draft.kind, wanted)
    else:
        text = " ".join(["find me a", *(a.name for a in wanted), draft.kind.query])
    return {
        "attributes": [a.name for a in attributes],
        "instruction": text,
        "instruction_attributes": [a.name for a in wanted],
    }


def _raw_human(
    draws: Draws,
    level: Level,
    words: _Words,
    draft: _Draft,
    asin: str,
    attributes: tuple[Attribute, ...],
) -> dict[str, Any]:
    wanted = draws.some(draft.attributes, draws.between(*level.wanted))
    chosen = [
        (words.options[key], draws.pick(values).lower()) for key, values in draft.options.items()
    ]
    asked = [choice for choice in chosen if draws.chance(level.asked)]
    if level.length:
        text = wording.instruction(draws, draft.kind, wanted, asked, paraphrase=level.paraphrase)
    else:
        parts = [draws.pick(TINY_OPENERS), *(a.name for a in wanted), draft.kind.nouns[0]]
        text = " ".join(parts + [group.phrases[0].format(v=value) for group, value in asked])
    return {
        "asin": asin,
        "instruction": text,
        "attributes": [a.name for a in attributes],
        "options": [f"{group.label.lower()}: {value}" for group, value in chosen] or [""],
        "instruction_attributes": [a.name for a in wanted],
        "instruction_options": [value for _, value in asked],
        "assignment_id": f"A{draws.below(10**9):09d}",
        "worker_id": f"W{draws.below(40)}",
    }
