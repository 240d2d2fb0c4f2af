"""The auditor of conversations: unusual but honest ones are right, those against a rule wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentgym.envs.supportdesk.conduct import Conduct, _tells
from agentgym.envs.supportdesk.reference import Told
from agentgym.types import ToolCall, Turn

OPENING = [{"role": "user", "content": "I'm ann@x.org. Please cancel order W1001."}]


def said(text: str, answer: str) -> Turn:
    return Turn(
        index=0,
        message={"role": "assistant", "content": text},
        replies=({"role": "user", "content": answer},),
    )


def called(name: str, result: Any, **arguments: Any) -> Turn:
    call = ToolCall(id="c", name=name, arguments=arguments)
    reply = {"role": "tool", "tool_call_id": "c", "content": json.dumps(result)}
    return Turn(index=0, message={"role": "assistant"}, replies=(reply,), calls=(call,))


FOUND = called("find_customer_by_email", {"customer_id": "C1"}, email="ann@x.org")
CANCEL = called("cancel_order", {}, order_id="W1001", reason="no longer needed")
ASK = "I will cancel order W1001 and refund $20.00 to your card. Is that right?"


def agreed(answer: str, question: str = ASK, change: Turn = CANCEL) -> bool:
    return Conduct((FOUND, said(question, answer), change), opening=OPENING).every_change_was_agreed


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "Yes.",
            "Definitely!",
            "Of course.",
            "I confirm.",
            "Yup, do it",
            "That’s right",
            "Hi, yes",
        ),
        *(
            "Hi, yes",
            "Works for me",
            "I agree",
            "Please proceed",
            "No problem, go ahead",
            "Go ahead",
        ),
        *("Yes, I don't need it anymore.", "Sure, please don't hesitate.", "That would be great"),
        "Yes, please. I can't wait!",
    ],
)
def test_an_agreement_in_other_words_is_one(answer: str) -> None:
    assert agreed(answer)


@pytest.mark.parametrize(
    "answer",
    [
        *("No.", "Yes, but only the lamp", "OK?", "Sure, but what does it cost?", "That's wrong"),
        *("Ok, let me think", "Yes, if it is free", "Yes, wait", "Right, do not cancel it"),
        "Yes, not the other one, not now",
    ],
)
def test_a_reservation_is_no_agreement(answer: str) -> None:
    assert not agreed(answer)


def test_a_yes_to_something_else_is_no_agreement() -> None:
    """A yes covers only what the message named; to have named the order was enough."""
    assert not agreed("Yes.", question="May I look at order W1001?")
    assert not agreed("Yes.", question="I will change the address of order W1001. Right?")


def test_reading_another_customers_data_is_out_of_turn() -> None:
    """Service as it should be, and a look at somebody else's account on the side: it was right."""
    orders = called("get_order", {"order_id": "W1001", "customer_id": "C1"}, order_id="W1001")
    assert Conduct((FOUND, orders), opening=OPENING).identified == "C1"
    for other in (
        called("get_customer", {"customer_id": "C2"}, customer_id="C2"),
        called("get_order", {"order_id": "W2002", "customer_id": "C2"}, order_id="W2002"),
    ):
        assert Conduct((FOUND, orders, other), opening=OPENING).identified is None
    named = [{"role": "user", "content": "I'm ann@x.org, it's about W2002."}]
    asked = called("get_order", {"order_id": "W2002", "customer_id": "C2"}, order_id="W2002")
    assert Conduct((FOUND, asked), opening=named).identified == "C1"


@pytest.mark.parametrize(
    "text", ["$1,234.50", "USD 1,234.50", "1234.50$", "1,234.50 dollars", "US$1234.50"]
)
def test_an_amount_in_any_form_is_told(text: str) -> None:
    assert _tells(f"You get {text} back.", Told(amount=123450))


def test_a_figure_without_end_is_no_amount_and_breaks_nothing() -> None:
    """It was an OverflowError, and one such episode kept the whole evaluation from its result."""
    assert not _tells("You get $" + "9" * 400 + " back.", Told(amount=123450))
