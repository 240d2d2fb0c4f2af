"""What a conversation shows a policy: both sides' lines, what tools answered, what was wished.

For policies without a model. Nothing here looks at the environment: all of it is read from the
messages, as a model would have to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from agentgym.envs.supportdesk.reference import APPLY
from agentgym.types import Message

Wish: TypeAlias = Literal[
    "fraud",
    "safety",
    "lost",
    "wrong_item",
    "price_match",
    "credit",
    "refund_status",
    "spending",
    "address",
    "payment",
    "exchange",
    "return",
    "cancel",
]

_PATTERNS: tuple[tuple[Wish, str], ...] = (
    ("fraud", r"never placed|didn't place|hacked"),
    ("safety", r"injured|cut my hand|skin burn|made me bleed"),
    ("lost", r"never arrived|still waiting|where is my parcel"),
    ("wrong_item", r"\bwrong\b"),
    ("price_match", r"cheaper"),
    ("credit", r"compensat"),
    ("refund_status", r"was refunded|status of the refund"),
    ("spending", r"spend in total|cost me in total"),
    ("address", r"(?<!email )address|\bmoved\b"),
    ("payment", r"\bpay\b|payment|charge .* to my|(please use|take) my paypal"),
    ("exchange", r"exchange|change the|switch the"),
    ("return", r"\breturn\b|send back"),
    ("cancel", r"\bcancel\b"),
)
_WISHES = tuple((wish, re.compile(pattern, re.IGNORECASE)) for wish, pattern in _PATTERNS)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w+")
_NAME = re.compile(r"(?:name is|I'm|It's|That would be) ([A-Z][a-z]+) ([A-Z][a-z]+)")
_ZIP = re.compile(r"\bzip code(?: is)? (\d{5})\b|\bZip code (\d{5})\b")
_ORDER = re.compile(r"\bW\d{7}\b")
_ADDRESS = re.compile(r"(\d+ [\w ]+?), ([\w ]+), ([A-Z]{2}) (\d{5})")
_WRITES = frozenset(APPLY)


class View:
    """A conversation, read.

    Args:
        messages: From the system prompt to what the policy is to answer.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.lines: list[tuple[str, str]] = []
        self.customer_id: str | None = None
        self.profile: dict[str, Any] | None = None
        self.orders: dict[str, dict[str, Any]] = {}
        self.products: dict[str, dict[str, Any]] = {}
        self.tried: set[str] = set()
        self.several = False
        self._done: list[tuple[int, str, dict[str, Any]]] = []
        self._called: set[tuple[str, str]] = set()
        calls: dict[str, tuple[str, dict[str, Any]]] = {}
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                calls[call["id"]] = (function["name"], json.loads(function["arguments"]))
            text = message.get("content") or ""
            if message["role"] == "tool":
                self._read_result(*calls[message["tool_call_id"]], text)
            elif message["role"] == "user" or not message.get("tool_calls"):
                self.lines.append((message["role"], text))
        self.wish, self._since = self._latest_wish()

    def _read_result(self, name: str, arguments: dict[str, Any], text: str) -> None:
        self._called.add((name, str(arguments.get("order_id"))))
        if name.startswith("find_customer"):
            self.tried.add(json.dumps(arguments, sort_keys=True))
        if text.startswith("Error"):
            self.several |= "customers have that name" in text
            return
        if name in _WRITES:
            self._done.append((len(self.lines), name, arguments))
        elif name.startswith("find_customer"):
            self.customer_id = json.loads(text)["customer_id"]
        elif name == "get_customer":
            self.profile = json.loads(text)
        elif name == "get_order":
            self.orders[arguments["order_id"]] = json.loads(text)
        elif name == "get_product":
            self.products[arguments["product_id"]] = json.loads(text)

    def _latest_wish(self) -> tuple[Wish | None, int]:
        """What the customer wants last, and the line in which they began to want it."""
        wish: Wish | None = None
        since = 0
        for index, (role, text) in enumerate(self.lines):
            if role != "user":
                continue
            found = next((w for w, pattern in _WISHES if pattern.search(text)), None)
            if found is not None and found != wish:
                wish, since = found, index
        return wish, since

    @property
    def last(self) -> str:
        """What the customer said last."""
        return next((text for role, text in reversed(self.lines) if role == "user"), "")

    @property
    def last_said(self) -> str:
        """What the policy said last."""
        return next((text for role, text in reversed(self.lines) if role == "assistant"), "")

    def said(self, *, of_wish: bool = True) -> list[str]:
        """The customer's lines, those about the present wish or all."""
        start = self._since if of_wish else 0
        return [text for role, text in self.lines[start:] if role == "user"]

    def was_done(self, tool: str, arguments: dict[str, Any]) -> bool:
        """Whether a change was made for the present wish."""
        return any(
            (name, given) == (tool, arguments) and at > self._since
            for at, name, given in self._done
        )

    def has_done(self, tool: str, order_id: str) -> bool:
        """Whether the tool was called for an order, well or not."""
        return (tool, order_id) in self._called

    # --- what the customer told ---------------------------------------------------------------

    @property
    def email(self) -> str | None:
        """Their email address."""
        found = _EMAIL.findall(" ".join(self.said(of_wish=False)))
        return found[-1].rstrip(".") if found else None

    @property
    def name_and_zip(self) -> tuple[str, str, str] | None:
        """First name, last name and zip code."""
        text = " ".join(self.said(of_wish=False))
        name, zip_code = _NAME.search(text), _ZIP.search(text)
        return (name[1], name[2], zip_code[1] or zip_code[2]) if name and zip_code else None

    @property
    def order_ids(self) -> list[str]:
        """Orders named for the present wish, or else before it."""
        for of_wish in (True, False):
            found = _ORDER.findall(" ".join(self.said(of_wish=of_wish)))
            if found:
                return list(dict.fromkeys(found))
        return []

    @property
    def address(self) -> dict[str, str] | None:
        """The address they gave for the present wish."""
        found = _ADDRESS.findall(" ".join(self.said()))
        return (
            dict(zip(("street", "city", "state", "zip_code"), found[-1], strict=True))
            if found
            else None
        )


def has_word(text: str, word: str) -> bool:
    """Whether a text has a word, or several in a row, in upper or lower case."""
    return bool(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))
