"""One visit to the shop: where the visitor is, and what a search or a click does there.

A small state machine over five kinds of page. It knows no goal and gives no reward: those belong to
the environment, so nothing of them can leak into a page before the purchase.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.pages import Nodes, ObservationMode
from agentgym.envs.webshop.products import Product
from agentgym.envs.webshop.shop import Shop

_BACK = pages.BACK_TO_SEARCH.lower()
_NEXT = pages.NEXT_PAGE.lower()
_PREVIOUS = pages.PREVIOUS_PAGE.lower()
_BUY = pages.BUY_NOW.lower()
_SUB_PAGES = {name.lower(): name for name in pages.SUB_PAGES}


class Place(Enum):
    """The kinds of page."""

    START = "start"
    RESULTS = "results"
    ITEM = "item"
    SUB_PAGE = "sub page"
    DONE = "done"


@dataclass(slots=True)
class Session:
    """The state of one visit.

    Attributes:
        shop: Shared, read-only.
        instruction: Text at the head of every page.
        show_attrs: Whether item pages have an Attributes tab.
        page_size: Products on one page of results.
        seed: Decides what the special query ``<r>`` shows.
        place: The kind of page.
        query: The current search, lower case.
        hits: All products the search found.
        number: Page of the results, from 1.
        product: The product looked at, also while on its tabs.
        tab: Which tab, on a sub page.
        options: Chosen values by group.
        visited: Ids of products opened since the last Back to Search.
        score: Reward shown on the last page.
    """

    shop: Shop
    instruction: str
    show_attrs: bool = False
    page_size: int = 10
    seed: int = 0
    place: Place = Place.START
    query: str = ""
    hits: Sequence[Product] = ()
    number: int = 1
    product: Product | None = None
    tab: str = ""
    options: dict[str, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    score: float = 0.0
    _nodes: Nodes | None = None
    _clickables: list[str] | None = None

    def __deepcopy__(self, memo: Any) -> "Session":
        twin = copy.copy(self)
        twin.options = dict(self.options)
        twin.visited = set(self.visited)
        return twin

    # --- what the visitor does ----------------------------------------------------------------

    def search(self, query: str) -> bool:
        """Search from any page but the last; ``False`` if there is nothing to search for."""
        query = query.lower()
        if not query or self.place is Place.DONE:
            return False
        self.query = query
        self.hits = self.shop.find(query, seed=self.seed)
        self._open_results(1)
        return True

    def click(self, target: str) -> bool:
        """Click what the page shows under that name; ``False`` if there is no such thing."""
        target = target.lower()
        if target == "search" or target not in self.clickables():
            return False
        place = self.place
        if target == _BUY:
            self._move(Place.DONE)
        elif target == _BACK:
            self._back_to_search()
        elif target == _NEXT and place is Place.RESULTS:
            self._open_results(self.number + 1)
        elif target == _PREVIOUS:
            self._go_back()
        elif target in _SUB_PAGES:
            self.tab = _SUB_PAGES[target]
            self._move(Place.SUB_PAGE)
        elif place is Place.RESULTS:
            self._open_product(target)
        else:
            self._choose(target)
        return True

    def _move(self, place: Place) -> None:
        self.place = place
        self._nodes = self._clickables = None

    def _open_results(self, number: int) -> None:
        self.number = number
        self.product = None
        self.options = {}
        self._move(Place.RESULTS)

    def _back_to_search(self) -> None:
        self.query, self.hits, self.number, self.product = "", (), 1, None
        self.options = {}
        self.visited = set()
        self._move(Place.START)

    def _go_back(self) -> None:
        if self.place is Place.RESULTS:
            self._open_results(self.number - 1)
        elif self.place is Place.SUB_PAGE:
            self._move(Place.ITEM)
        else:
            self._open_results(self.number)

    def _open_product(self, target: str) -> None:
        self.product = next(p for p in self._shown() if p.asin.lower() == target)
        self.visited.add(self.product.asin)
        self._move(Place.ITEM)

    def _choose(self, value: str) -> None:
        """Choose an option; a value in several groups goes to the last of them."""
        product = self._current()
        group = [name for name, values in product.options.items() if value in values][-1]
        self.options[group] = value
        self._move(Place.ITEM)

    # --- what the visitor sees ----------------------------------------------------------------

    def _current(self) -> Product:
        if self.product is None:
            raise RuntimeError(f"no product is open on the {self.place.value} page")
        return self.product

    def _shown(self) -> Sequence[Product]:
        first = (self.number - 1) * self.page_size
        return self.hits[first : first + self.page_size]

    def nodes(self) -> Nodes:
        """The current page."""
        if self._nodes is None:
            self._nodes = self._make_nodes()
        return self._nodes

    def _make_nodes(self) -> Nodes:
        text = self.instruction
        if self.place is Place.START:
            return pages.start_page(text)
        if self.place is Place.RESULTS:
            return pages.results_page(
                text, number=self.number, total=len(self.hits), shown=self._shown()
            )
        product = self._current()
        if self.place is Place.ITEM:
            return pages.item_page(text, product, show_attrs=self.show_attrs)
        if self.place is Place.SUB_PAGE:
            return pages.sub_page(text, product, self.tab)
        return pages.done_page(product.asin, self.options, self.score)

    def clickables(self) -> list[str]:
        """Names that can be clicked, lower case, as the original lists them."""
        if self._clickables is None:
            product = self.product if self.place is Place.ITEM else None
            self._clickables = pages.clickables(self.nodes(), product)
        return self._clickables

    def available_actions(self) -> dict[str, Any]:
        """The original's ``get_available_actions()``."""
        return pages.available_actions(self.clickables(), is_start=self.place is Place.START)

    def page(self, mode: ObservationMode) -> str:
        """The current page as the agent reads it."""
        if mode == "text":
            return pages.write_text(self.nodes())
        address = ""
        if self.place is Place.ITEM:
            asin = self._current().asin
            address = pages.page_address(asin, self.query, self.number, self.options)
        return pages.write_text_rich(
            self.nodes(),
            is_selected=lambda value: f'"{value}"' in address,
            visited=self.visited,
        )
