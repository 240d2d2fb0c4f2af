"""A scripted, fallible shopper for the tiny level: the demonstrations of the warm start.

It reads only what the page shows, like the policy that learns from it. It knows how to shop, and it
slips: it leaves words out of its query, opens a product that doesn't fit, takes the wrong option.
A policy that imitates it has seen every right move, but makes it only some of the time; what is
left to reinforcement learning is to find out which moves pay.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

SEPARATOR = " [SEP] "
_INSTRUCTION = re.compile(
    r"(?:find me|i want|i need|show me) a (?P<words>[a-z ]+?)"
    r"(?: with (?P<option>\w+) \w+)?"
    r"(?:, and price lower than (?P<limit>[\d.]+) dollars)?"
)


@dataclass(frozen=True)
class Wish:
    """What an instruction of the tiny level asks for.

    Attributes:
        attributes: One-word attributes.
        noun: The kind of product.
        option: An option's value, or None.
        limit: Price limit in dollars.
    """

    attributes: tuple[str, ...]
    noun: str
    option: str | None
    limit: float

    @classmethod
    def read(cls, page: str) -> Wish:
        """Read the instruction at the head of a page.

        Raises:
            ValueError: If the page is not one of the tiny level's.
        """
        parts = page.split(SEPARATOR)
        text = parts[parts.index("Instruction:") + 1]
        match = _INSTRUCTION.fullmatch(text)
        if match is None:
            raise ValueError(f"not an instruction of the tiny level: {text!r}")
        *attributes, noun = match["words"].split()
        limit = float(match["limit"]) if match["limit"] else float("inf")
        return cls(tuple(attributes), noun, match["option"], limit)

    def fits(self, title: str, price: float) -> bool:
        """Whether a product on a results page is what is wanted, options aside."""
        words = title.split()
        return price <= self.limit and {*self.attributes, self.noun} <= set(words)


@dataclass(frozen=True)
class Slips:
    """How often the shopper gets it right; each a probability."""

    keep_word: float = 0.6
    """An attribute or option makes it into the query."""
    fitting: float = 0.4
    """A product that fits is opened, where the page has one; else any product."""
    option: float = 0.55
    """The wanted option is clicked, where the page has it; else nothing or another one."""
    go_back: float = 0.3
    """A product without the wanted option is left again."""


@dataclass
class Shopper:
    """One shopper for one episode; call it with each page's text."""

    rng: random.Random
    slips: Slips = field(default_factory=Slips)
    _chose: bool = False
    _went_back: bool = False

    def __call__(self, page: str) -> str:
        """Answer a page with an action.

        Raises:
            ValueError: If the page is not one of the tiny level's.
        """
        wish = Wish.read(page)
        parts = page.split(SEPARATOR)
        if "Search" in parts:
            return f"search[{' '.join(self._query(wish))}]"
        if "Buy Now" in parts:
            return f"click[{self._on_product(wish, parts)}]"
        return f"click[{self._on_results(wish, parts)}]"

    def _query(self, wish: Wish) -> list[str]:
        extra = (wish.option,) if wish.option else ()
        kept = [w for w in wish.attributes if self.rng.random() < self.slips.keep_word]
        asked = [w for w in extra if self.rng.random() < self.slips.keep_word]
        return [*kept, wish.noun, *asked]

    def _on_results(self, wish: Wish, parts: list[str]) -> str:
        at = parts.index("Next >") + 1
        shown = [(asin, title, float(price[1:])) for asin, title, price in _triples(parts[at:])]
        fitting = [asin for asin, title, price in shown if wish.fits(title, price)]
        careful = self.rng.random() < self.slips.fitting
        if careful and fitting:
            # The first fitting hit: the ranking knows about options, the title doesn't.
            return fitting[0]
        return self.rng.choice([asin for asin, _, _ in shown])

    def _on_product(self, wish: Wish, parts: list[str]) -> str:
        options = parts[parts.index("< Prev") + 2 : _price_at(parts) - 1]
        if self._chose or wish.option is None:
            return "buy now"
        if wish.option not in options:
            if not self._went_back and self.rng.random() < self.slips.go_back:
                self._went_back = True
                return "< prev"
            return "buy now"
        if self.rng.random() < self.slips.option:
            self._chose = True
            return wish.option
        others = [value for value in options if value != wish.option]
        if others and self.rng.random() < 0.5:
            self._chose = True
            return self.rng.choice(others)
        return "buy now"


def _triples(parts: list[str]) -> list[tuple[str, str, str]]:
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


def _price_at(parts: list[str]) -> int:
    return next(i for i, part in enumerate(parts) if part.startswith("Price: "))
