"""What counts as told: amounts, dates, refusals and claims in any usual spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.supportdesk.reference import Told
from agentgym.envs.supportdesk.wording import (
    MOST_AMOUNTS,
    amounts_in,
    claims_in,
    days_in,
    refuses_for,
    tells,
)


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        ("It was $1,234.50.", {123450}),
        ("It was **$1234.5**", {123450}),
        ("USD 12", {1200}),
        ("12.05 USD", {1205}),
        ("1,000 dollars", {100000}),
        ("$ 7.00, then $8", {700, 800}),
        ("order 12345 of 2025-06-30", set()),
        ("$12.345", set()),
        ("12.99", set()),
    ],
)
def test_amounts_are_read_in_every_usual_form(text, cents):
    assert amounts_in(text) == cents


@given(st.integers(min_value=0, max_value=10**8))
def test_an_amount_written_as_money_is_read_back(cents):
    assert amounts_in(f"It is ${cents / 100:,.2f}, all told.") == {cents}


@pytest.mark.parametrize(
    "text",
    ["2025-06-03", "June 3", "june 3rd, 2025", "3 June", "the 3rd of June", "6/3/2025", "6/3/25"],
)
def test_dates_are_read_in_every_usual_form(text):
    assert days_in(f"It went out on {text}.", year=2025) == {"2025-06-03"}


def test_a_date_that_does_not_exist_is_none():
    assert days_in("99/99 and 2025-02-30", year=2025) == set()


@pytest.mark.parametrize(
    ("text", "grounds"),
    [
        ("I'm sorry, it was already shipped.", {"shipped"}),
        ("I can’t take it back after 30 days.", {"return_window"}),
        ("Final-sale items aren't returnable.", {"final_sale"}),
        ("That order belongs to another customer, so I cannot help.", {"other_customer"}),
        ("We do not price match.", {"price_match"}),
        ("Unfortunately we can't match competitors' prices.", {"price_match"}),
        ("We don't offer price matching.", {"price_match"}),
        ("Sorry, order W1 is not associated with your account.", {"other_customer"}),
        ("I can't: it's past our 30-day limit.", {"return_window"}),
        ("The gift card doesn't have enough on it.", {"balance"}),
        ("It was only 3 days late, and not more than five days.", {"not_late"}),
        ("It isn't available, I'm afraid.", {"stock"}),
        ("Final sale items are non-returnable.", {"final_sale"}),
        ("It's past the 30 calendar days we allow.", {"return_window"}),
        ("We don't do price adjustments for other retailers.", {"price_match"}),
        ("Order W1 is not registered under your account.", {"other_customer"}),
        ("It's too late: it left the warehouse.", {"shipped"}),
        ("The order has shipped!", set()),
        ("Sorry, no.", set()),
    ],
)
def test_a_refusal_has_a_negation_and_a_reason(text, grounds):
    assert refuses_for(text) == grounds


def test_an_amount_among_many_is_not_told():
    few = " ".join(f"${n}.00" for n in range(1, MOST_AMOUNTS + 1))
    assert tells(few, Told(amount=200))
    assert not tells(f"{few} $99.00", Told(amount=200))


def test_a_refusal_for_every_reason_there_is_gives_none():
    text = "Sorry, no: shipped, final sale, 30 days, another customer."
    assert not tells(text, Told(refusal="shipped"))
    assert tells("Sorry, it was shipped.", Told(refusal="shipped"))


def test_an_endless_message_tells_nothing():
    assert not tells("$2.00" + " and so on" * 400, Told(amount=200))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Your order has been cancelled.", {"cancelled"}),
        ("I've successfully canceled it.", {"cancelled"}),
        ("I've updated the shipping address.", {"readdressed"}),
        ("The address of order W1 has been changed.", {"readdressed"}),
        ("$5.00 was refunded to your card.", {"refunded"}),
        ("A refund of $5.00 has been issued.", {"refunded"}),
        ("A store credit of $15.00 has been issued.", {"credited"}),
        ("Store credit is only issued for more than 5 days.", set()),
        ("Refunds are normally refunded to the card.", set()),
        ("I'd cancel it. The amount is refunded to your card. Shall I go ahead?", set()),
        ("I'd cancel it, and $5.00 is refunded to your card.", set()),
        ("It is cancelled. Anything else?", set()),
        ("It is cancelled now. Anything else?", {"cancelled"}),
        ("It has been cancelled. Anything else?", {"cancelled"}),
        ("It is cancelled.", {"cancelled"}),
        ("Once it is cancelled, you'll be told.", set()),
        ("It can't be returned.", set()),
        ("Shall I say it has been cancelled?", set()),
        ("I would cancel it.", set()),
        ("It will be refunded.", set()),
        ("It has not been exchanged.", set()),
    ],
)
def test_claims_are_statements_that_something_was_done(text, kinds):
    assert claims_in(text) == kinds
