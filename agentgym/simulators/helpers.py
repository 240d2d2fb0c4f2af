"""Helpers for what language models get wrong: arithmetic and dates.

A tool simulator delegates to them, and an environment may offer them as tools. What they compute
comes from a model, which may be hostile: nothing is evaluated that isn't on a list, and the size of
every result is bounded before it is computed, because no time-out interrupts a running power.
"""

from __future__ import annotations

import ast
import calendar
import datetime
import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from agentgym.errors import ToolError

Number: TypeAlias = int | float

MAX_LENGTH = 500
"""Characters of an expression."""
MAX_DEPTH = 250
"""Levels of operations inside each other."""
MAX_BITS = 4096
"""Bits of a whole number, some 1,200 digits."""
MAX_DIGITS = 50
"""Decimals that `round` takes."""

_TOO_DEEP = f"Error: more than {MAX_DEPTH} operations inside each other."


def calculate(expression: str) -> Number:
    """Evaluate an arithmetic expression, exactly for whole numbers.

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and abs, round, min, max, sum,
            sqrt, floor, ceil, exp, log, log10, log2; at most 500 characters.

    Returns:
        The value; never NaN or infinite.

    Raises:
        ToolError: If it can't be computed; the text says why.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(
            f"Error: the expression has {len(expression)} characters; {MAX_LENGTH} are allowed. "
            "Compute it in parts."
        )
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ToolError(
            f"Error: {expression!r:.100} is not an arithmetic expression; write it like "
            "'(3 + 4) * 1.5', without units and thousands separators."
        ) from error
    try:
        return _checked(_value(tree.body, MAX_DEPTH))
    except ZeroDivisionError as error:
        raise ToolError("Error: division by zero.") from error
    except RecursionError as error:  # a caller deep in the stack
        raise ToolError(_TOO_DEEP) from error
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolError(f"Error: {expression!r:.100} has no value ({error}).") from error


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise ToolError(_TOO_DEEP)
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number = _value(operand, depth - 1)
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATIONS:
            bits, operation = _OPERATIONS[type(op)]
            a, b = _value(left, depth - 1), _value(right, depth - 1)
            if isinstance(a, int) and isinstance(b, int):
                _check_bits(bits(a, b))
            return _checked(operation(a, b))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            values = [_value(each, depth - 1) for each in args]
            return _checked(_FUNCTIONS[name](*values))
    raise ToolError(
        f"Error: {_as_written(node)!r:.100} is not allowed here; there are numbers, "
        f"+ - * / // % **, {', '.join((*_CONSTANTS, *_FUNCTIONS))}."
    )


def _as_written(node: ast.expr) -> str:
    """A part of an expression, for an error; what is nested deep has no text."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return f"this {type(node).__name__}"


def _check_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise ToolError(f"Error: the result would have more than {MAX_BITS} bits.")


def _checked(number: Any) -> Number:
    if isinstance(number, int):
        _check_bits(number.bit_length())
        return number
    if isinstance(number, complex):
        raise ToolError("Error: the result is not a real number.")
    if not math.isfinite(number):
        raise ToolError("Error: the result is too large.")
    return float(number)


def _bits_of_power(base: int, exponent: int) -> float:
    if exponent <= 0 or base in (-1, 0, 1):
        return 1
    return base.bit_length() * exponent


def _bits_of_the_larger(a: int, b: int) -> int:
    return max(a.bit_length(), b.bit_length()) + 1


def _round(number: Number, digits: Number | None = None) -> Number:
    if digits is None:
        return round(number)
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise ToolError(f"Error: round takes at most {MAX_DIGITS} decimals, as a whole number.")
    return round(number, digits)


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
_OPERATIONS: dict[type[ast.operator], tuple[Callable[[int, int], float], Callable[..., Any]]] = {
    ast.Add: (_bits_of_the_larger, operator.add),
    ast.Sub: (_bits_of_the_larger, operator.sub),
    ast.Mult: (lambda a, b: a.bit_length() + b.bit_length(), operator.mul),
    ast.Div: (_bits_of_the_larger, operator.truediv),
    ast.FloorDiv: (_bits_of_the_larger, operator.floordiv),
    ast.Mod: (_bits_of_the_larger, operator.mod),
    ast.Pow: (_bits_of_power, operator.pow),
}
"""Operation to the bits of its result at most, for whole numbers, and what computes it."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sum": lambda *numbers: sum(numbers),
    "sqrt": math.sqrt,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
}


def days_between(start: str, end: str) -> int:
    """Count the days from one date to another; negative if `end` comes first.

    Args:
        start: Such as 2026-01-31.
        end: Such as 2026-03-01.

    Raises:
        ToolError: If one is not a date.
    """
    return (_date(end) - _date(start)).days


def shift_date(date: str, amount: int, unit: str) -> str:
    """Move a date by days, weeks, months or years.

    A month or year later is the same day of the month, or its last one where it is shorter.

    Args:
        date: Such as 2026-01-31.
        amount: How many; negative goes back.
        unit: days, weeks, months or years.

    Raises:
        ToolError: If the date or the unit isn't one, or the result is outside years 1 to 9999.
    """
    start = _date(date)
    kind = unit.strip().lower().removesuffix("s")
    try:
        if kind in ("day", "week"):
            return (
                start + datetime.timedelta(days=amount * (7 if kind == "week" else 1))
            ).isoformat()
        if kind in ("month", "year"):
            months = start.year * 12 + start.month - 1 + amount * (12 if kind == "year" else 1)
            year, month = divmod(months, 12)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            return datetime.date(year, month + 1, day).isoformat()
    except (ValueError, OverflowError) as error:
        raise ToolError(f"Error: {date} and {amount} {unit} is outside years 1 to 9999.") from error
    raise ToolError(f"Error: a date moves by days, weeks, months or years, not {unit!r:.40}.")


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text.strip()[:10])
    except ValueError as error:
        raise ToolError(f"Error: {text!r:.40} is not a date such as 2026-01-31.") from error
