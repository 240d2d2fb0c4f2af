"""Comparisons as tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.evaluate.compare import Comparison
from agentgym.evaluate.tables import Table, percent
from agentgym.statistics import Difference, fewest_tasks
from agentgym.types import printable


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per comparison that has figures."""
    rows = []
    for each in comparisons:
        if each.success is None:
            continue
        equal = each.success.n_tasks - each.success.n_better - each.success.n_worse
        rows.append(
            (
                f"{printable(each.b)} - {printable(each.a)}",
                f"{each.success.n_tasks:,}",
                percent(each.success_b),
                percent(each.success_a),
                points(each.success),
                p_value(each.success.p),
                p_value(each.p_together),
                f"{each.success.n_better} / {equal} / {each.success.n_worse}",
            )
        )
    return Table(
        title="Success on the tasks that both attempted",
        header=(
            "", "tasks", "second", "first", "difference", "p", "p together",
            "better / same / worse",
        ),
        rows=tuple(rows),
        note=(
            "Second minus first, in percentage points with the 95 % interval, paired by task, "
            "every task counting the same; episodes without a score are left out. p: exact over "
            "all sign flips where at most 20 tasks differ, else of the t test. p together: as it "
            "holds for all rows (Holm)."
        ),
    )  # fmt: skip


def detail_table(comparisons: Sequence[Comparison]) -> Table:
    """The other differences, one row per comparison and measure."""
    rows = []
    for each in comparisons:
        measures = (
            ("success, of all", each.success_of_all, points),
            ("completion", each.completion, points),
            ("score", each.score, plain),
        )
        rows += [
            (f"{printable(each.b)} - {printable(each.a)}", name, shown(found), p_value(found.p))
            for name, found, shown in measures
            if found is not None
        ]
    return Table(
        title="Other differences",
        header=("", "measure", "difference", "p"),
        rows=tuple(rows),
        note="Of all: an episode without a score counts as not solved.",
    )


def verdict_lines(comparison: Comparison) -> list[str]:
    """Whether the two can be compared, with every reason, and what the difference can bear."""
    pair = f"{printable(comparison.a)} and {printable(comparison.b)}"
    if comparison.blocked:
        head = f"{pair}: NOT comparable, no figures"
    elif not comparison.comparable:
        head = f"{pair}: not like with like; any of this may have made the difference"
    else:
        head = f"{pair}: comparable"
    return [
        head,
        *(f"  {printable(reason.text)}" for reason in sorted(comparison.reasons, key=_grade)),
        *(f"  {line}" for line in _evidence(comparison)),
    ]


def _grade(reason: object) -> int:
    return ("blocks", "confounds", "notes").index(getattr(reason, "grade", "notes"))


def _evidence(comparison: Comparison) -> list[str]:
    success = comparison.success
    if comparison.blocked:
        return []
    if success is None:
        return ["no common task has a scored episode on both sides: there is no difference to see"]
    lines = []
    if comparison.unscored:
        lines.append(f"{len(comparison.unscored)} common tasks have no scored episode on one side")
    if math.isinf(success.stderr):
        return [*lines, "one task says nothing about others"]
    lines.append(
        f"a difference is {'shown' if success.shown else 'not shown'}: {points(success)} points "
        f"over {success.n_tasks} tasks"
    )
    if success.leaves_out_zero and not success.shown:
        differ = success.n_better + success.n_worse
        lines.append(
            f"only {differ} tasks differ, too few for that interval: exact p = {p_value(success.p)}"
        )
    if comparison.detectable is not None:
        lines.append(
            f"with these tasks and samples, four of five evaluations would show a true difference "
            f"of {100 * comparison.detectable:.1f} points"
        )
    elif success.n_tasks < fewest_tasks():
        lines.append(f"fewer than {fewest_tasks()} tasks can't show any difference")
    elif success.stderr > 1e-12:
        lines.append("with these tasks and samples not even the largest difference would be shown")
    if comparison.tasks_needed is not None:
        lines.append(
            f"if the true difference is the one seen, {comparison.tasks_needed:,} tasks would show "
            "it in four of five evaluations"
        )
    return lines


def points(found: Difference) -> str:
    """A difference of shares in percentage points, with its interval."""
    return _signed(found, 100, 1)


def plain(found: Difference) -> str:
    """A difference of scores, with its interval."""
    return _signed(found, 1, 3)


def _signed(found: Difference, factor: int, digits: int) -> str:
    def text(value: float) -> str:
        return f"{factor * value:+.{digits}f}"

    if math.isinf(found.stderr):
        return f"{text(found.mean)} (one task)"
    if math.isinf(found.low):
        return f"{text(found.mean)} (all alike)"
    return f"{text(found.mean)} ({text(found.low)} to {text(found.high)})"


def p_value(p: float | None) -> str:
    """A p-value; very small ones as a bound."""
    if p is None:
        return "-"
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"
