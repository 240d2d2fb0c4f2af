"""Goals: what the shopper of an episode wants, made from a catalogue and a seed.

The original draws price ranges and price limits from the global generator, before it seeds it, so
its goals change from process to process. Here the same draws come in the same order from a
generator of our own: ``data_seed=k`` gives the goals of the original with ``random.seed(k)`` before
construction, on any machine, and nothing global is touched.
"""

import bisect
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentgym.envs.webshop.products import Catalogue, Product
from agentgym.errors import DataError

GoalKind: TypeAlias = Literal["human", "synthetic"]
Split: TypeAlias = Literal["train", "validation", "test"]

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
PRICE_BOUNDS = tuple(10.0 * step for step in range(1, 100))
"""Price limits a goal may have, in dollars."""
NO_PRICE_BOUND = 1_000_000
"""Price limit of a goal that has none."""
SHUFFLE_SEED = 233
"""Seed of the goal order, as in the original."""
FULL_TEST, FULL_VALIDATION = 500, 1000
"""Goals of the test and validation splits on large data, as in the original."""
FULL_SPLIT_FROM = 5000
"""Number of goals from which the fixed split sizes apply."""
SMALL_FRACTION = 0.2
"""Share of the goals in each of the test and validation splits on small data."""


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """What to buy.

    Attributes:
        product: The product the goal was made from.
        instruction: The text the agent reads, price limit included.
        attributes: Attributes the purchase must have.
        price_upper: Price limit in dollars; 1,000,000 where the text names none.
        options: Values to choose (human goals), or (group, value) pairs (synthetic goals).
        weight: Share in the weighted draw.
    """

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    price_upper: float
    options: tuple[str, ...] | tuple[tuple[str, str], ...]
    weight: float = 1.0

    def __deepcopy__(self, memo: Any) -> "Goal":
        return self

    @property
    def option_values(self) -> tuple[str, ...]:
        """The wanted option values, without their groups."""
        return tuple(entry if isinstance(entry, str) else entry[1] for entry in self.options)

    @property
    def has_price_bound(self) -> bool:
        """Whether the instruction names a price limit."""
        return self.price_upper < NO_PRICE_BOUND

    def as_original(self, kind: GoalKind) -> dict[str, Any]:
        """The goal as the original's dict: human goals list their options, synthetic map them."""
        return {
            "asin": self.product.asin,
            "category": self.product.category,
            "query": self.product.query,
            "name": self.product.title,
            "product_category": self.product.product_category,
            "instruction_text": self.instruction,
            "attributes": list(self.attributes),
            "price_upper": self.price_upper,
            # A synthetic goal's options are pairs of group and value, which the type can't say.
            "goal_options": list(self.options) if kind == "human" else dict(self.options),  # type: ignore[arg-type]
            "weight": self.weight,
        }


@dataclass(frozen=True, slots=True)
class GoalTable:
    """All goals of a catalogue in the original's order, with each product's price.

    Attributes:
        digest: SHA-256 over (number, instruction, price limit), 64 hex digits: equal digests mean
            that a task id names the same task.
        draw_state: State of the original's generator when its first episode is drawn.
    """

    goals: tuple[Goal, ...]
    prices: Mapping[str, float]
    digest: str
    draw_state: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.goals)


def _draw_prices(catalogue: Catalogue, rng: random.Random) -> dict[str, float]:
    """Fix each product's price: the one it has, or a uniform draw from its range."""
    return {
        product.asin: product.prices[0]
        if len(product.prices) == 1
        else rng.uniform(*product.prices)
        for product in catalogue.products
    }


def _draw_price_bound(price: float, rng: random.Random) -> tuple[float, str]:
    """Draw a goal's price limit, and the words that name it."""
    candidates = [bound for bound in PRICE_BOUNDS if bound > price][:4]
    if len(candidates) < 2:
        return NO_PRICE_BOUND, ""
    upper = max(rng.sample(candidates, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


def _human_goals(
    catalogue: Catalogue, prices: Mapping[str, float], rng: random.Random
) -> Iterator[Goal]:
    for product in catalogue.products:
        for instruction in product.human_instructions:
            if not instruction.attributes:
                continue
            upper, words = _draw_price_bound(prices[product.asin], rng)
            yield Goal(
                product=product,
                instruction=instruction.text.strip(".") + words,
                attributes=instruction.attributes,
                price_upper=upper,
                options=instruction.options,
            )


def _synthetic_goals(
    catalogue: Catalogue, prices: Mapping[str, float], rng: random.Random
) -> list[Goal]:
    drafts: list[tuple[Product, str, float, tuple[tuple[str, str], ...]]] = []
    counts: Counter[str] = Counter()
    for product in catalogue.products:
        if product.asin in catalogue.without_attributes:
            raise DataError(
                f"{catalogue.name}: product {product.asin!r} is not in the attributes file, which "
                "synthetic goals need; add it there or use goals='human'"
            )
        if product.synthetic_instruction is None:
            continue
        if not product.synthetic_attributes:
            raise DataError(
                f"{catalogue.name}: product {product.asin!r}: field 'instruction_attributes' of "
                "the attributes file is missing or empty, but there is an instruction"
            )
        upper, words = _draw_price_bound(prices[product.asin], rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            chosen = ", and ".join(f"{name}: {value}" for name, value in options)
            text = product.synthetic_instruction + (f" with {chosen}" if chosen else "") + words
            drafts.append((product, text, upper, options))
            counts.update(product.synthetic_attributes)
    return [
        Goal(
            product=product,
            instruction=text,
            attributes=product.synthetic_attributes,
            price_upper=upper,
            options=options,
            weight=_rarity(product.synthetic_attributes, counts),
        )
        for product, text, upper, options in drafts
    ]


def _rarity(attributes: Sequence[str], counts: Mapping[str, int]) -> float:
    """Mean of 1 / (goals with the attribute), added up plainly: ``sum`` differs from 3.12 on."""
    total = 0.0
    for name in attributes:
        total += 1.0 / counts[name]
    return total / len(attributes)


def build_goals(
    catalogue: Catalogue, *, kind: GoalKind, data_seed: int, limit: int | None = None
) -> GoalTable:
    """Make the goals of a catalogue.

    Args:
        catalogue: The products.
        kind: ``human`` for written instructions, ``synthetic`` for one goal per combination of
            options.
        data_seed: Fixes price ranges, price limits and goal texts.
        limit: Keep this many goals, chosen as the original chooses them; all if ``None``.

    Raises:
        DataError: If the data holds no goal of that kind.
    """
    rng = random.Random(data_seed)
    prices = _draw_prices(catalogue, rng)
    make = _human_goals if kind == "human" else _synthetic_goals
    goals: list[Goal] = list(make(catalogue, prices, rng))
    if not goals:
        raise DataError(f"{catalogue.name}: has no {kind} goal; try the other kind with goals=")
    order = random.Random(SHUFFLE_SEED)
    order.shuffle(goals)
    if limit is not None and limit < len(goals):
        goals = _limited(goals, limit, order)
    digest = hashlib.sha256()
    for number, goal in enumerate(goals):
        digest.update(repr((number, goal.instruction, float(goal.price_upper))).encode())
    return GoalTable(tuple(goals), prices, digest.hexdigest(), order.getstate())


def cumulative_weights(goals: Sequence[Goal]) -> list[float]:
    """Running totals of the goals' weights."""
    return list(itertools.accumulate(goal.weight for goal in goals))


def _shifted_draw(cumulative: Sequence[float], rng: random.Random) -> int:
    """The original's draw: each weight counts for the goal after it, the last one twice."""
    position = rng.uniform(0, cumulative[-1])
    return min(bisect.bisect_right(cumulative, position) + 1, len(cumulative) - 1)


def _limited(goals: Sequence[Goal], limit: int, rng: random.Random) -> list[Goal]:
    """Keep ``limit`` goals by the original's weighted draws without repetition."""
    cumulative = cumulative_weights(goals)
    chosen: dict[int, Goal] = {}
    while len(chosen) < limit:
        at = _shifted_draw(cumulative, rng)
        chosen[at] = goals[at]
    return list(chosen.values())


def original_draw(cumulative: Sequence[float], rng: random.Random) -> int:
    """Draw the next episode's goal as the original does, faults included.

    Ten letters of a session id are drawn first, then a number ``u`` below the total weight; goal 0
    never comes up, each weight counts for the goal after it and the last goal has two shares.

    Args:
        cumulative: Running totals of the weights, without the leading 0.
        rng: The generator, advanced as the original's would be.
    """
    rng.choices("abcdefghijklmnopqrstuvwxyz", k=10)
    return _shifted_draw(cumulative, rng)


def split_range(count: int, split: Split | None) -> range:
    """Return the goal numbers of a split.

    From 5,000 goals on, the original's sizes: test 0..499, validation 500..1499, train the rest.
    Below, the first fifth is test, the second validation, the rest train. ``None`` is all goals.
    """
    if split is None:
        return range(count)
    if count >= FULL_SPLIT_FROM:
        test, validation = FULL_TEST, FULL_VALIDATION
    else:
        test = validation = int(count * SMALL_FRACTION)
    bounds = {
        "test": (0, test),
        "validation": (test, test + validation),
        "train": (test + validation, count),
    }
    return range(*bounds[split])


def split_of(count: int, number: int) -> Split:
    """Return the split that goal ``number`` belongs to."""
    return next(split for split in SPLITS if number in split_range(count, split))
