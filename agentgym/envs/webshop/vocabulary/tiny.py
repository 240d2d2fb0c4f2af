"""The closed vocabulary of the ``tiny`` level: one-word nouns and attributes, all lower case.

With a word-level tokenizer the whole level, pages included, stays under 400 words, so that a policy
of a million parameters can be trained on it in minutes.
"""

# ruff: noqa: E501  # one record a line reads better than a wrapped one

from agentgym.envs.webshop.vocabulary.attributes import Attribute
from agentgym.envs.webshop.vocabulary.kinds import Kind
from agentgym.envs.webshop.vocabulary.options import OptionGroup

# category | attributes | option group | nouns
_TABLE = """
beauty | mild; fresh; vegan; creamy; glossy; pure; foamy; organic | scent | soap; shampoo; lotion; perfume; cream; scrub; balm; mask
electronics | wireless; fast; slim; loud; portable; smart; quiet; rugged | color | speaker; mouse; camera; tablet; charger; printer; keyboard; radio
fashion | soft; warm; casual; cotton; striped; stretchy; waterproof; formal | size | shirt; jacket; sweater; dress; coat; hoodie; skirt; vest
garden | wooden; modern; sturdy; foldable; round; padded; tall; vintage | color | chair; table; lamp; shelf; mirror; rug; bench; stool
grocery | crunchy; salty; vegan; organic; spicy; frozen; dried; roasted | flavor | snack; cookie; cereal; candy; granola; soup; sauce; popcorn
"""

TINY_OPTIONS: dict[str, OptionGroup] = {
    "scent": OptionGroup(
        "scent", ("rose", "mint", "peach", "vanilla", "citrus"), ("with {v} scent",), ()
    ),
    "color": OptionGroup(
        "color", ("red", "blue", "green", "black", "white"), ("with {v} color",), ()
    ),
    "size": OptionGroup("size", ("small", "medium", "large", "huge"), ("with {v} size",), ()),
    "flavor": OptionGroup(
        "flavor", ("lemon", "cherry", "mint", "cheese", "honey"), ("with {v} flavor",), ()
    ),
}
"""Option groups of the tiny level by key."""

TINY_PRICES_CENTS = (1500, 3500, 5500, 7500, 9500)
"""All prices. Two of them two steps apart are never under one price limit (the limit is at most 40 above)."""

TINY_OPENERS = ("find me a", "i want a", "i need a", "show me a")
"""How an instruction begins; the article is "a" throughout to save a word."""


def _parse(table: str) -> tuple[Kind, ...]:
    kinds = []
    for line in table.strip().splitlines():
        category, attributes, option, nouns = (part.strip() for part in line.split("|"))
        words = tuple(word.strip() for word in attributes.split(";"))
        for noun in (word.strip() for word in nouns.split(";")):
            chain = f"{category} › {noun}"
            kinds.append(
                Kind(category, (noun,), "a", noun, chain, 1500, 9500, words, (option,), ("home",))
            )
    return tuple(kinds)


TINY_KINDS: tuple[Kind, ...] = _parse(_TABLE)
"""Forty kinds, eight per category."""

TINY_ATTRIBUTES: dict[str, Attribute] = {
    name: Attribute(name, "is", name, name, ()) for kind in TINY_KINDS for name in kind.attributes
}
"""Attributes of the tiny level by name."""
