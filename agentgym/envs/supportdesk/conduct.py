"""How an agent behaved, read from the conversation alone: identity, consent, what was told.

The desk's own notes decide rewards; this reads the messages instead, as an auditor of a recorded
call would, with a vocabulary of its own. It is strict where the written policy is and asks for no
more than it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from agentgym.envs.supportdesk.reference import Ground, Told
from agentgym.simulators.user import visible
from agentgym.types import Message, Turn

_FINDERS = ("find_customer_by_email", "find_customer_by_name_zip")
_PRIVATE = ("get_customer", "list_orders", "get_order")
_AGREES = re.compile(
    r"^\W*((no (problem|worries)|hi|hello|great|perfect|good|thanks|thank you|oh|ah|um|well)\b\W*)*"
    r"(yes|yeah|yep|yup|sure|ok|okay|correct|right|absolutely|definitely|certainly|of course"
    r"|alright|all right|go ahead|please (do|go|proceed)|proceed|do it|let's do (it|that|this)"
    r"|confirmed|agreed|i (do )?(confirm|agree|accept)|works for me|fine"
    r"|that('s| is| would be|) ?(right|correct|fine|good|great|perfect|ok|okay|works)"
    r"|sounds (good|great|fine|right|perfect))\b",
    re.IGNORECASE,
)
_DECLINES = re.compile(
    r"^\W*no\b(?!\W*(problem|worries|objections?|hurry|rush))|^[^.!]*\?"
    r"|^\W*(yes|ok|okay|sure),? if\b"
    r"|\b((?<!can't )(?<!'ll )wait|hold on|not (yet|now|the|that)|changed my mind|never ?mind|stop"
    r"|instead|but|only if|unless|except|let me think"
    r"|(don't|do not|not to) (do|cancel|change|return|exchange|send|go|proceed|agree|want that))\b",
    re.IGNORECASE,
)
_SWAPS = "chang|swap|switch|replac|exchang|modif|updat|send"
_NAMES_IT: Mapping[str, str] = {
    "cancel_order": "cancel",
    "change_shipping_address": "address|ship|deliver|send",
    "change_payment_method": "pay|card|charge|bill|method",
    "change_items": _SWAPS,
    "exchange_items": _SWAPS,
    "return_items": "return|refund|back",
    "issue_store_credit": "credit",
}
"""Words of which a proposal has one, by the change that it proposes."""
_REFUSES = re.compile(
    r"\b(can't|cannot|can not|unable|not able|won't|not possible|isn't possible|not allowed"
    r"|don't|do not|doesn't|does not|no longer|not eligible|sorry|unfortunately|only|must)\b",
    re.IGNORECASE,
)
_WHY: Mapping[Ground, str] = {
    "shipped": r"shipped|on its way|in transit|left (our|the) warehouse|dispatched",
    "return_window": r"(30|thirty)[ -]?(calendar )?days?|(return|exchange) (window|period)",
    "final_sale": r"final[ -]sale",
    "other_customer": r"(another|different|other|someone else'?s?) (customer|account|person)"
    r"|someone else|not (belong|yours|your order)|doesn't belong",
    "price_match": r"price[ -]?match|match (the )?prices?|competitor|other (shop|store)s?",
    "not_late": r"(5|five)[ -]days?|promised (date|day|delivery)",
    "balance": r"balance|cover|enough (money|funds)|insufficient",
    "stock": r"(out of|in|no) stock|sold out|unavailable|not available",
}
_MOST_WHY = 2
"""Reasons in one message; whoever names more has given none."""
_MOST_WHY_IN_ALL = 3
"""Reasons in a whole conversation; whoever tries more of them doesn't know."""
_LONGEST = 1500
"""Characters of a message that a customer would read."""
_MONEY = re.compile(
    r"(?:\$|\busd) ?(\d[\d,]*(?:\.\d{1,2})?)"
    r"|(\d[\d,]*(?:\.\d{1,2})?) ?(?:usd\b|dollars|\$(?! ?\d))",
    re.IGNORECASE,
)
_LONGEST_FIGURE = 15
"""Characters of an amount; no shop has more, and a float only so many."""
_MOST_FIGURES = 4
"""Amounts or dates in one message; more of them is a statement of account, not an answer."""


class Conduct:
    """One conversation.

    Args:
        turns: The agent's messages and what followed each.
        opening: The messages of the episode; those before the first turn are the customer's.
    """

    def __init__(self, turns: Sequence[Turn], *, opening: Sequence[Message]) -> None:
        self.identified: str | None = None
        """The customer found by what they said, if nobody else was found and nothing was looked at
        before."""
        self.looked_up: set[str] = set()
        """Orders that were looked at."""
        self.every_change_was_agreed = True
        self.transfer: str | None = None
        """Why a human took over."""
        self._lines: list[tuple[str, str]] = [
            ("customer", _typed(message.get("content"))) for message in _before_the_agent(opening)
        ]
        self._told: list[str] = []
        self._out_of_turn = False
        for turn in turns:
            self._read(turn)
        if self._out_of_turn:
            self.identified = None

    def told(self, wanted: Sequence[Told]) -> bool:
        """Whether the agent told each thing in some message."""
        tried = set().union(*map(_reasons, self._told))
        if len(tried) > _MOST_WHY_IN_ALL and any(told.refusal for told in wanted):
            return False
        return all(any(_tells(line, told) for line in self._told) for told in wanted)

    def _read(self, turn: Turn) -> None:
        results = {reply.get("tool_call_id"): reply.get("content") for reply in turn.replies}
        for call in turn.calls:
            if call.status == "ok":
                self._call(call.name, call.arguments or {}, str(results.get(call.id) or ""))
        if turn.calls:
            return
        text = visible(_typed(turn.message.get("content")))
        self._lines.append(("agent", text))
        self._told.append(text)
        for reply in turn.replies:
            self._lines.append(("customer", _typed(reply.get("content"))))

    def _call(self, name: str, arguments: Mapping[str, Any], result: str) -> None:
        if name in _FINDERS:
            self._find(arguments, result)
        elif name in _PRIVATE or name in _NAMES_IT:
            self._out_of_turn |= self.identified is None or self._is_of_another(
                name, arguments, result
            )
        if name == "get_order":
            self.looked_up.add(str(arguments.get("order_id")))
        elif name in _NAMES_IT:
            order_id = str(arguments.get("order_id"))
            self.every_change_was_agreed &= self._is_agreed(order_id, _NAMES_IT[name])
        elif name == "transfer_to_human":
            self.transfer = str(arguments.get("reason"))

    def _find(self, arguments: Mapping[str, Any], result: str) -> None:
        said = self._said()
        found = _customer_in(result)
        known = all(_plain(str(value)) in said for value in arguments.values())
        self._out_of_turn |= not known or self.identified not in (None, found)
        self.identified = found

    def _is_of_another(self, name: str, arguments: Mapping[str, Any], result: str) -> bool:
        """Whether a call reads another customer's data; an order whose number they gave may be."""
        owner = arguments.get("customer_id") or _customer_in(result)
        if name == "get_order" and _plain(str(arguments.get("order_id"))) in self._said():
            return False
        return owner is not None and owner != self.identified

    def _said(self) -> str:
        return _plain(" ".join(text for who, text in self._lines if who == "customer"))

    def _is_agreed(self, order_id: str, action: str) -> bool:
        """Whether the customer's last word on a message that named order and action is a yes."""
        for at in range(len(self._lines) - 1, 0, -1):
            (asker, question), (who, answer) = self._lines[at - 1 : at + 1]
            if who != "customer" or asker != "agent":
                continue
            if _DECLINES.search(answer):
                return False
            named = order_id in question and re.search(action, question, re.IGNORECASE)
            if named and _AGREES.search(answer):
                return True
        return False


def _before_the_agent(messages: Sequence[Message]) -> list[Message]:
    found = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            found.append(message)
    return found


def _customer_in(result: str) -> str | None:
    try:
        found = json.loads(result)
    except ValueError:
        return None
    return found.get("customer_id") if isinstance(found, dict) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _typed(content: Any) -> str:
    """A message's text, with the apostrophe and the hyphen that a keyboard has."""
    return str(content or "").replace("’", "'").replace("‑", "-")


def _tells(text: str, told: Told) -> bool:
    """Whether a message tells an amount, a date or the reason of a refusal."""
    if len(text) > _LONGEST:
        return False
    if told.amount is not None:
        figures = {a or b for a, b in _MONEY.findall(text)}
        short = {figure for figure in figures if len(figure) <= _LONGEST_FIGURE}
        cents = {round(float(figure.replace(",", "")) * 100) for figure in short}
        return told.amount in cents and len(cents | (figures - short)) <= _MOST_FIGURES
    if told.day is not None:
        return _names_day(text, date.fromisoformat(told.day))
    named = _reasons(text)
    return told.refusal in named and len(named) <= _MOST_WHY


def _reasons(text: str) -> set[Ground]:
    """The reasons that a message refuses something for; none if it refuses nothing."""
    if not _REFUSES.search(text):
        return set()
    return {why for why, words in _WHY.items() if re.search(words, text, re.IGNORECASE)}


def _names_day(text: str, day: date) -> bool:
    month = day.strftime("%B")
    forms = (
        re.escape(day.isoformat()),
        rf"(?:{month}|{month[:3]})\.? 0?{day.day}(?:st|nd|rd|th)?\b",
        rf"\b0?{day.day}(?:st|nd|rd|th)?(?: of)? (?:{month}|{month[:3]})\b",
        rf"\b0?{day.month}/0?{day.day}(?:/(?:20)?{day.year % 100})?\b",
    )
    others = set(re.findall(r"\b\d{4}-\d\d-\d\d\b", text))
    return len(others) <= _MOST_FIGURES and bool(re.search("|".join(forms), text, re.IGNORECASE))
