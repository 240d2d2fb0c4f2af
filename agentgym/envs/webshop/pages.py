"""What the agent sees: the shop's pages as lists of text nodes, and the two ways of writing them.

A page is an ordered list of nodes, each a piece of text with a kind (plain, button, option, product
link). Both observation modes and the list of available actions come from that one list, so they
cannot disagree. Texts, order and blanks are the original's, whose pages were HTML read back with
BeautifulSoup; its rules for blank text are in ``_shown``.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from agentgym.envs.webshop.products import Product

ObservationMode: TypeAlias = Literal["text", "text_rich"]
OBSERVATION_MODES: tuple[ObservationMode, ...] = ("text", "text_rich")

BACK_TO_SEARCH = "Back to Search"
NEXT_PAGE = "Next >"
PREVIOUS_PAGE = "< Prev"
BUY_NOW = "Buy Now"
SEARCH = "Search"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")

_HTML_BLANKS = " \n\t\x0c\r"
_JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})


class Kind(IntEnum):
    """What a node is on its page."""

    TEXT = 0
    BUTTON = 1
    OPTION = 2
    LINK = 3


Node: TypeAlias = tuple[Kind, str]
Nodes: TypeAlias = list[Node]

_TEXT, _BUTTON, _OPTION, _LINK = Kind.TEXT, Kind.BUTTON, Kind.OPTION, Kind.LINK
_BACK: Node = (_BUTTON, BACK_TO_SEARCH)
_NEXT: Node = (_BUTTON, NEXT_PAGE)
_PREVIOUS: Node = (_BUTTON, PREVIOUS_PAGE)
_BUY: Node = (_BUTTON, BUY_NOW)


def _shown(kind: Kind, text: str) -> Nodes:
    """A text from the data as nodes: blank text is one space, or nothing if it breaks the line."""
    if text and not text.strip(_HTML_BLANKS):
        return [] if "\n" in text else [(kind, " ")]
    return [(kind, text)] if text else []


def _head(instruction: str) -> Nodes:
    return [(_TEXT, "Instruction:"), *_shown(_TEXT, instruction), _BACK]


def start_page(instruction: str) -> Nodes:
    """The page with the search bar."""
    head = [(_TEXT, "WebShop"), (_TEXT, "Instruction: "), *_shown(_TEXT, instruction)]
    return [*head, (_BUTTON, SEARCH)]


def results_page(instruction: str, *, number: int, total: int, shown: Iterable[Product]) -> Nodes:
    """One page of search results, counted from 1."""
    nodes = _head(instruction)
    nodes.append((_TEXT, f"Page {number} (Total results: {total})"))
    if number > 1:
        nodes.append(_PREVIOUS)
    nodes.append(_NEXT)
    for product in shown:
        nodes += _shown(_LINK, product.asin)
        nodes += _shown(_TEXT, product.title)
        nodes.append((_TEXT, product.price_tag))
    return nodes


def item_page(instruction: str, product: Product, *, show_attrs: bool) -> Nodes:
    """A product with its options and tabs."""
    nodes = _head(instruction)
    nodes.append(_PREVIOUS)
    for name, values in product.options.items():
        nodes += _shown(_TEXT, name)
        for value in values:
            nodes += _shown(_OPTION, value)
    nodes += _shown(_TEXT, product.title)
    nodes.append((_TEXT, f"Price: {product.price_tag}"))
    nodes.append((_TEXT, "Rating: N.A."))
    nodes += [(_BUTTON, name) for name in (SUB_PAGES if show_attrs else SUB_PAGES[:3])]
    nodes.append(_BUY)
    return nodes


def sub_page(instruction: str, product: Product, name: str) -> Nodes:
    """One of a product's tabs."""
    nodes = _head(instruction)
    nodes.append(_PREVIOUS)
    if name == "Description":
        nodes += _shown(_TEXT, product.description)
    elif name == "Features":
        for bullet in product.bullets:
            nodes += _shown(_TEXT, f" {bullet}")
    elif name == "Attributes":
        for attribute in product.attributes:
            nodes += _shown(_TEXT, f" {attribute}")
        for text in (product.category, product.query, product.product_category):
            nodes += _shown(_TEXT, text)
    return nodes


def done_page(asin: str, options: Mapping[str, str], score: float) -> Nodes:
    """The page after a purchase; its ``None`` are the original's, which shows no goal to agents."""
    chosen = json.dumps(dict(options), sort_keys=True).translate(_JSON_ESCAPES)
    texts = (
        *("Thank you for shopping with us!", "Your code: ", "None"),
        *(" (Paste it in your MTurk interface.)", "Purchased", "asin", asin, "options", chosen),
        *("attrs", "None", "category", "None", "query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category"),
        *("product category", "query", "Goal ", "None", "Reward"),
        *("Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None"),
    )
    return [(_TEXT, text) for text in texts]


def clickables(nodes: Sequence[Node], product: Product | None = None) -> list[str]:
    """What can be clicked: buttons, then product links, then the options of ``product``.

    Args:
        nodes: The page.
        product: The product of an item page; its option values are clickable as they are.

    Returns:
        Lower-cased texts, each once, at its first place.
    """
    names = [text.lower() for kind, text in nodes if kind is _BUTTON]
    names += [text.lower() for kind, text in nodes if kind is _LINK]
    if product is not None:
        for values in product.options.values():
            names += values
    return list(dict.fromkeys(names))


def write_text(nodes: Sequence[Node]) -> str:
    """Write a page in ``text`` mode: stripped nodes joined by `` [SEP] ``."""
    return " [SEP] ".join([text.strip() for _, text in nodes])


def write_text_rich(
    nodes: Sequence[Node], *, is_selected: Callable[[str], bool], visited: Collection[str]
) -> str:
    """Write a page in ``text_rich`` mode: one node a line, with buttons marked.

    Args:
        nodes: The page.
        is_selected: Whether an option value counts as chosen.
        visited: Product ids shown as clicked.
    """
    lines = []
    notices: list[str] = []
    for kind, text in nodes:
        if kind is _TEXT:
            lines.append(text)
        elif kind is _BUTTON:
            lines.append(f"[button] {text} [button_]")
        elif kind is _LINK:
            mark = "clicked button" if text in visited else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]")
        elif is_selected(text):
            notices.append(f"You have clicked {text}.")
            lines.append(f"  [clicked button] {text} [clicked button_]")
        else:
            lines.append(f"  [button] {text} [button_]")
    return "\n".join([*reversed(notices), *lines, ""])


def page_address(asin: str, query: str, number: int, options: Mapping[str, str]) -> str:
    """The changing part of the original's item page address.

    ``text_rich`` marks an option as chosen if it stands in quotes anywhere in that address, so the
    address, with what the agent typed into it, decides what is shown.
    """
    return f"{asin}/{query.replace(' ', '+')}/{number}/{json.dumps(dict(options))}"


def available_actions(page_clickables: Sequence[str], *, is_start: bool) -> dict[str, Any]:
    """The original's description of what can be done."""
    return {"has_search_bar": is_start, "clickables": list(page_clickables)}
