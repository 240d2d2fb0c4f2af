"""An evaluation result (`agentgym eval run`) as a page: its systems side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import agentgym
from agentgym.evaluate.result import Attempt, Column, EvaluationResult, read_result
from agentgym.report.plots.chart import MOST_SERIES, Chart, Point, Unit
from agentgym.report.run.bars import BAR_TEXT, bar_chart, mean_point, share_point
from agentgym.report.run.markup import Table
from agentgym.report.run.page import Page, Section
from agentgym.types import Usage

_MOST_FAMILIES = 20


def evaluation_page(path: Path, *, now: datetime | None = None) -> Page:
    """The page of a result file.

    Args:
        path: The file.
        now: The time.

    Raises:
        DataError: If it is none, or can't be read.
    """
    result = read_result(path)
    now = now or datetime.now(UTC)
    planned = result.n_planned
    return Page(
        title=f"Evaluation {path.stem}",
        status=(
            f"{len(result.columns)} systems:",
            f"{len(result.tasks):,} tasks × {result.samples} episodes each = {planned:,}, by "
            + result.external_score,
        ),
        facts=tuple(_header(result)),
        sections=[
            Section("success", "Success", tuple(_success(result)), tables=(counts(result),)),
            Section("parts", "What became of the episodes", tuple(_parts(result))),
            Section("spending", "Turns, time, dollars", tuple(_spending(result))),
        ],
        notes=tuple(_notes(result)),
        settings=json.dumps(_settings(result), indent=2, ensure_ascii=False),
        footer=f"agentgym {agentgym.__version__}, made {now:%Y-%m-%d %H:%M:%S} UTC. Whether two "
        "systems differ is a matter of the same tasks: `agentgym eval compare`.",
    )


def _header(result: EvaluationResult) -> Iterator[tuple[str, str]]:
    yield "environment", result.env_id
    yield "split", result.split or ""
    yield "tasks", f"{len(result.tasks)}, content hash {result.tasks_hash}"
    yield "played", result.created_at
    for column in result.columns:
        what = [column.kind, column.model or "", column.endpoint or ""]
        weights = f"weights {column.weight_version}" if column.weight_version else ""
        yield column.name, ", ".join(filter(None, [*what, weights, column.code_version]))


def _settings(result: EvaluationResult) -> dict[str, object]:
    return result.model_dump(
        mode="json", exclude={"tasks": True, "columns": {"__all__": {"attempts"}}}
    )


def _scored(column: Column) -> list[Attempt]:
    return [attempt for attempt in column.attempts if attempt.scored]


def _success(result: EvaluationResult) -> Iterator[Chart]:
    success = {
        column.name: share_point(0, [a.correct is True for a in scored], _tasks(scored))
        for column in result.columns
        if (scored := _scored(column))
    }
    counted = "; ".join(f"{c.name} {len(_scored(c))}" for c in result.columns[:MOST_SERIES])
    yield bar_chart(
        "success-all", "Solved, of the scored episodes", {"solved": success},
        about=f"Share of scored episodes whose task is solved, by {result.external_score}, which "
        f"is not the training reward. Scored episodes: {counted}. {BAR_TEXT}",
        y_range=(0.0, 1.0),
        read="Overlapping intervals don't say that two systems are alike: `agentgym eval compare` "
        "compares them on the same tasks.",
    )  # fmt: skip
    score = {
        column.name: mean_point(0, [float(a.external or 0.0) for a in scored], _tasks(scored))
        for column in result.columns
        if (scored := _scored(column))
    }
    yield bar_chart(
        "score-all", "External score", {"mean": score}, unit="number",
        about=f"Mean of {result.external_score} over scored episodes. {BAR_TEXT}",
    )  # fmt: skip
    families = sorted({f.family for f in result.tasks.values() if f.family})[:_MOST_FAMILIES]
    if len(families) > 1:
        bars: dict[str, dict[str, Point]] = {}
        for column in result.columns[:MOST_SERIES]:
            bars[column.name] = {}
            for family in families:
                of = [a for a in _scored(column) if result.tasks[a.task_id].family == family]
                if of:
                    hits = [a.correct is True for a in of]
                    bars[column.name][family] = share_point(0, hits, _tasks(of))
        yield bar_chart(
            "success-family", "Solved, by family of tasks", bars,
            about=f"{_first_only(result)}{BAR_TEXT}", y_range=(0.0, 1.0),
        )  # fmt: skip


def _first_only(result: EvaluationResult) -> str:
    count = len(result.columns)
    return f"The first {MOST_SERIES} of {count} systems. " if count > MOST_SERIES else ""


def _tasks(attempts: Sequence[Attempt]) -> list[str]:
    return [attempt.task_id for attempt in attempts]


def _parts(result: EvaluationResult) -> Iterator[Chart]:
    bars: dict[str, dict[str, Point]] = {}
    gates: dict[str, dict[str, Point]] = {}
    for column in result.columns[:MOST_SERIES]:
        scored = _scored(column)
        if not scored:
            continue
        tasks = _tasks(scored)
        shares = {
            "completed": [a.completed for a in scored],
            "solved": [a.correct is True for a in scored],
            "cut by a limit": [a.truncation_reason is not None for a in scored],
            "unreadable call": [a.malformed > 0 for a in scored],
        }
        bars[column.name] = {n: share_point(0, hits, tasks) for n, hits in shares.items()}
        gates[column.name] = {
            name: share_point(0, [a.gates.get(name, False) for a in scored], tasks)
            for name in sorted({name for a in scored for name in a.gates})
        }
    about = f"Shares of scored episodes. {_first_only(result)}{BAR_TEXT}"
    yield bar_chart("parts-shares", "Completion, limits, calls", bars, about=about,
                    y_range=(0.0, 1.0))  # fmt: skip
    if any(gates.values()):
        yield bar_chart("gates", "Gates that fail", gates, about=about, y_range=(0.0, 1.0))


def _spending(result: EvaluationResult) -> Iterator[Chart]:
    ways: tuple[tuple[str, str, Unit, Callable[[Attempt], float]], ...] = (
        ("turns", "Turns per episode", "number", lambda attempt: float(attempt.turns)),
        ("seconds", "Seconds per episode", "seconds", lambda attempt: attempt.seconds),
    )
    for key, title, unit, of in ways:
        bars = {
            c.name: mean_point(0, [of(a) for a in c.attempts], _tasks(c.attempts))
            for c in result.columns
            if c.attempts
        }
        yield bar_chart(key, title, {"mean": bars}, unit=unit,
                        about=f"Over all episodes. {BAR_TEXT}")  # fmt: skip
    priced, unpriced = {}, []
    for column in result.columns:
        asked = any(not u.is_nothing for a in column.attempts for u in a.usage.values())
        costs = [attempt.cost_usd for attempt in column.attempts]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            unpriced.append(column.name)
        elif asked:  # scripted policies cost nothing, and have no bar
            priced[column.name] = mean_point(0, known, _tasks(column.attempts))
    told = f" Without a known price: {', '.join(unpriced)}." if unpriced else ""
    yield bar_chart(
        "dollars", "Dollars per episode", {"mean": priced} if priced else {}, unit="dollars",
        about=f"Over all episodes, failed ones included. {BAR_TEXT}{told}",
    )  # fmt: skip


def counts(result: EvaluationResult) -> Table:
    """Episodes, scored and solved ones of each system, with both denominators."""
    rows = []
    for column in result.columns:
        scored = _scored(column)
        solved = sum(attempt.correct is True for attempt in scored)
        total: Usage = sum(
            (usage for a in column.attempts for usage in a.usage.values()), Usage(calls=0)
        )
        rows.append(
            (
                column.name,
                f"{len(column.attempts):,}",
                f"{len(scored):,}",
                f"{solved:,}",
                _share(solved, len(scored)),
                _share(solved, len(column.attempts)),
                f"{total.prompt_tokens + total.completion_tokens:,}",
            )
        )
    header = ("system", "episodes", "scored", "solved", "of scored", "of all", "tokens")
    return Table("Both denominators: an episode without a score is no zero", header, rows)


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if of else "–"


def _notes(result: EvaluationResult) -> Iterator[str]:
    for column in result.columns:
        if len(column.attempts) < result.n_planned:
            yield (
                f"{column.name}: {len(column.attempts)} of {result.n_planned} planned episodes "
                "were played."
            )
        failed = [attempt for attempt in column.attempts if not attempt.scored]
        if failed:
            by = sorted({attempt.failure_class or "unknown" for attempt in failed})
            yield f"{column.name}: {len(failed)} episodes without a score ({', '.join(by)})."
