"""What a shopper can choose on a product page.

The reward compares a chosen value with the wanted one loosely: a colour word anywhere inside a
value stands for the whole value, and a value whose words are a subset of another's equals it
(x-large is large, "pack of 2" is "pack of 3"). Synthetic goals compare ``('size', '8 ounce')`` as
text, so a value with a colour hidden inside a word ("standard" holds "tan", "peppermint" holds
"mint") can never be matched, even by itself. The values below are chosen so that every value equals
itself and no other in its list; a test tries all pairs.
"""

# ruff: noqa: E501  # one record a line reads better than a wrapped one

from typing import NamedTuple


class OptionGroup(NamedTuple):
    """One choice on a product page."""

    label: str
    """Printed name of the group, such as Color."""
    values: tuple[str, ...]
    """All values, in shop order."""
    phrases: tuple[str, ...]
    """How a shopper asks for ``{v}`` within a sentence."""
    sentences: tuple[str, ...]
    """How a shopper asks for ``{v}`` in a sentence of its own."""


def _values(text: str) -> tuple[str, ...]:
    return tuple(value.strip() for value in text.split(","))


_COLOR_PHRASES = (
    "in {v}",
    "in the color {v}",
    "that comes in {v}",
    "in {v} color",
    "preferably in {v}",
)
_COLOR_SENTENCES = (
    "the color should be {v}",
    "i prefer {v}",
    "i'd like {v} as the color",
    "pick the {v} one",
)
_SIZE_PHRASES = ("in size {v}", "in a size {v}", "size {v}", "that comes in size {v}", "in {v}")
_SIZE_SENTENCES = ("the size should be {v}", "i wear a {v}", "i take size {v}", "{v} is my size")
_MEASURE_PHRASES = ("in the {v} size", "that is {v}", "in {v}", "the {v} one")
_MEASURE_SENTENCES = ("the size should be {v}", "i need the {v} one", "{v} is the size i want")
_PACK_PHRASES = ("in a {v}", "as a {v}", "and it should be a {v}", "sold as a {v}")
_PACK_SENTENCES = ("i want the {v}", "a {v} would be great", "it has to be a {v}")
_TASTE_PHRASES = ("in {v} flavor", "with a {v} flavor", "that is {v} flavored", "in the flavor {v}")
_TASTE_SENTENCES = (
    "i want the {v} flavor",
    "{v} is my favorite flavor",
    "the flavor should be {v}",
)
_SCENT_PHRASES = ("in {v} scent", "with a {v} scent", "in the scent {v}", "that has the scent {v}")
_SCENT_SENTENCES = ("i want the {v} scent", "the scent should be {v}", "i like the {v} one")
_STYLE_PHRASES = ("in {v} style", "in the style {v}", "with a {v} style", "the {v} version")
_STYLE_SENTENCES = ("the style should be {v}", "i want the {v} version", "i like the {v} style")

OPTION_GROUPS: dict[str, OptionGroup] = {
    "wear_color": OptionGroup(
        "Color",
        _values(
            "Black, White, Navy Blue, Charcoal, Burgundy, Olive, Khaki, Heather Gray, Mustard, Coral, Forest Green,"
            " Lavender, Beige, Hot Pink, Teal, Camel"
        ),
        _COLOR_PHRASES,
        _COLOR_SENTENCES,
    ),
    "tech_color": OptionGroup(
        "Color",
        _values(
            "Matte Black, Pearl White, Space Gray, Sky Blue, Ruby Red, Rose Gold, Silver, Mint, Purple, Orange"
        ),
        _COLOR_PHRASES,
        _COLOR_SENTENCES,
    ),
    "home_color": OptionGroup(
        "Color",
        _values(
            "Ivory, Slate, Walnut, Sage Green, Dusty Blue, Terracotta Orange, Black, White, Taupe, Blush,"
            " Espresso, Charcoal, Mustard Yellow, Plum"
        ),
        _COLOR_PHRASES,
        _COLOR_SENTENCES,
    ),
    "shade": OptionGroup(
        "Color",
        _values(
            "Ivory, Warm Beige, Caramel, Mocha, Rose, Berry Wine, Coral, Plum, Nude, Honey Bronze, Classic Red,"
            " Soft Peach"
        ),
        _COLOR_PHRASES,
        _COLOR_SENTENCES,
    ),
    "wear_size": OptionGroup(
        "Size", _values("Small, Medium, Large, XL, XXL, 3XL"), _SIZE_PHRASES, _SIZE_SENTENCES
    ),
    "shoe_size": OptionGroup(
        "Size", _values("5, 6, 7, 8, 9, 10, 11, 12"), _SIZE_PHRASES, _SIZE_SENTENCES
    ),
    "bed_size": OptionGroup(
        "Size",
        _values("Twin, Full, Queen, King"),
        ("in {v} size", "size {v}", "for a {v} bed"),
        _MEASURE_SENTENCES,
    ),
    "inches": OptionGroup(
        "Size",
        _values("18 inch, 24 inch, 30 inch, 55 inch, 67 inch"),
        _MEASURE_PHRASES,
        _MEASURE_SENTENCES,
    ),
    "fluid": OptionGroup(
        "Size",
        _values("30 ml, 75 ml, 120 ml, 250 ml, 500 ml"),
        _MEASURE_PHRASES,
        _MEASURE_SENTENCES,
    ),
    "ounces": OptionGroup(
        "Size",
        _values("8 ounce, 16 ounce, 32 ounce, 5 pound"),
        _MEASURE_PHRASES,
        _MEASURE_SENTENCES,
    ),
    "length": OptionGroup(
        "Length",
        _values("3 feet, 6 feet, 10 feet, 25 feet"),
        ("that is {v} long", "{v} long"),
        ("it has to be {v} long",),
    ),
    "storage": OptionGroup(
        "Capacity",
        _values("32 gb, 64 gb, 128 gb, 500 gb, 1 tb"),
        ("with {v}", "with {v} of storage", "in the {v} version"),
        ("i need {v} of storage", "{v} is enough for me"),
    ),
    "pack": OptionGroup(
        "Pack Size",
        _values("1 Pack, 2 Pack, 3 Pack, 4 Pack, 6 Pack"),
        _PACK_PHRASES,
        _PACK_SENTENCES,
    ),
    "fit": OptionGroup(
        "Fit Type",
        _values("Men, Women, Youth"),
        ("for {v}", "in the {v} fit", "with a {v} fit type"),
        ("the fit type should be {v}", "i need the {v} fit"),
    ),
    "width": OptionGroup(
        "Width",
        _values("Narrow, Regular, Wide"),
        ("in a {v} width", "with a {v} width"),
        ("the width should be {v}",),
    ),
    "home_style": OptionGroup(
        "Style",
        _values("Modern, Farmhouse, Boho, Vintage, Coastal, Classic"),
        _STYLE_PHRASES,
        _STYLE_SENTENCES,
    ),
    "tech_style": OptionGroup(
        "Style",
        _values("Basic, Premium, Travel Kit, Bundle, Refurbished"),
        _STYLE_PHRASES,
        _STYLE_SENTENCES,
    ),
    "scent": OptionGroup(
        "Scent",
        _values(
            "Lavender, Vanilla, Eucalyptus, Citrus, Jasmine, Cedar, Pine, Ocean Breeze, Cucumber, Peach, Rose"
        ),
        _SCENT_PHRASES,
        _SCENT_SENTENCES,
    ),
    "sweet_flavor": OptionGroup(
        "Flavor Name",
        _values(
            "Vanilla, Dark Chocolate, Strawberry, Salted Caramel, Banana, Mango, Lemon, Coconut, Raspberry,"
            " Pumpkin Spice, Mint, Hazelnut, Cherry, Maple"
        ),
        _TASTE_PHRASES,
        _TASTE_SENTENCES,
    ),
    "salty_flavor": OptionGroup(
        "Flavor Name",
        _values(
            "Sea Salt, Barbecue, Sour Cream, Jalapeno, Cheddar, Honey Mustard, Ranch, Garlic, Chili Lime, Black Pepper"
        ),
        _TASTE_PHRASES,
        _TASTE_SENTENCES,
    ),
    "tea_flavor": OptionGroup(
        "Flavor Name",
        _values(
            "Chamomile, Jasmine, Ginger, Hibiscus, Lemon, Mint, Earl Grey, Peach, Cinnamon, Rooibos"
        ),
        _TASTE_PHRASES,
        _TASTE_SENTENCES,
    ),
}
"""Every option group by key."""
