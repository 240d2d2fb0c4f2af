"""An evaluation result (`agentgym eval run`) as a page: its systems side by side.

The figures and their tables are those of `agentgym eval show` (`agentgym.evaluate.figures`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import agentgym
from agentgym.evaluate.figure_records import ColumnFigures, EvaluationFigures, Share
from agentgym.evaluate.figures import figures_of
from agentgym.evaluate.result import EvaluationResult, read_result
from agentgym.evaluate.tables import tables_of, warnings_of
from agentgym.report.plots.chart import MOST_SERIES, Chart, Point
from agentgym.report.run.bars import BAR_TEXT, bar_chart, estimate_point
from agentgym.report.run.markup import Table, counted
from agentgym.report.run.page import Page, Section

_MOST_ROWS = 30


def evaluation_page(path: Path, *, now: datetime | None = None) -> Page:
    """The page of a result file.

    Args:
        path: The file.
        now: The time.

    Raises:
        DataError: If it is none, or can't be read.
    """
    result = read_result(path)
    figures = figures_of(result)
    now = now or datetime.now(UTC)
    tables = [
        Table(f"{t.title}. {t.note}" if t.note else t.title, t.header, t.rows)
        for t in tables_of(figures)
    ]
    return Page(
        title=f"Evaluation {path.stem if path.stem != 'result' else path.absolute().parent.name}",
        status=(
            f"{len(figures.columns)} systems:",
            f"{figures.n_tasks:,} tasks × {counted(figures.samples, 'episode')} each, scored by "
            + figures.external_score,
        ),
        facts=tuple(_header(result)),
        sections=[
            Section("success", "Success", tuple(_success(figures))),
            Section("parts", "What became of the episodes", tuple(_parts(figures))),
            Section("spending", "Turns, time, dollars", tuple(_spending(figures))),
            Section("tables", "All figures", tables=tables),
        ],
        notes=warnings_of(figures),
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


def _success(figures: EvaluationFigures) -> Iterator[Chart]:
    columns = figures.columns
    counted = "; ".join(f"{c.name} {c.n_scored} of {c.n_total}" for c in columns[:_MOST_ROWS])
    yield bar_chart(
        "success-all",
        "Solved",
        {
            "of all episodes": {c.name: _all(c.success) for c in columns},
            "of the scored ones": _scored({c.name: c.success for c in columns}),
        },
        about=f"Share of episodes whose task is solved, by {figures.external_score}, which is not "
        f"the training reward. Scored: {counted}. {BAR_TEXT}",
        y_range=(0.0, 1.0),
        read="Overlapping intervals don't say that two systems are alike: `agentgym eval compare` "
        "compares them on the same tasks.",
    )
    scores = {c.name: estimate_point(c.score) for c in columns if c.score is not None}
    yield bar_chart(
        "score-all", "External score", {"mean": scores}, unit="number",
        about=f"Mean of {figures.external_score} over the scored episodes. {BAR_TEXT}",
    )  # fmt: skip
    if figures.samples > 1:
        for key, title, of in (
            ("pass-at-k", "pass@k: one of k attempts is right", "at_of_all"),
            ("pass-hat-k", "pass^k: all of k attempts are right", "hat_of_all"),
        ):
            bars = {
                c.name: {
                    f"k = {p.k}": estimate_point(found)
                    for p in c.passes
                    if (found := getattr(p, of)) is not None
                }
                for c in columns[:MOST_SERIES]
            }
            yield bar_chart(
                key, title, bars, y_range=(0.0, 1.0),
                about=f"Mean over tasks; an attempt without a score counts as wrong. "
                f"{_first_only(figures)}{BAR_TEXT}",
            )  # fmt: skip
    families = {
        c.name: {name: _all(f.success) for name, f in list(c.families.items())[:_MOST_ROWS]}
        for c in columns[:MOST_SERIES]
    }
    if any(len(each) > 1 for each in families.values()):
        yield bar_chart(
            "success-family", "Solved, by family of tasks", families,
            about=f"Share of all episodes. {_first_only(figures)}{BAR_TEXT}", y_range=(0.0, 1.0),
        )  # fmt: skip


def _parts(figures: EvaluationFigures) -> Iterator[Chart]:
    about = f"Shares of all episodes. {_first_only(figures)}{BAR_TEXT}"
    yield bar_chart(
        "parts-shares",
        "Completion and correctness",
        {
            c.name: {
                "completed: an answer came": _all(c.completion),
                "solved": _all(c.success),
                "unreadable call": _all(c.malformed),
            }
            for c in figures.columns[:MOST_SERIES]
        },
        about=about,
        y_range=(0.0, 1.0),
        read="Low completion and right when complete: more turns or tokens. High completion, "
        "seldom solved: another policy, or another prompt.",
    )
    gates = {
        c.name: {name: _all(share) for name, share in list(c.gates.items())[:_MOST_ROWS]}
        for c in figures.columns[:MOST_SERIES]
    }
    if any(gates.values()):
        yield bar_chart("gates", "Gates that fail", gates, about=about, y_range=(0.0, 1.0))
    shown = figures.columns[:MOST_SERIES]
    ranges = sorted({(b.low, b.high) for c in shown for b in c.by_turns})
    yield bar_chart(
        "by-turns",
        "Solved, by number of turns",
        {c.name: _scored({_turns(b.low, b.high): b.success for b in c.by_turns}) for c in shown},
        order=[_turns(low, high) for low, high in ranges],
        about=f"Share of the scored episodes. {_first_only(figures)}{BAR_TEXT}",
        y_range=(0.0, 1.0),
    )


def _turns(low: int, high: int) -> str:
    return counted(low, "turn") if low == high else f"{low} to {high} turns"


def _spending(figures: EvaluationFigures) -> Iterator[Chart]:
    turns = {c.name: estimate_point(c.turns) for c in figures.columns if c.turns is not None}
    yield bar_chart("turns", "Turns per scored episode", {"mean": turns}, unit="number",
                    about=BAR_TEXT)  # fmt: skip
    yield _totals(
        figures, "seconds", "Seconds per solved task", lambda c: c.seconds_per_solved,
        "All seconds by the episodes that were solved; waiting in a queue is not counted.",
    )  # fmt: skip
    yield _totals(
        figures, "dollars", "Dollars per solved task", lambda c: c.cost_per_solved_usd,
        "All that was spent by the episodes that were solved. Without a bar: a role's price is "
        "unknown, or none was solved.",
    )  # fmt: skip


def _totals(
    figures: EvaluationFigures,
    key: str,
    title: str,
    of: Callable[[ColumnFigures], float | None],
    about: str,
) -> Chart:
    known = {c.name: Point(x=0, y=value) for c in figures.columns if (value := of(c)) is not None}
    return bar_chart(
        key, title, {"total by solved": known}, unit="dollars" if key == "dollars" else "seconds",
        about=f"{about} A ratio of totals, so there is no interval.",
    )  # fmt: skip


def _all(share: Share) -> Point:
    return estimate_point(share.of_all, about=f"{share.count} of {share.n_total} episodes")


def _scored(shares: Mapping[str, Share]) -> dict[str, Point]:
    return {
        name: estimate_point(s.of_scored, about=f"{s.count} of {s.n_scored} scored episodes")
        for name, s in shares.items()
        if s.of_scored is not None
    }


def _first_only(figures: EvaluationFigures) -> str:
    count: int = len(figures.columns)
    return f"The first {MOST_SERIES} of {count} systems. " if count > MOST_SERIES else ""
