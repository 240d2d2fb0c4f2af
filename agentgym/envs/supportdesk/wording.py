"""Reading what an agent told the customer: amounts, dates, refusals, claims of things done.

The verifier never asks whether a sentence is well put, only whether it holds what it had to, in any
of the usual spellings. What it looks for must stand where a person would notice it: a message that
pours out the whole order, or names every reason there is, tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from agentgym.envs.supportdesk.reference import Ground, Told
from agentgym.simulators.hearing import denies, names_any, plain

MOST_AMOUNTS = 4
"""Different amounts in a message, beyond which none of them counts as told."""
MOST_DAYS = 4
"""The same for dates."""
MOST_GROUNDS = 2
"""Reasons in a refusal, beyond which it gives none."""
MOST_GROUNDS_IN_ALL = 3
"""Reasons in a whole conversation, beyond which no refusal counts: whoever tries one after the
other until the customer accepts doesn't know."""
MOST_CHARACTERS = 1500
"""Length of a message beyond which it tells nothing."""

_WHO = ("customer", "person", "account", "profile")
_ISNT = ("not", "isn't")
_PLACES = (
    *("under", "on", "in", "linked to", "associated with", "part of", "registered under"),
    *("registered to", "connected to", "tied to", "attached to"),
)
_YOURS = ("your", "the account", "this account")
GROUNDS: Mapping[Ground, tuple[str, ...]] = {
    "shipped": (
        *("shipped", "already left", "left our", "left the warehouse", "on its way", "in transit"),
        *("dispatched", "with the carrier", "handed to the carrier", "been sent"),
    ),
    "return_window": (
        *("30 day", "30 calendar day", "thirty day", "thirty (30) day", "return window"),
        *("return period", "return deadline", "exchange window", "window for return"),
    ),
    "final_sale": ("final sale",),
    "other_customer": (
        *(f"{which} {who}" for which in ("another", "other", "different") for who in _WHO),
        *(f"{isnt} {place} {your}" for isnt in _ISNT for place in _PLACES for your in _YOURS),
        *("someone else", "somebody else", "doesn't belong to you", "does not belong to you"),
        *("not belong to your", "doesn't belong to your", "not match your", "doesn't match your"),
        *("not your order", "isn't your order", "not yours", "isn't yours", "account holder"),
        *("account owner", "not one of your", "isn't one of your"),
    ),
    "price_match": (
        *("price match", "match prices", "match the price", "match other", "match lower"),
        *("match competitor", "competitor", "other shop", "another shop", "other store"),
        *("another store", "retailer", "other seller", "another seller", "price adjustment"),
        *("price difference with other", "prices elsewhere", "lower price elsewhere"),
    ),
    "not_late": (
        *("5 day", "five day", "five (5) day", "promised date", "promised day"),
        *("promised delivery date", "not late enough"),
    ),
    "balance": (
        *("balance", "not enough", "isn't enough", "have enough", "insufficient", "sufficient"),
        *("cover", "enough funds", "enough money"),
    ),
    "stock": (
        *("out of stock", "in stock", "no stock", "sold out", "unavailable", "not available"),
        *("not currently available", "isn't available", "isn't currently available"),
    ),
}
"""Words by which a refusal gives its reason."""

PAYMENT_WORDS = ("pay", "payment", "paid", "paying", "charg")
"""Words that name a change of how an order is paid."""
THEIR_CARD = ("credit card", "your card")
"""What a customer's only card may be called."""
ORIGINAL_METHOD = (
    *("original payment", "original method", "original form of payment", "original card"),
    *("payment method of the order", "order's payment method", "same payment method"),
)
"""What the payment method with which an order was paid may be called."""

_AMOUNT = re.compile(
    r"(?:\$|usd)\s?(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))?(?!\.?\d)"
    r"|(?<![\d.,])(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))?\s?(?:\$|usd|dollars?)"
)
_ISO_DAY = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b")
_US_DAY = re.compile(r"\b(\d{1,2})/(\d{1,2})(?:/(\d{2,4}))?\b")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH_DAY = re.compile(rf"\b({'|'.join(_MONTHS)})[a-z]*\.? (\d{{1,2}})(?:st|nd|rd|th)?\b")
_DAY_MONTH = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({'|'.join(_MONTHS)})[a-z]*\b")

_DONE = r"(?:has|have|i've|is|are|was|were|just|now|successfully|been|i) (?:\w+ ){0,3}?"
CLAIMS: Mapping[str, re.Pattern[str]] = {
    "cancelled": re.compile(rf"\b{_DONE}cancel+ed\b"),
    "readdressed": re.compile(
        rf"\baddress (?:\w+ ){{0,6}}?{_DONE}(?:updated|changed)\b"
        rf"|\b{_DONE}(?:updated|changed) (?:\w+ ){{0,4}}?(?:address)\b"
    ),
    "returned": re.compile(rf"\breturn (?:\w+ ){{0,6}}?{_DONE}(?:set up|processed|initiated)\b"),
    "refunded": re.compile(rf"\b{_DONE}refunded\b|\brefund (?:\S+ ){{0,6}}?{_DONE}issued\b"),
    "exchanged": re.compile(
        rf"\b{_DONE}exchanged\b|\bexchange (?:\w+ ){{0,6}}?{_DONE}(?:set up|processed|arranged)\b"
    ),
    "credited": re.compile(rf"\bcredit (?:\S+ ){{0,6}}?{_DONE}(?:issued|added|applied)\b"),
}
"""Kinds of things an agent may say were done; the record knows whether they were."""
_NOT_YET = re.compile(
    r"\b(not|n't|i'd|i'll|we'd|we'll|then|going to|once|after|when|if|until|before|cannot|be"
    r"|being|would|will|only|usually|normally|typically|generally|always|never|policy|rules?|can|could|may|might|must|should)\b"
)

_PRESENT = re.compile(r"\b(is|are)\b")
_PAST = re.compile(r"\b(has|have|i've|was|were|been|just|now)\b")


def amounts_in(text: str) -> set[int]:
    """Every amount of money in a text, in cents: `$1,234.50`, `1234.5 USD`, `12 dollars`."""
    found = set()
    for match in _AMOUNT.finditer(plain(text)):
        whole, part = (match[1], match[2]) if match[1] else (match[3], match[4])
        found.add(int(whole.replace(",", "")) * 100 + int((part or "0").ljust(2, "0")))
    return found


def days_in(text: str, *, year: int) -> set[str]:
    """Every date in a text, as YYYY-MM-DD; one without a year is of `year`."""
    text = plain(text)
    parts = [(int(m[1]), int(m[2]), int(m[3])) for m in _ISO_DAY.finditer(text)]
    for match in _US_DAY.finditer(text):
        given = int(match[3] or year)
        parts.append((given + 2000 if given < 100 else given, int(match[1]), int(match[2])))
    named = [(m[1], m[2]) for m in _MONTH_DAY.finditer(text)]
    named += [(m[2], m[1]) for m in _DAY_MONTH.finditer(text)]
    parts += [(year, _MONTHS.index(month) + 1, int(number)) for month, number in named]
    found = set()
    for numbers in parts:
        try:
            found.add(date(*numbers).isoformat())
        except ValueError:  # 99/99 is no date
            continue
    return found


def refuses_for(text: str) -> set[Ground]:
    """The reasons for which a text refuses something; none if it refuses nothing."""
    text = plain(text)
    if not denies(text):
        return set()
    return {ground for ground, words in GROUNDS.items() if names_any(text, words)}


def tells(text: str, told: Told) -> bool:
    """Whether one message tells one thing."""
    if len(text) > MOST_CHARACTERS:
        return False
    if told.amount is not None:
        amounts = amounts_in(text)
        return told.amount in amounts and len(amounts) <= MOST_AMOUNTS
    if told.day is not None:
        days = days_in(text, year=int(told.day[:4]))
        return told.day in days and len(days) <= MOST_DAYS
    grounds = refuses_for(text)
    return told.refusal in grounds and len(grounds) <= MOST_GROUNDS


def claims_in(text: str) -> set[str]:
    """What a text says was done, by the keys of `CLAIMS`; plans and conditions aren't claims.

    In a text that asks something, "it is refunded" is part of a plan.
    """
    found = set()
    asks = "?" in text
    for sentence in re.split(r"(?<=[.!?])\s", plain(text)):
        if "?" in sentence or _NOT_YET.search(sentence.replace("n't", " n't")):
            continue
        if asks and _PRESENT.search(sentence) and not _PAST.search(sentence):
            continue
        found |= {kind for kind, pattern in CLAIMS.items() if pattern.search(sentence)}
    return found
