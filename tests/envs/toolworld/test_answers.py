"""What a message claims: robust to how a value is written, strict about how many there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.answers import NOTHING, claims_in

PEOPLE = ("Ada Abbott", "Ada Abbotts", "Bruno Bergström", "None Rossi")


def right(text, answer):
    return claims_in(text, answer) == answer.claims


@pytest.mark.parametrize(
    "text",
    [
        *("Answer: 1240.5", "1240.50", "Answer: $1,240.50", "**Answer:** 1,240.50 EUR"),
        *("I added it up.\nAnswer: `1240.5`", "answer : €1240.5.", "Answer: 1\nAnswer: 1240.5"),
        *("It costs 1,240.50.", "Answer: 1240.50kg", "Ａｎｓｗｅｒ： １２４０.５"),
        *("_Answer_: 1 240.50", "Answer: 1\u202f240.50 CHF", "Answer: CHF1'240.50", "1240.5watts"),
        *("*Answer:* 1240.500", "Answer: \\boxed{1240.5}", "Answer: the sum is __1240.50__."),
    ],
)
def test_a_number_is_read_however_it_is_written(text):
    assert right(text, answers.number(1240.5))


@pytest.mark.parametrize(
    "text",
    [
        *("Answer: 1240.5 or 1250", "Answer: 620.25 + 620.25 = 1240.5", "Answer: -1240.5"),
        *("Answer: 12405", "Answer: 1240.51", "", "Answer:", "Answer: none", "1240.5\nAnswer: 7"),
        *("Answer: 1240.5, or none", "Answer: ac1240", "Answer: x1240.5", "Answer: 1240.5.7"),
        "Answer: 1240.5 " + "and so on " * 40,
    ],
)
def test_another_number_or_one_more_is_wrong(text):
    assert not right(text, answers.number(1240.5))


def test_numbers_within_keys_dates_and_times_are_not_claimed():
    text = "Answer: 3 (bk1042, 2026-05-04, May 4, 2026, 10:30)"
    assert claims_in(text, answers.number(3)) == {"3"}


def test_small_counts_may_be_written_as_words():
    assert right("Answer: Three.", answers.number(3))
    assert right("Answer: seventeen minutes", answers.number(17))
    assert not right("Answer: three or four", answers.number(3))
    assert not right("Answer: twenty-three", answers.number(3))


@pytest.mark.parametrize(
    "text",
    [
        *("2026-05-04", "Answer: May 4, 2026", "4 May 2026", "the 4th May 2026", "May 4th 2026"),
        *("4th of May, 2026", "Monday, 4-May-2026", "2026/05/04", "2026-05-04T09:00:00Z"),
        *("Answer: 2026\u201105\u201104", "Answer: 2026–05–04"),
    ],
)
def test_a_date_is_read_however_it_is_written(text):
    assert right(text, answers.date("2026-05-04"))
    assert not right(text + " or 2026-05-05", answers.date("2026-05-04"))


@pytest.mark.parametrize(
    "text", ["14:05", "2:05 pm", "at 2:05 p.m.", "14:05:00", "2026-05-04T14:05:00", "2:05\u202fPM"]
)
def test_a_time_is_read_however_it_is_written(text):
    assert right(text, answers.time("14:05"))
    assert not right(text + " 15:00", answers.time("14:05"))


def test_midnight_and_noon_are_told_apart():
    assert claims_in("12:00 am", answers.time("00:00")) == {"00:00"}
    assert claims_in("12:00 pm", answers.time("12:00")) == {"12:00"}
    assert claims_in("12am, 2 p.m.", answers.time("12:00")) == {"00:00", "14:00"}


@pytest.mark.parametrize(
    "text", ["Answer: Ada Abbott", "answer: ADA  abbott.", "It is Ada Abbott, of course."]
)
def test_a_name_is_read_in_any_case(text):
    assert right(text, answers.name("Ada Abbott", PEOPLE))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("Dr Ada Abbott", "Answer: Dr. Ada Abbott"), ("Dr Ada Abbott", "_Dr Ada Abbott_")),
        *(("Budget kick-off", "Budget kick\u2011off"), ("Budget kick-off", "“Budget kick–off”")),
        *(("Lea Bergström", "Lea Bergstrom"), ("Lea Sørensen", "lea sorensen")),
        ("Lea Bergström", "Lea Bergstro\u0308m"),
    ],
)
def test_a_name_is_read_however_it_is_typeset(name, text):
    assert right(text, answers.name(name, ["Ada Abbott", "Budget review", "Leo Bergström"]))


@pytest.mark.parametrize(
    "text",
    [
        *("Answer: Ada Abbotts", "Answer: Ada", "Answer: Ada Abbott or Bruno Bergström", ""),
        *("Answer: Ada Abbott, or none", "Answer: Nobody", "Answer: " + ", ".join(PEOPLE)),
        'Answer: {"members": [{"name": "Ada Abbott", "desk": "D100"}], ' + '"x": "y", ' * 40 + "}",
    ],
)
def test_another_name_a_second_one_or_a_dump_is_wrong(text):
    assert not right(text, answers.name("Ada Abbott", PEOPLE))


def test_a_list_needs_all_and_no_other_in_any_order():
    both = answers.names(["Bruno Bergström", "Ada Abbott"], PEOPLE)
    assert right("Answer: Ada Abbott and Bruno Bergström", both)
    assert right("Answer:\n- bruno bergström\n- ada abbott", both)
    assert not right("Answer: Ada Abbott", both)
    assert not right("Answer: Ada Abbott, Bruno Bergström, Ada Abbotts", both)


def test_a_name_that_holds_the_word_none_is_a_name():
    assert right("Answer: None Rossi", answers.name("None Rossi", PEOPLE))
    assert claims_in("Answer: None", answers.name("Ada Abbott", PEOPLE)) == {NOTHING}


@pytest.mark.parametrize(
    "nothing", [answers.no_number(), answers.date(None), answers.name(None, PEOPLE)]
)
def test_none_is_right_only_alone(nothing):
    assert right("Answer: none", nothing)
    assert right("It is not possible.", nothing)
    assert right("Answer: No one.", nothing)
    assert right("Answer: n/a", nothing)
    assert not right("Answer: no, 7 or 2026-05-04 or Ada Abbott", nothing)
    assert not right("", nothing)
    assert not right("Answer: " + "Say which it is, or none if there is none at all. " * 2, nothing)
    assert not right("Answer: none, or 7, or 2026-05-04, or Ada Abbott", nothing)


@given(st.floats(-1e6, 1e6))
def test_every_number_is_found_as_it_is_written_out(value):
    assert right(f"Answer: {value:,.2f}", answers.number(value))


def test_half_a_cent_rounds_either_way_and_is_not_asked_for():
    assert not answers.rounds_clearly(12.345)
    assert not answers.rounds_clearly(-0.005)
    assert answers.rounds_clearly(12.344)
    assert answers.rounds_clearly(12.34)
    assert answers.rounds_clearly(12.3475)


@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    for answer in (
        answers.number(3),
        answers.date("2026-05-04"),
        answers.name("Ada Abbott", PEOPLE),
    ):
        claims_in(text, answer)


def test_a_long_answer_is_read_in_linear_time():
    claims_in("1" * 300_000 + "," * 300_000 + "Answer: " * 50_000, answers.number(3))
