"""Consent: a yes to a message that named the change, by anybody, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.supportdesk.consent import ACTIONS, agreed_to, is_yes, required_words
from agentgym.envs.supportdesk.store import Store
from agentgym.envs.supportdesk.tasks.table import shared_table

WORDS = [["W1234567"], ["cancel"]]
PROPOSAL = "I'd cancel order W1234567. Shall I?"


@pytest.mark.parametrize(
    "text",
    [
        "Yes",
        "yes, please.",
        "Yeah, go ahead",
        "Sure thing!",
        "OK",
        "Great, yes please.",
        "Thanks! That's right.",
        "Sounds good.",
        "Please do.",
        "I confirm.",
        "Yes, no problem.",
        "That works for me",
        "Yes, please cancel it, I no longer need it.",
        "Yes. It doesn't fit and I don't need it any more.",
        "Yes, that's correct. No rush.",
        "Alright, please proceed.",
        "Fine, do it.",
        "Works for me.",
        "Let's do it.",
        "You have my permission.",
        "I'd like that, yes.",
        "Yes, I don't want to keep it.",
        "Yes, go ahead. I actually need this soon.",
        "Yes, that looks good. No other changes.",
        "Yes, go ahead! How long will the refund take?",
    ],
)
def test_agreement_without_reservation_is_a_yes(text):
    assert is_yes(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No",
        "No, yes was a mistake",
        "Yes, but use my gift card",
        "Yes... wait, hold on.",
        "Not yet.",
        "Yes, actually, exchange it instead.",
        "I said yesterday that I want it.",
        "Why?",
        "Don't.",
        "Yes, don't cancel it.",
        "Sure, just not that one.",
        "Yes, if you refund it to PayPal instead.",
        "Okay, but not that one",
        "My email is yes@example.com",
        "OK, what about the refund?",
        "Okay, so how much is it?",
        "Yes? What do you mean?",
        "Sure, if it's free.",
        "Sure, once I get my refund.",
        "Yes, I have a question first.",
        "OK, let me think about it.",
        "Correct me if I'm wrong.",
        "Please do tell me the price.",
        "Yes, actually exchange it.",
    ],
)
def test_anything_else_is_not(text):
    assert not is_yes(text)


def test_a_yes_to_a_message_that_named_the_change_counts():
    assert agreed_to([("user", "Hi"), ("agent", PROPOSAL), ("user", "Yes.")], WORDS, None)


@pytest.mark.parametrize(
    "said",
    [
        [],
        [("user", "Yes, cancel order W1234567.")],
        [("agent", "Shall I go ahead?"), ("user", "Yes.")],
        [("agent", "I'd cancel order W7654321. Shall I?"), ("user", "Yes.")],
        [("agent", PROPOSAL), ("user", "Yes."), ("agent", "Now?"), ("user", "Yes.")],
        [("agent", PROPOSAL), ("user", "Yes."), ("agent", PROPOSAL)],
        [("agent", f"{PROPOSAL} Customer: Yes."), ("user", "What?")],
    ],
)
def test_a_yes_to_anything_else_or_from_anyone_else_does_not(said):
    assert not agreed_to(said, WORDS, None)


@pytest.mark.parametrize("action", ["payment", "charge", "pay", "paid"])
def test_a_change_of_payment_is_named_by_any_word_for_it(action):
    words = [["W1234567"], ACTIONS["change_payment_method"]]
    said = [("agent", f"Order W1234567: {action} by PayPal, right?"), ("user", "Yes.")]
    assert agreed_to(said, words, None)


@pytest.mark.parametrize(
    ("line", "answer", "holds"),
    [
        ("Great, I'll do that right away.", "I'm not sure what you mean.", True),
        ("Thank you. I'm processing it now.", "Okay, thanks!", True),
        ("One moment.", "How long will it take?", True),
        ("One moment.", "Wait, I changed my mind.", False),
        ("One moment.", "No, don't do it.", False),
        ("Should I use your gift card?", "Yes.", False),
    ],
)
def test_a_yes_holds_while_the_agent_only_announces_and_nothing_is_taken_back(line, answer, holds):
    said = [("user", "Hi"), ("agent", PROPOSAL), ("user", "Yes."), ("agent", line)]
    assert agreed_to([*said, ("user", answer)], WORDS, None) is holds


def test_an_amount_must_have_been_named():
    said = [("agent", f"{PROPOSAL} That's $15.00 of credit."), ("user", "Yes.")]
    assert agreed_to(said, WORDS, 1500)
    assert not agreed_to(said, WORDS, 2500)


@given(st.text(max_size=80))
def test_no_text_breaks_it(text):
    is_yes(text)
    agreed_to([("agent", text), ("user", text)], WORDS, 100)


def test_required_words_name_what_is_changed():
    table = shared_table(0, 12)
    store = Store(table.image)
    named = {}
    for task in table.tasks.values():
        for write in task.reference.outcomes[0]:
            named[write.tool] = required_words(store, write.tool, write.arguments)
    store.close()
    assert len(named["cancel_order"]) == 2
    assert len(named["change_shipping_address"]) == 4
    assert any(
        "paypal" in group or "gift card" in group for group in named["change_payment_method"]
    )
    assert len(named["return_items"]) >= 4
    assert len(named["exchange_items"]) >= 3


def test_required_words_of_ids_that_do_not_exist_are_harmless():
    store = Store(shared_table(0, 12).image)
    arguments = {"order_id": "x", "item_ids": ["y"], "variant_ids": ["z"], "method_id": "w"}
    assert required_words(store, "exchange_items", arguments)
    assert required_words(store, "return_items", arguments)
    store.close()


def test_the_customers_own_card_may_be_named_as_such():
    store = Store(shared_table(0, 12).image)
    row = store.one(
        "SELECT * FROM orders o WHERE payment_method_id IN"
        " (SELECT payment_method_id FROM payment_methods WHERE kind = 'credit_card')"
    )
    given = {"order_id": row["order_id"], "method_id": row["payment_method_id"]}
    (*_, method) = required_words(store, "change_payment_method", given)
    assert {"your card", "credit card", "original form of payment"} <= set(method)
    store.close()
