"""Bills as text: what was paid, by whom, and how far that is from a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agentgym.cli._bill_tables import amount, bill_console, bill_table, say
from agentgym.cost.actual import Actual
from agentgym.rollout.status import dollars_text
from agentgym.types import printable

if TYPE_CHECKING:
    from agentgym.cost.against import Against, RoleAgainst
    from agentgym.cost.predict import Prediction

_SUMMED = ("calls", "retries", "failed_calls", "input_tokens", "cached_tokens", "output_tokens")


def print_actual(actual: Actual, held: Against | None) -> None:
    """Print a bill, and how a plan fares against it."""
    console = bill_console()
    for line in _heading(actual):
        say(console, line)
    console.print(_roles_table(actual))
    console.print("")
    for line in _lines(actual):
        say(console, line)
    if held is not None:
        print_against(held, console)


def print_against(held: Against, console: Console | None = None) -> None:
    """Print plan against actual, per episode."""
    console = console or bill_console()
    table = bill_table(
        "plan against actual, per episode",
        *("role", "", "calls", "input", "cached", "output", "cost", "ratio"),
    )
    for one in held.roles:
        _add_role(table, one)
    console.print(table)
    console.print("")
    for line in _verdict(held):
        say(console, line)


def print_predictions(found: Sequence[Prediction]) -> None:
    """Print what further episodes will take."""
    console = bill_console()
    table = bill_table(
        f"expected of {found[0].episodes:,} episodes like these", "role", "mean", "95 % interval"
    )
    for one in found:
        table.add_row(
            printable(one.role),
            _of(one.mean, one.unit),
            f"{_of(one.low, one.unit)} to {_of(one.high, one.unit)}",
        )
    console.print(table)


def _of(value: float, unit: str) -> str:
    if value == float("inf"):
        return "anything"
    return dollars_text(value) if unit == "usd" else f"{amount(value)} tokens"


def _heading(actual: Actual) -> Iterator[str]:
    kinds = ", ".join(f"{count:,} of {kind}" for kind, count in actual.by_kind.items())
    several = f" ({kinds})" if len(actual.by_kind) > 1 else ""
    again = f"; {actual.reruns:,} further attempts, paid for, too" if actual.reruns else ""
    yield (
        f"{actual.episodes:,} episodes{several}, {actual.scored:,} scored, "
        f"{actual.solved:,} solved{again}"
    )


def _roles_table(actual: Actual) -> Table:
    table = bill_table(
        "what was paid",
        *("role", "calls", "again", "failed", "input", "cached", "output", "estimated", "cost"),
    )
    for role, bill in actual.roles.items():
        estimated = f"{bill.estimated_share:.1%}" if bill.estimated_tokens else ""
        usd = "unpriced" if bill.usd is None else dollars_text(bill.usd)
        counts = (bill.calls, bill.retries, bill.failed_calls)
        tokens = (bill.input_tokens, bill.cached_tokens, bill.output_tokens)
        table.add_row(printable(role), *map(amount, (*counts, *tokens)), estimated, usd)
    if len(actual.roles) > 1:
        priced = [bill for bill in actual.roles.values() if bill.usd is not None]
        name = "priced roles" if actual.unpriced else "total"
        table.add_section()
        sums = [sum(getattr(bill, field) for bill in priced) for field in _SUMMED]
        usd = dollars_text(sum(bill.priced_usd for bill in priced)) if priced else "unpriced"
        table.add_row(name, *map(amount, sums), "", usd)
    return table


def _lines(actual: Actual) -> Iterator[str]:
    for role in actual.unpriced:
        bill = actual.roles[role]
        model = f" ({bill.model})" if bill.model else ""
        part = f", beside {dollars_text(bill.priced_usd)} that is known" if bill.priced_usd else ""
        yield (
            f"{role}{model}: no price for {amount(bill.unpriced_tokens)} tokens{part}, so what it "
            f"cost is unknown and in no sum; --prices --model {role}=NAME takes it from the book"
        )
    rerun = sum(bill.rerun_usd for bill in actual.roles.values())
    if rerun:
        yield f"Of it {dollars_text(rerun)} for attempts that count no more, or were cancelled."
    if actual.unpriced:
        yield "Per episode, solved task and step: unknown, since not everything has a price."
        return
    parts = []
    if actual.usd_per_episode is not None:
        parts.append(f"{dollars_text(actual.usd_per_episode)} per episode")
    if actual.usd_per_solved_task is not None:
        parts.append(
            f"{dollars_text(actual.usd_per_solved_task)} per solved task ({actual.tasks_solved:,})"
        )
    else:
        parts.append("no task was solved")
    if actual.usd_per_step is not None:
        parts.append(
            f"{dollars_text(actual.usd_per_step)} per training step "
            f"({actual.training_steps:,} with traces)"
        )
    yield f"Cost: {', '.join(parts)}."


def _add_role(table: Table, one: RoleAgainst) -> None:
    for what in ("planned", "actual"):
        calls, read, cached, written, usd = (
            getattr(one, f"{what}_{field}")
            for field in ("calls", "input", "cached", "output", "usd")
        )
        ratio = one.usd_ratio if one.usd_ratio is not None else one.tokens_ratio
        of = "" if one.usd_ratio is not None else " (tokens)"
        last = "" if what == "planned" or ratio is None else f"{ratio:.2f}{of}"
        table.add_row(
            printable(one.role) if what == "planned" else "",
            what,
            f"{calls:,.2f}",
            *map(amount, (read, cached, written)),
            "unpriced" if usd is None else dollars_text(usd),
            last,
        )


def _verdict(held: Against) -> Iterator[str]:
    if held.left_out:
        yield f"In no sum, since plan or bill has no price: {', '.join(held.left_out)}."
    if held.usd_ratio is not None:
        yield (
            f"Actual over planned: {held.usd_ratio:.2f} "
            f"({dollars_text(held.actual_usd)} and {dollars_text(held.planned_usd)} per episode); "
            f"{held.planned_episodes:,} episodes were planned, {held.actual_episodes:,} are there."
        )
