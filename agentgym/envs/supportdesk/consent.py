"""Whether the customer agreed to a change: decided from the words exchanged, by a program.

A change is agreed to if the customer's last message is a yes, and the message it answers named the
change: the order, the action, and what the action is done to (see `required_words`). Both are the
texts that were really exchanged, so it makes no difference whether the customer is a script, a
model or a person, and nothing an agent claims or puts into a call's arguments counts.

A yes holds until the agent asks something else or the customer takes it back, so several changes
may follow one message that named them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agentgym.envs.supportdesk.store import Store
from agentgym.envs.supportdesk.wording import (
    ORIGINAL_METHOD,
    PAYMENT_WORDS,
    THEIR_CARD,
    amounts_in,
)
from agentgym.simulators.hearing import names_any, plain

_YES = re.compile(
    r"^\W*((hi|hello|great|perfect|good|thanks|thank you|oh|ah|well|um)\b\W*)*"
    r"(yes|yeah|yep|yup|sure|ok|okay|correct|right|absolutely|definitely|of course|go ahead"
    r"|please do(?! (tell|give|let|not))|please go ahead|please proceed|do it|confirmed"
    r"|agreed|accepted|i (do )?(confirm|agree|accept)|i('d| would) (accept|agree)"
    r"|i('d| would) like that"
    r"|alright|all right|fine|works for me|let's do (it|that|this)"
    r"|you have my (ok|okay|yes|permission|consent|approval|go-ahead)"
    r"|that('s| is| sounds| looks| would be)?( all)? (right|correct|fine|good|great|ok|okay"
    r"|perfect|works)|sounds (good|great|fine|right)|looks (good|great|fine|right)|that works)\b"
    r"(?!\W*(\?|only\b|if\b|once\b|after\b|when\b|later\b|me if\b|now i\b|for the\b))"
)
_ASKS_BACK = re.compile(
    r"^\W*(ok|okay|sure|right|correct|fine|alright|all right|great|good)\b[^.!]*\?"
    r"|\b(a|one|another) question\b|\b(let me|i('ll| will| have to| need to)) think\b"
    r"|\bi don't know\b"
)
_TAKEN_BACK = re.compile(
    r"\b(no(?! (longer|more|problem|worries|issues?|hurry|rush|need|doubt|other|further)\b)"
    r"|not (yet|now|that|this|the|quite|sure|really|so|until)|never ?mind|wait|hold on|instead"
    r"|rather|but|except|unless|only if|stop|before (you|i|we)|change of mind"
    r"|changed my mind"
    r"|(do|does|did|can|should|would)( not|n't) (do|cancel|change|return|exchange|send|go|proceed"
    r"|agree|think|want (that|this|you|to(?! (keep|have|wait)\b))))\b"
    r"|(?:^|[.,;:!?-]) ?actually\b|\bactually,"
)
_ASKS = re.compile(r"\?|\b(please confirm|let me know|tell me|(say|reply|answer|type) yes)\b")
"""What an agent's line has that asks the customer something."""
_WITHDRAWN = re.compile(
    r"^\W*no\b(?! (hurry|rush|problem|worries))"
    r"|\b(not (yet|now|so fast)|never ?mind|(?<!i'll )wait|hold on|instead|rather|actually|stop"
    r"|before (you|i|we)|change of mind|changed my mind"
    r"|(do|does|did|should|would)( not|n't) (do|cancel|change|return|exchange|send|go|proceed"
    r"|agree))\b"
)
"""What a customer's line has that takes back an earlier yes."""

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "cancel_order": ("cancel",),
    "change_shipping_address": ("address", "ship", "deliver"),
    "change_payment_method": PAYMENT_WORDS,
    "change_items": ("chang", "swap", "switch", "replac", "exchang", "modif", "updat"),
    "return_items": ("return", "refund", "send back", "take back"),
    "exchange_items": ("exchang", "chang", "swap", "switch", "replac", "send you", "send the"),
    "issue_store_credit": ("credit",),
}
"""Words one of which names the action of a tool."""

Words = list[Sequence[str]]


def is_yes(text: str) -> bool:
    """Whether a message is an agreement without reservation."""
    text = plain(text)
    return bool(_YES.search(text)) and not (_TAKEN_BACK.search(text) or _ASKS_BACK.search(text))


def agreed_to(
    said: Sequence[tuple[Literal["agent", "user"], str]], words: Words, amount: int | None
) -> bool:
    """Whether a yes to a message that named a change still holds.

    It does until the agent asks something else or the customer takes it back; what an agent only
    announces ("thank you, I'll do that now") changes nothing.

    Args:
        said: The dialogue so far.
        words: Groups of words; the message must have one of each.
        amount: Cents that the message must name too.
    """
    for at in range(len(said) - 2, -1, -2):
        (speaker, line), (listener, answer) = said[at : at + 2]
        if (speaker, listener) != ("agent", "user"):
            return False
        proposal = plain(line)
        named = all(names_any(proposal, group) for group in words)
        named = named and (amount is None or amount in amounts_in(proposal))
        if named and is_yes(answer):
            return True
        if _ASKS.search(proposal) or _WITHDRAWN.search(plain(answer)):
            return False
    return False


def required_words(store: Store, tool: str, arguments: Mapping[str, Any]) -> Words:
    """What a message must name for a yes to cover this change; before it is made."""
    words: Words = [[arguments["order_id"]], ACTIONS[tool]]
    return words + _MORE.get(tool, _nothing)(store, arguments)


def _nothing(store: Store, arguments: Mapping[str, Any]) -> Words:
    return []


def _address(store: Store, arguments: Mapping[str, Any]) -> Words:
    start = " ".join(arguments["street"].split()[:2])
    return [[start], [arguments["zip_code"]]]


def _method(store: Store, arguments: Mapping[str, Any]) -> Words:
    method_id = arguments["method_id"]
    row = store.one("SELECT * FROM payment_methods WHERE payment_method_id = ?", method_id)
    if row is None:
        return []
    words = {
        "credit_card": (row["label"][-4:], row["label"].split()[0], *THEIR_CARD),
        "paypal": ("paypal",),
        "gift_card": ("gift card", "giftcard"),
    }[row["kind"]]
    order = store.one("SELECT * FROM orders WHERE order_id = ?", arguments["order_id"])
    if order is not None and order["payment_method_id"] == method_id:
        words += ORIGINAL_METHOD
    return [[method_id, *words]]


def _items(store: Store, arguments: Mapping[str, Any]) -> Words:
    words: Words = []
    for item_id in arguments["item_ids"]:
        row = store.one(
            "SELECT p.name FROM order_items i JOIN variants v ON v.variant_id = i.variant_id"
            " JOIN products p ON p.product_id = v.product_id WHERE i.item_id = ?",
            item_id,
        )
        words.append([item_id, *([row["name"]] if row else [])])
    return words


def _variants(store: Store, arguments: Mapping[str, Any]) -> Words:
    words = _items(store, arguments)
    for item_id, variant_id in zip(arguments["item_ids"], arguments["variant_ids"], strict=False):
        new = store.one("SELECT * FROM variants WHERE variant_id = ?", variant_id)
        old = store.one(
            "SELECT v.options, i.price_cents FROM order_items i"
            " JOIN variants v ON v.variant_id = i.variant_id WHERE i.item_id = ?",
            item_id,
        )
        if new and old:
            options, before = json.loads(new["options"]), json.loads(old["options"])
            values = [v for key, v in options.items() if before.get(key) != v]
            words += [[variant_id, value] for value in values]
            if new["price_cents"] != old["price_cents"] and "method_id" in arguments:
                words += _method(store, arguments)
    return words


_MORE: Mapping[str, Callable[[Store, Mapping[str, Any]], Words]] = {
    "change_shipping_address": _address,
    "change_payment_method": _method,
    "change_items": _variants,
    "return_items": lambda store, given: _items(store, given) + _method(store, given),
    "exchange_items": _variants,
}
