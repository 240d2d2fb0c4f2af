"""Sentences of the full catalogue: shop titles, bullets, descriptions, and what shoppers say.

Everything is drawn from a `Draws`, so that the same draws give the same text on every platform.
"""

# ruff: noqa: E501  # one record or sentence a line reads better than a wrapped one

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from agentgym.envs.webshop.vocabulary.attributes import Attribute
from agentgym.envs.webshop.vocabulary.kinds import Kind
from agentgym.envs.webshop.vocabulary.options import OptionGroup

T = TypeVar("T")


class Draws:
    """Choices that are the same on every Python version.

    Only `random.Random.random` is promised to keep its sequence between versions; `choice`, `sample`
    and `shuffle` are not, so these are written out here.
    """

    def __init__(self, key: str) -> None:
        # A string seed goes through SHA-512, not through hash(): PYTHONHASHSEED does not matter.
        self.random = Random(key).random

    def below(self, n: int) -> int:
        """Draw an integer from 0 to n - 1."""
        return int(self.random() * n)

    def between(self, low: int, high: int) -> int:
        """Draw an integer from low to high, both included."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """Draw one item."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Draw True with this probability."""
        return self.random() < probability

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """Draw up to count different items, in random order."""
        left = list(items)
        return [left.pop(int(self.random() * len(left))) for _ in range(min(count, len(left)))]


_BRAND_SOUNDS = """
Bre Kal Mor Ven Tal Fen Lor Quin Zar Hol Pel Dru Sil Wex Jun Nor Ost Rav Ul Ey Cas Dal Gri Hes Ivo Mar Tem Yar
lowick dennor vantle morrow tivane sellow brindle quarry wenna dovel harrow linden mossel pindar rickle tamsin umber velda wick yonder
"""
_BRAND_HEADS, _BRAND_TAILS = (line.split() for line in _BRAND_SOUNDS.strip().splitlines())
_BRAND_ENDS = ("", "", "", "", " & Co", " Works", " Home", " Lane", " Supply")
_PRAISE = (
    "Premium",
    "Classic",
    "Upgraded",
    "Everyday",
    "Compact",
    "Deluxe",
    "Original",
    "Simple",
    "Stylish",
    "Genuine",
)


def brand(draws: Draws) -> str:
    """Invent a brand name."""
    return draws.pick(_BRAND_HEADS) + draws.pick(_BRAND_TAILS) + draws.pick(_BRAND_ENDS)


_CAPITALS = {"hd": "HD", "hdmi": "HDMI", "usb": "USB", "tv": "TV", "gmo": "GMO"}
_SMALL = frozenset({"a", "and", "of", "to", "the", "in", "with"})


def title_case(text: str) -> str:
    """Capitalise as shops do ("hdmi cable" -> "HDMI Cable", "easy to clean" -> "Easy to Clean")."""
    words = []
    for word in text.split(" "):
        capital = "-".join(part[:1].upper() + part[1:] for part in word.split("-"))
        words.append(_CAPITALS.get(word, word if word in _SMALL else capital))
    return " ".join(words)


def printed(attribute: Attribute) -> str:
    """Give an attribute as shops print it ("Machine Washable", "Rubber Sole", "Living Room")."""
    article, _, rest = attribute.said.partition(" ")
    return title_case(rest if article in ("a", "an", "the") else attribute.said)


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


_TRAILING = ("with ", "Free of ", "Easy to ", "Ready to ")


def title(draws: Draws, kind: Kind, maker: str, shown: Sequence[Attribute], *, length: int) -> str:
    """Write a shop title.

    Args:
        draws: Source of choices.
        kind: What is sold.
        maker: Brand.
        shown: Attributes to print.
        length: 1 for a short title, 2 for the usual, 3 for a long one.
    """
    is_ = [printed(a) for a in shown if a.form == "is"]
    with_ = [printed(a) for a in shown if a.form == "with"]
    for_ = [printed(a) for a in shown if a.form == "for"]
    noun, other = title_case(kind.nouns[0]), title_case(kind.nouns[1])
    use, praise = draws.pick(kind.uses), draws.pick(_PRAISE)
    order = draws.below(3)
    front = [words for words in is_ if not words.startswith(_TRAILING)][:1]
    back = [words for words in is_ if words not in front]
    if order == 2 and length > 1:
        noun, other = other, noun
    head = " ".join([maker, *front, noun])
    if with_:
        head += " with " + _joined(with_)
    if for_:
        head += " for " + _joined(for_)
    if length == 1:
        return ", ".join([head, *back])
    if order == 0 and not for_:
        head += f" for {use}"
    tails = [f"{praise} {other}" if order else f"{other}"]
    if back and not back[0].startswith(_TRAILING):
        tails[0] = f"{back.pop(0)} {tails[0]}"
    tails += back
    if order == 1:
        tails[0] += f" for {use}"
    if length == 3:
        tails.append(f"{draws.pick(_PRAISE)} {noun} by {maker} for {draws.pick(kind.uses)}")
    mark = draws.pick((", ", " - ", " | ", ", "))
    return mark.join([head, ", ".join(tails)])


_BULLET_HEADS = ("{n}: {b}", "{u} - {b}", "[{n}] {b}", "✔ {n}: {b}", "{u}: {b}", "{b} ({n})")
_FILLERS = (
    "WHAT YOU GET - Your {noun} from {maker}, packed with care, and a card with our address.",
    "Questions? Write to {maker} and a person will answer within a day.",
    "Made by {maker} for {use}, and for anyone who wants {article_noun} without surprises.",
    "Not happy? Send it back within 60 days and {maker} refunds the whole amount.",
    "A welcome find for {use}: simple to order, simple to return.",
    "PLEASE NOTE: shades on screens vary, so check the choices above before you order.",
)


def bullets(
    draws: Draws, kind: Kind, maker: str, attributes: Sequence[Attribute], *, fillers: int
) -> list[str]:
    """Write the bullet list: one line per attribute, then shop talk."""
    form = draws.pick(_BULLET_HEADS)
    lines = [
        form.format(n=printed(a), u=printed(a).upper(), b=a.bullet)
        for a in draws.some(attributes, len(attributes))
    ]
    noun = kind.nouns[0]
    lines += [
        filler.format(
            noun=noun,
            article_noun=counted(kind, noun),
            maker=maker,
            use=draws.pick(kind.uses).lower(),
        )
        for filler in draws.some(_FILLERS, fillers)
    ]
    return lines


_DESCRIPTIONS = (
    "{maker} makes this {noun} for {use}. If you have been hunting for a {other} that fits your day, start here.",
    "Meet the {noun} that {maker} has been working on for two years. It suits {use}, and as a {other} it holds its own.",
    "Looking for a {other}? This {noun} by {maker} was made with {use} in mind.",
    "At {maker} we sell few things and we sell them honestly. This {noun} (some say {other}) is meant for {use}.",
)
_DESCRIPTIONS_PLURAL = (
    "{maker} makes these {noun} for {use}. If you have been hunting for {other} that fit your day, start here.",
    "Meet the {noun} that {maker} has been working on for two years. They suit {use}, and as {other} they hold their own.",
    "Looking for {other}? These {noun} by {maker} were made with {use} in mind.",
    "At {maker} we sell few things and we sell them honestly. These {noun} (some say {other}) are meant for {use}.",
)
_MORE = (
    "Product details: category {query}; made and packed by {maker}.",
    "Every order is checked twice before it leaves our small warehouse, and every reply comes from a person.",
    "Care, storage and safety notes are printed inside the box.",
    "Choose the variant you want above before you order, as prices and stock may differ.",
)


def description(
    draws: Draws, kind: Kind, maker: str, attributes: Sequence[Attribute], *, length: int
) -> str:
    """Write the product description; `length` 1 is two sentences, 2 and 3 add attributes and shop talk."""
    plural = _is_plural(kind)
    text = draws.pick(_DESCRIPTIONS_PLURAL if plural else _DESCRIPTIONS).format(
        maker=maker, noun=kind.nouns[0], other=kind.nouns[1], use=draws.pick(kind.uses).lower()
    )
    if length > 1:
        names = _joined([printed(a).lower() for a in draws.some(attributes, length)])
        text += f" Highlights: {names}."
        for more in draws.some(_MORE, length - 1):
            text += " " + more.format(query=kind.query, maker=maker)
    return text


def _is_plural(kind: Kind) -> bool:
    return kind.determiner == "pair" or (kind.determiner == "some" and kind.nouns[0].endswith("s"))


_AN = ("a", "e", "i", "o", "hdmi", "unscented")


def counted(kind: Kind, words: str) -> str:
    """Put "a", "a pair of" or "some" before the words."""
    if kind.determiner != "a":
        return f"{'a pair of' if kind.determiner == 'pair' else 'some'} {words}"
    return f"{'an' if words.startswith(_AN) else 'a'} {words}"


_OPENERS = (
    *(
        "i am looking for",
        "i'm looking for",
        "i need",
        "i want",
        "looking for",
        "find me",
        "i would like",
    ),
    *(
        "i'd like to buy",
        "i want to buy",
        "i need to find",
        "can you find me",
        "could you help me find",
    ),
    *(
        "please find me",
        "show me",
        "help me find",
        "i'm in need of",
        "i am shopping for",
        "i'm trying to find",
    ),
    *(
        "i am interested in",
        "get me",
        "i'd love",
        "i want to get",
        "i'm searching for",
        "please help me find",
    ),
    *(
        "i'm hunting for",
        "i would like to order",
        "i am in the market for",
        "do you sell",
        "where can i find",
    ),
)
_NEED_VERBS = ("it should be", "it must be", "it has to be", "make sure it is", "it needs to be")
_NEED_VERBS_PLURAL = (
    "they should be",
    "they must be",
    "they have to be",
    "make sure they are",
    "they need to be",
)
_HAVE_VERBS = ("it should have", "it must come with", "i want it with", "make sure it has")
_HAVE_VERBS_PLURAL = (
    "they should have",
    "they must come with",
    "i want them with",
    "make sure they have",
)


def instruction(
    draws: Draws,
    kind: Kind,
    wanted: Sequence[Attribute],
    options: Sequence[tuple[OptionGroup, str]],
    *,
    paraphrase: float,
) -> str:
    """Say, as a shopper would, what product is wanted; no price, which the loader adds.

    Args:
        draws: Source of choices.
        kind: What is wanted.
        wanted: Attributes to ask for.
        options: Option group and value (lower case) to ask for.
        paraphrase: Probability that an attribute is said without its name.
    """
    noun = kind.nouns[0] if draws.chance(0.7) else kind.nouns[1]
    plural = _is_plural(kind)
    front: list[str] = []
    clauses: list[str] = []
    own: list[str] = []  # sentences of their own
    for a in wanted:
        if a.paraphrases and draws.chance(paraphrase):
            clauses.append(_agree(draws.pick(a.paraphrases), plural))
        elif a.form == "for":
            clauses.append(f"for {a.said}")
        elif a.form == "is" and a.said == a.name and len(front) < 2 and draws.chance(0.6):
            front.append(a.said)
        elif a.said.startswith("with "):
            clauses.append(a.said)
        elif own or draws.chance(0.75):
            clauses.append(_agree(draws.pick(_CLAUSES[a.form]).format(a.said), plural))
        else:
            own.append(draws.pick(_SENTENCES[a.form][plural]).format(a.said))
    choices: list[str] = []
    for group, value in draws.some(options, len(options)):
        if group.sentences and draws.chance(0.25):
            own.append(draws.pick(group.sentences).format(v=value))
        else:
            choices.append(_agree(draws.pick(group.phrases).format(v=value), plural))
    text = f"{draws.pick(_OPENERS)} {counted(kind, ' '.join((*front, noun)))}"
    text += _listed(clauses, draws.pick((" and ", " and ", ", ")))
    for place, choice in enumerate(choices):
        close = choice.startswith(("in ", "size ", "for ")) and (
            place == 0 or not choices[0].startswith("for ")
        )
        if choice.startswith("and "):
            text += f", {choice}"
        elif (
            place
            and choice.startswith(("in ", "with "))
            and choices[place - 1].startswith(choice[:3])
        ):
            text += f" and {choice}"
        else:
            text += f" {choice}" if close or not clauses else f", {choice}"
    stop = draws.pick((". ", ". ", ", "))
    text += "".join(stop + sentence for sentence in own)
    return text + draws.pick(("", ".", "."))


_CLAUSES = {"is": ("that is {}",), "with": ("with {}", "with {}", "that has {}")}
_SENTENCES = {
    "is": (
        tuple(f"{verb} {{}}" for verb in _NEED_VERBS),
        tuple(f"{verb} {{}}" for verb in _NEED_VERBS_PLURAL),
    ),
    "with": (
        tuple(f"{verb} {{}}" for verb in _HAVE_VERBS),
        tuple(f"{verb} {{}}" for verb in _HAVE_VERBS_PLURAL),
    ),
}


def _listed(clauses: Sequence[str], joint: str) -> str:
    """Chain clauses after a noun, without saying "that is" or "with" twice in a row."""
    text, last = "", len(clauses) - 1
    for place, clause in enumerate(clauses):
        if place == 0:
            text += f" {clause}"
            continue
        for lead in ("that is ", "that are ", "with ", "for "):
            if clause.startswith(lead) and clauses[place - 1].startswith(lead):
                clause = clause.removeprefix(lead)
        text += (joint if place == last else ", ") + clause
    return text


def _agree(clause: str, plural: bool) -> str:
    """Make a relative clause agree with a plural noun ("that is thin" -> "that are thin")."""
    if not plural or not clause.startswith("that "):
        return clause
    first, _, rest = clause[5:].partition(" ")
    fixed = _PLURALS.get(first)
    if fixed is None and first.endswith("s") and not first.endswith("ss"):
        fixed = first[:-1]
    return f"that {fixed or first} {rest}"


_PLURALS = {
    "is": "are",
    "isn't": "aren't",
    "has": "have",
    "doesn't": "don't",
    "was": "were",
    "goes": "go",
    "dries": "dry",
    "flattens": "flatten",
    "stretches": "stretch",
}


def search_instruction(kind: Kind, wanted: Sequence[Attribute]) -> str:
    """Write the instruction of a synthetic goal: the attributes and the shop's query, in the original's form."""
    plain = [a.name for a in wanted if a.form == "is"]
    text = " ".join(["Find me", ", ".join(plain), kind.query]) if plain else f"Find me {kind.query}"
    for form in ("with", "for"):
        names = [a.name for a in wanted if a.form == form]
        if names:
            text += f" {form} {', '.join(names)}"
    return text
