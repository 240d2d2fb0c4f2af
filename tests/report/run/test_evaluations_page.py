from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from parsed import assert_inert, parse

from agentgym.errors import DataError
from agentgym.evaluate.result import (
    Attempt,
    Column,
    EvaluationResult,
    TaskFacts,
    read_result,
    write_result,
)
from agentgym.report.plots.chart import Chart
from agentgym.report.run import kind_of, report_page
from agentgym.report.run.evaluations import evaluation_page
from agentgym.report.run.page import Page

NOW = datetime(2026, 12, 1, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def save(path: Path) -> Path:
    """Ten tasks, two attempts; ours is right in 12, wrong in 4, broken in 4; rule right in 5."""

    def attempt(n: int, right: int, broken: int) -> Attempt:
        facts = {"task_id": f"t{n // 2}", "sample": n % 2, "turns": 1 + n % 3, "completed": True}
        if n >= 20 - broken:
            return Attempt(**facts, failure_class="infra", error=HOSTILE)
        solved = n < right
        return Attempt(**facts, external=float(solved), correct=solved, gates={HOSTILE: not solved})

    ours = tuple(attempt(n, 12, 4) for n in range(20))
    rule = tuple(attempt(n, 5, 0) for n in range(19))
    result = EvaluationResult(
        created_at="2026-11-30T00:00:00+00:00", env_id="agentgym/X-v0", env_spec="{}",
        external_score="x/score", samples=2,
        tasks={f"t{n}": TaskFacts(content=f"{n}", family="odd" if n % 2 else "even")
               for n in range(10)},
        columns=(
            Column(name="ours", kind="policy", model=HOSTILE, code_version="0.1", attempts=ours),
            Column(name="rule", kind="scripted", code_version="0.1", attempts=rule),
        ),
    )  # fmt: skip
    write_result(path, result)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("eval") / "result.json")


def chart(page: Page, key: str) -> Chart:
    (found,) = [each for s in page.sections for each in s.charts if each.key == key]
    return found


def test_both_denominators_stand_side_by_side(file: Path) -> None:
    page = evaluation_page(file, now=NOW)
    solved = chart(page, "success-all")
    assert solved.categories == ("ours", "rule")
    values = {s.name: [point.y for point in s.points] for s in solved.series}
    assert values == {
        "of all episodes": pytest.approx([12 / 20, 5 / 19]),
        "of the scored ones": pytest.approx([12 / 16, 5 / 19]),
    }
    assert "ours 16 of 20" in solved.about
    assert any("4 of 20 episodes have no score (infra 4)" in note for note in page.notes)
    assert any("rule: 1 of 20 episodes were not played" in note for note in page.notes)


def test_systems_stand_side_by_side_by_k_family_and_turns(file: Path) -> None:
    page = evaluation_page(file, now=NOW)
    assert chart(page, "pass-at-k").categories == ("k = 1", "k = 2")
    assert chart(page, "success-family").categories == ("even", "odd")
    assert [series.name for series in chart(page, "by-turns").series] == ["ours", "rule"]
    assert all(p.low is not None for s in chart(page, "pass-hat-k").series for p in s.points)
    assert page.sections[-1].tables


def test_numbers_of_turns_stand_in_order_whoever_took_them(file: Path) -> None:
    result = read_result(file)
    ours, rule = result.columns
    long = tuple(one.model_copy(update={"turns": 3}) for one in ours.attempts)
    columns = (ours.model_copy(update={"attempts": long}), rule)
    write_result(file, result.model_copy(update={"columns": columns}))
    rows = chart(evaluation_page(file, now=NOW), "by-turns").categories
    assert rows == ("1 turn", "2 turns", "3 turns")


def test_page_is_inert_whatever_systems_and_gates_are_called(file: Path) -> None:
    report = report_page(file, now=NOW)
    assert report.over
    assert_inert(parse(report.html))
    assert "<img" not in report.html
    assert "\u202e" not in report.html
    assert kind_of(file.parent) == "evaluation"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "is no evaluation result"),
        ('{"kind": "agentgym-evaluation", "schema_version": 9}', "schema version 9"),
        ("", "is empty"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=error) as caught:
        report_page(tmp_path / "x.json", now=NOW)
    assert len(str(caught.value).splitlines()) == 1


def test_a_cut_file_and_zero_episodes_are_one_line(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="was cut in the middle"):
        report_page(tmp_path / "cut.json", now=NOW)
    result = read_result(file)
    write_result(tmp_path / "none.json", result.model_copy(update={"columns": ()}))
    with pytest.raises(DataError, match="holds no episode"):
        report_page(tmp_path / "none.json", now=NOW)
