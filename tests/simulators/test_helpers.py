"""The helpers compute what they should, and nothing that could keep them busy."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ToolError
from agentgym.simulators.helpers import MAX_BITS, calculate, days_between, shift_date
from agentgym.tools import Tool


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2**100", 1267650600228229401496703205376),
        ("1.05**360", 1.05**360),
        ("(3 + 4) * 1.5", 10.5),
        ("7 // 2 + 7 % 2 - -1", 5),
        ("2 ** -1", 0.5),
        ("1_000 * 3", 3000),
        ("round(2.675, 1)", 2.7),
        ("round(2.5)", 2),
        ("max(1, sqrt(16), floor(2.9))", 4.0),
        ("sum(1, 2, 3) / 4", 1.5),
        ("0 ** 999999999999", 0),
        ("(-1) ** 999999999999", -1),
        ("log10(1000)", math.log10(1000)),
        (" 1 + 1\n", 2),
    ],
)
def test_calculates(expression, value):
    """J04: large and ordinary expressions still work."""
    got = calculate(expression)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "(((9**64)**64)**64)**64",
        "1<<99999999",
        "factorial(999999)",
        "(" * 5000,
        "(" * 240 + "1" + ")" * 240,
        "-" * 400 + "1",
        "pow(9, 99999999)",
        "2**4096 * 2",
        "9.0**9**9",
        "1e308 * 10",
        "1e999",
        "10**400 / 3.0",
        "+".join(["(1"] * 240) + ")" * 240,
        "round(1, -999999999)",
        "round(1.5, 0.5)",
        "exp(99999)",
        "(-8) ** 0.5",
        "sqrt(-1)",
        "1/0",
        "0 ** -1",
        "",
        "1,000",
        "5 %",
        "True + 1",
        "'a' * 999999999",
        "[1] * 99",
        "__import__('os')",
        "().__class__",
        "abs",
        "min()",
        "min(1, key=abs)",
        "x",
        "1 if 1 else 2",
        "\ud800",
        "1\x00",
    ],
)
def test_what_it_cannot_or_should_not_compute_is_a_friendly_error(expression):
    """J04: nothing here may run for long; a computed 9**9**9 would never come back."""
    with pytest.raises(ToolError, match=r"^Error: ") as refused:
        calculate(expression)
    assert len(str(refused.value)) < 400


OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "**"])
EXPRESSIONS = st.recursive(
    st.integers(0, 10**6).map(str) | st.floats(0, 1e6).map(repr),
    lambda inner: st.builds("({} {} {})".format, inner, OPERATORS, inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(EXPRESSIONS)
def test_every_result_is_bounded_finite_and_printable(expression):
    try:
        value = calculate(expression)
    except ToolError:
        return
    assert isinstance(value, int) or math.isfinite(value)
    if isinstance(value, int):
        assert value.bit_length() <= MAX_BITS
        assert len(str(value)) < sys.get_int_max_str_digits()


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [("2026-01-31", "2026-03-01", 29), ("2024-02-28", "2024-03-01", 2),
     ("2026-01-02", "2026-01-01", -1)],
)  # fmt: skip
def test_days_between(start, end, days):
    assert days_between(start, end) == days


@pytest.mark.parametrize(
    ("date", "amount", "unit", "moved"),
    [
        ("2026-01-31", 1, "month", "2026-02-28"),
        ("2024-01-31", 1, "months", "2024-02-29"),
        ("2024-02-29", 1, "year", "2025-02-28"),
        ("2026-01-31", -2, "weeks", "2026-01-17"),
        ("2026-12-31T10:00:00Z", 1, "Days", "2027-01-01"),
        ("2026-11-30", 3, "months", "2027-02-28"),
    ],
)
def test_shift_date(date, amount, unit, moved):
    assert shift_date(date, amount, unit) == moved


@pytest.mark.parametrize(
    ("date", "amount", "unit"),
    [("31.1.2026", 1, "day"), ("2026-01-31", 1, "fortnight"), ("2026-01-31", 10**30, "days"),
     ("2026-01-31", 10**30, "years"), ("2026-01-31", -3000, "years")],
)  # fmt: skip
def test_shift_date_says_what_it_takes(date, amount, unit):
    with pytest.raises(ToolError, match="^Error: "):
        shift_date(date, amount, unit)


def test_a_helper_is_ready_to_be_a_tool():
    tool = Tool(calculate, inline=True)
    assert tool.required == ("expression",)
    assert "at most 500 characters" in tool.spec["function"]["parameters"]["properties"][
        "expression"]["description"]  # fmt: skip


@pytest.mark.parametrize("outside", [".a", "[0]", "()", " if 1 else 2"])
def test_what_is_not_allowed_around_something_nested_deep_is_refused_like_any_other(outside):
    """The error quotes the expression; writing it out again mustn't exhaust the stack."""
    with pytest.raises(ToolError, match="is not allowed here"):
        calculate(f"({'-' * 400}1){outside}")
    with pytest.raises(ToolError, match="is not allowed here|inside each other"):
        calculate("~" * 300 + "1")


def test_rounding_to_no_decimals_keeps_the_kind_of_number_as_in_python():
    assert repr(calculate("round(3.5, 0)")) == "4.0"
    assert repr(calculate("round(3.5)")) == "4"
