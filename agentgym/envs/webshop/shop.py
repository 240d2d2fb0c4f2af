"""The shop behind the pages: a catalogue with its search, shared by all environments of a process.

Loading and indexing happen once per data set. Shops and goal tables are read-only, so any number of
environments and threads use the same ones; a lock keeps two threads from building one twice.
"""

import bisect
import functools
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from agentgym.envs.webshop import catalogue_generator
from agentgym.envs.webshop.catalogue_generator import Level
from agentgym.envs.webshop.files import data_files, read_folder
from agentgym.envs.webshop.goals import (
    GoalKind,
    GoalTable,
    Split,
    build_goals,
    cumulative_weights,
    split_range,
)
from agentgym.envs.webshop.index import MAX_HITS, SearchIndex
from agentgym.envs.webshop.products import (
    Catalogue,
    Product,
    RawData,
    build_catalogue,
)
from agentgym.errors import DataError

T = TypeVar("T")

DEFAULT_NUM_PRODUCTS = 1000
"""Size of the embedded catalogue unless told otherwise."""
_MOST_SHARED = 24


class Shop:
    """A catalogue that can be searched; read-only.

    Args:
        catalogue: The products.
        remake: Gets the same shop in another process. A copy is the shop itself, and a pickle is
            this call, so that neither an environment nor a snapshot ever carries a catalogue.
    """

    def __init__(self, catalogue: Catalogue, *, remake: Callable[[], "Shop"] | None = None) -> None:
        self.catalogue = catalogue
        self._remake = remake
        # Equal scores go by product id, as in the original.
        self._ranked = tuple(sorted(catalogue.products, key=lambda product: product.asin))
        self._index = SearchIndex(product.search_text for product in self._ranked)
        self._check()

    def _check(self) -> None:
        """An index without a word in it would answer every search with nothing: say so at once."""
        if not self._index.has_terms:
            raise DataError(
                f"{self.catalogue.name}: no product text holds a word, so no search would find "
                "anything; check 'name' and 'full_description' in the product file"
            )

    def __deepcopy__(self, memo: Any) -> "Shop":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self._remake is None else (self._remake, ())

    def find(self, query: str, *, seed: int = 0) -> Sequence[Product]:
        """Return the products for a query, best first.

        Besides plain text, the original knows four first words: ``<r>`` is 50 random products,
        ``<c> category``, ``<q> query`` and ``<a> attribute`` all products that have it.

        Args:
            query: Lower-case text.
            seed: Decides the products of ``<r>``.
        """
        first, _, rest = query.partition(" ")
        special = _SPECIAL.get(first)
        if special is not None:
            return special(self.catalogue.products, rest, seed)
        return [self._ranked[at] for at, _ in self._index.search(query)]

    def scores(self, query: str) -> list[tuple[str, float]]:
        """Ranked product ids with their scores, for tests and inspection."""
        return [(self._ranked[at].asin, s) for at, s in self._index.search(query)]


def _random_products(products: Sequence[Product], rest: str, seed: int) -> Sequence[Product]:
    return random.Random(seed).sample(products, min(MAX_HITS, len(products)))


def _of_category(products: Sequence[Product], rest: str, seed: int) -> Sequence[Product]:
    category = rest.split(" ")[0].strip()
    return [product for product in products if product.category == category]


def _of_query(products: Sequence[Product], rest: str, seed: int) -> Sequence[Product]:
    return [product for product in products if product.query == rest.strip()]


def _with_attribute(products: Sequence[Product], rest: str, seed: int) -> Sequence[Product]:
    return [product for product in products if rest.strip() in product.attributes]


_SPECIAL: dict[str, Callable[[Sequence[Product], str, int], Sequence[Product]]] = {
    "<r>": _random_products,
    "<c>": _of_category,
    "<q>": _of_query,
    "<a>": _with_attribute,
}


class _Source(TypedDict):
    """What decides a shop, in the words of ``shared_world``."""

    data: str | None
    num_products: int | None
    difficulty: str | Level
    catalogue_seed: int


@dataclass(frozen=True, slots=True)
class World:
    """A shop and its goals.

    Attributes:
        key: Names the pair within the process.
        remake: Gets the same world in another process; see ``Shop``.
    """

    shop: Shop
    table: GoalTable
    key: Hashable
    remake: Callable[[], "World"]

    def __deepcopy__(self, memo: Any) -> "World":
        return self

    def __reduce__(self) -> Any:
        return self.remake, ()


@dataclass(frozen=True, slots=True)
class SplitDraw:
    """The goals of one split, ready for weighted draws.

    Attributes:
        numbers: Goal numbers, in the order of the table.
        cumulative: Running totals of their weights.
    """

    numbers: range
    cumulative: Sequence[float]

    def __deepcopy__(self, memo: Any) -> "SplitDraw":
        return self

    def at(self, share: float) -> int:
        """Return the goal number at ``share`` of the total weight, 0 <= share < 1."""
        position = bisect.bisect_right(self.cumulative, share * self.cumulative[-1])
        return self.numbers[min(position, len(self.numbers) - 1)]


class _Shared:
    """The objects of this process, by key; the least recently used go first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                while len(self._values) > _MOST_SHARED:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            value: T = self._values[key]
            return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


_shared = _Shared()


def forget_shared() -> None:
    """Drop what the process shares; environments that use it keep it."""
    _shared.clear()


def shared_world(
    *,
    data: str | Path | None,
    goals: GoalKind,
    data_seed: int,
    num_products: int | None = None,
    limit_goals: int | None = None,
    difficulty: str | Level = "standard",
    catalogue_seed: int = 0,
) -> World:
    """Return the shop and goals of these parameters, made once per process.

    Args:
        data: Folder with WebShop's three files; ``None`` for the embedded catalogue.
        goals: Kind of goals.
        data_seed: See ``build_goals``.
        num_products: Entries taken from the head of the data; all, or 1,000 embedded, if ``None``.
        limit_goals: Goals kept; all if ``None``.
        difficulty: Level of the embedded catalogue.
        catalogue_seed: Seed of the embedded catalogue.

    Raises:
        DataError: If the data is missing or wrong.
    """
    source: _Source = {
        "data": None if data is None else str(data_files(Path(data))[0].parent),
        "num_products": num_products,
        "difficulty": difficulty,
        "catalogue_seed": catalogue_seed,
    }
    shop, origin = _shared_shop(source)
    remake = functools.partial(
        shared_world, **source, goals=goals, data_seed=data_seed, limit_goals=limit_goals
    )
    key = (*origin, goals, data_seed, limit_goals)
    table = _shared.get(
        key,
        lambda: build_goals(shop.catalogue, kind=goals, data_seed=data_seed, limit=limit_goals),
    )
    return World(shop, table, key, remake)


def _shared_shop(source: _Source) -> tuple[Shop, tuple[Hashable, ...]]:
    """The shop of these parameters, made once per process, and its key there."""
    count, remake = source["num_products"], functools.partial(_shop_again, source)
    if source["data"] is None:
        count = DEFAULT_NUM_PRODUCTS if count is None else count
        difficulty, seed = source["difficulty"], source["catalogue_seed"]
        key: tuple[Hashable, ...] = ("embedded", count, difficulty, seed)
        return _shared.get(key, lambda: _embedded_shop(count, difficulty, seed, remake)), key
    paths = data_files(Path(source["data"]))
    stamps = tuple((str(p), (stat := p.stat()).st_size, stat.st_mtime_ns) for p in paths)
    key = ("folder", stamps, count)
    return _shared.get(key, lambda: _folder_shop(paths[0].parent, count, remake)), key


def _shop_again(source: _Source) -> Shop:
    return _shared_shop(source)[0]


def shared_draw(world: World, split: Split | None) -> SplitDraw:
    """Return the draw of one split, made once per process.

    Raises:
        DataError: If the split is empty.
    """

    def make() -> SplitDraw:
        numbers = split_range(len(world.table), split)
        if not numbers:
            raise DataError(
                f"{world.shop.catalogue.name}: split {split!r} is empty with {len(world.table)} "
                "goals; use split=None or more goals"
            )
        goals = world.table.goals[numbers.start : numbers.stop]
        return SplitDraw(numbers, cumulative_weights(goals))

    return _shared.get((world.key, "draw", split), make)


def _embedded_shop(
    count: int, difficulty: str | Level, seed: int, remake: Callable[[], Shop]
) -> Shop:
    raw = catalogue_generator.generate(count, seed=seed, difficulty=difficulty)
    data = RawData(raw.products, raw.attributes, raw.human_instructions)
    level = difficulty if isinstance(difficulty, str) else "own"
    return Shop(build_catalogue(data, name=f"embedded-{level}-{seed}"), remake=remake)


def _folder_shop(folder: Path, num_products: int | None, remake: Callable[[], Shop]) -> Shop:
    catalogue = build_catalogue(read_folder(folder), name=folder.name, num_products=num_products)
    return Shop(catalogue, remake=remake)
