"""Whether a simulated user's line belongs to its part.

Programs can't tell whether a line is a good one; they can tell some that no user of this scenario
says. Each check is narrow on purpose, since a fault found in a good line costs an episode, and each
says what is wrong in words that the model can mend its line by.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from agentgym.simulator import Scenario, UserDialogue
from agentgym.simulators.prompts import AGAIN, USER_RULES

SHORT_LINE = 4
"""Words up to which a line may be said twice ("Yes, please.")."""
SHORTEST_RECITAL = 5
"""Words of an instruction that nobody says by chance."""

_SENTENCE = re.compile(r"[.!?;:]\s+|\n")
_SECOND_PERSON = frozenset({"you", "your", "yours", "yourself"})
_AS_THE_AGENT = re.compile(
    r"^[^\w\n]*(agent|assistant|representative|support|customer service|system)\W*:"
    r"|\bas an ai\b|\b(i am|i'm) an ai\b|\bai language model\b"
    r"|\bhow (can|may) i (help|assist) you\b"
    r"|\bthank you for (contacting|calling|reaching out)\b"
    r"|\b(i am|i'm) (your|the|an?) (virtual |customer )?(service |support )?(agent|assistant)\b",
    re.IGNORECASE | re.MULTILINE,
)
_ABOUT_THE_PLAY = re.compile(
    r"\bjson\b|\bplay(ing)? (the|this|a|my) (role|part)\b|\boutput limit\b"
    r'|[{,]\s*"(say|end)"\s*:',
    re.IGNORECASE,
)
# Identifiers are ASCII, and end where other letters begin: not every script has spaces.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
_NUMBER = re.compile(r"(?<![\w$€£.,@-])#?[A-Za-z]{0,4}[-_]?\d[\w-]*(?![\w@])", re.ASCII)


def out_of_part(text: str, dialogue: UserDialogue, heard: str) -> str | None:
    """What in a user's line can't be said by the user of this dialogue; None if nothing.

    Args:
        text: The line.
        dialogue: What was said before, and the scenario.
        heard: The agent's message that it answers, empty before the first.
    """
    return (
        _repeats(text, dialogue, heard)
        or _recites(text, dialogue.scenario)
        or _speaks_as_the_agent(text)
        or _speaks_of_the_play(text, dialogue, heard)
        or _contradicts(text, dialogue, heard)
    )


def words(text: str) -> list[str]:
    """A text's words, without case and punctuation."""
    return re.findall(r"[^\W_]+", text.casefold())


def _repeats(text: str, dialogue: UserDialogue, heard: str) -> str | None:
    said = words(text)
    if len(said) <= SHORT_LINE:
        return None
    if said == words(heard):
        return "it repeats what the agent said; answer it instead"
    own = [words(t) for side, t in dialogue.said if side == "user"]
    if said not in own:
        return None
    if words(heard) in [words(t) for side, t in dialogue.said if side == "agent"]:
        return None  # asked the same again
    which = "your opening" if said == own[0] else "an earlier message of yours"
    return f"it repeats {which} word for word; answer what the agent said last"


def _recites(text: str, scenario: Scenario) -> str | None:
    said = f" {' '.join(words(text))} "
    goal = [s for s in _sentences([scenario.goal]) if _SECOND_PERSON & set(s)]
    for sentence in (*goal, *_sentences((*scenario.instructions, *USER_RULES, AGAIN))):
        if len(sentence) >= SHORTEST_RECITAL and f" {' '.join(sentence)} " in said:
            return "it recites your instructions; say it as the customer would"
    return None


def _sentences(texts: Iterable[str]) -> list[list[str]]:
    return [words(sentence) for text in texts for sentence in _SENTENCE.split(text)]


def _speaks_as_the_agent(text: str) -> str | None:
    found = _AS_THE_AGENT.search(text)
    if found is None:
        return None
    return f"it speaks as the agent ({found[0].strip()!r}); you are the customer"


def _speaks_of_the_play(text: str, dialogue: UserDialogue, heard: str) -> str | None:
    found = _ABOUT_THE_PLAY.search(text)
    if found is None or found[0].casefold() in _known(dialogue, heard):
        return None
    return f"it speaks of how you are to answer ({found[0]!r}), which the customer doesn't know"


def _known(dialogue: UserDialogue, heard: str) -> str:
    """All that the user may have a word from, without case."""
    scenario = dialogue.scenario
    texts = (
        *scenario.facts.values(),
        scenario.goal,
        scenario.persona,
        *scenario.instructions,
        *(line for _, line in dialogue.said),
        heard,
    )
    return "\n".join(texts).casefold()


def _contradicts(text: str, dialogue: UserDialogue, heard: str) -> str | None:
    """A fact told differently: an identifier of a fact's shape that occurs nowhere else."""
    facts = dialogue.scenario.facts
    told = list(_told(unicodedata.normalize("NFKC", text), facts))
    known = unicodedata.normalize("NFKC", _known(dialogue, heard)) if told else ""
    for name, claimed in told:
        whole = re.escape(claimed.lstrip("#").casefold())
        if not re.search(rf"(?<!\w){whole}(?!\w)", known, re.ASCII):
            return f"it says {claimed!r}, but your {name.replace('_', ' ')} is {facts[name]!r}"
    return None


def _told(text: str, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a line says that may be meant as a fact, each with the fact's name."""
    found = [(claimed, shape_of(claimed)) for claimed in identifiers(text)]
    for name, value in facts.items():
        shapes = {shape_of(each) for each in identifiers(value)}
        yield from ((name, claimed) for claimed, shape in found if shape in shapes)
        if other := _another_value(text, name, value):
            yield name, other


def identifiers(text: str) -> list[str]:
    """What in a text names one particular thing: addresses of mail, numbers of orders, codes.

    Not sums of money, and not short numbers, which may count anything.
    """
    mails = _EMAIL.findall(text)
    rest = _EMAIL.sub(" ", text)
    numbers = [n.rstrip("-_") for n in _NUMBER.findall(rest)]
    return mails + [n for n in numbers if _is_particular(n)]


def _is_particular(number: str) -> bool:
    digits = sum(c.isdigit() for c in number)
    named = number[0] == "#" or number[0].isalpha()
    return digits >= (3 if named else 5)


def shape_of(identifier: str) -> str:
    """What kind of identifier it is: letters and digits by kind, the rest as it is."""
    if "@" in identifier:
        return "@"
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", identifier.lstrip("#")))


def _another_value(text: str, name: str, value: str) -> str | None:
    """What a line says that a named fact is ("my name is Bob"), if that is something else."""
    label = re.escape(name.replace("_", " "))
    found = re.search(
        rf"\bmy {label}(?:'s| is|:) (?:(?:mrs?|ms|dr)\.? )?(#?\w[\w@.+-]*)", text, re.IGNORECASE
    )
    told = found[1].lstrip("#").rstrip(".,-") if found else ""
    numbered = any(c.isdigit() for c in told)
    named = told[:1].isupper() and not any(c.isdigit() for c in value)
    if not (numbered or named):  # "my zip is on file", "my birthday is January 31"
        return None
    return None if _bare(told) in _bare(value) else told


def _bare(text: str) -> str:
    """A value's letters and digits: a phone number is the same with and without its dashes."""
    return re.sub(r"[\W_]", "", text).casefold()
