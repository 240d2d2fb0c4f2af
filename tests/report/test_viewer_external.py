"""The external scores of an evaluation, beside the reward's verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import trace_zoo as zoo
from made_results import attempt, column, result

from agentgym.evaluate import write_result
from agentgym.evaluate.columns import scripted_column
from agentgym.evaluate.harness import Evaluation, evaluate
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.report.viewer.export import write_page
from agentgym.report.viewer.external import ExternalScores
from agentgym.report.viewer.reading import TraceFolder
from agentgym.report.viewer.rows import COLUMNS
from agentgym.report.viewer.shelf import Shelf

RULE = "rule-0123.jsonl"


def rows_of(shelf: Shelf) -> list[dict]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in shelf.rows(None, 0)["rows"]]


def write_run(folder: Path, *, name: str = RULE) -> list:
    traces = [zoo.support_trace(0, k) for k in range(4)]
    zoo.write_traces(folder / "traces" / name, traces)
    return traces


def write_scores(folder: Path, traces, correct, *, name: str = RULE, to: str = "result.json"):
    rows = [
        attempt(f"t{k}", is_right, trace_id=trace.trace_id)
        for k, (trace, is_right) in enumerate(zip(traces, correct, strict=False))
    ]
    scored = result(column(Path(name).stem, rows, trace_file=f"traces/{name}"))
    write_result(folder / to, scored)


def test_a_page_that_is_served_gets_the_scores_once_the_result_is_written(tmp_path):
    traces = write_run(tmp_path)
    shelf = Shelf([tmp_path])
    shelf.read()
    before = shelf.rows(None, 0)["generation"]
    assert [row["externalName"] for row in rows_of(shelf)] == [None] * 4
    write_scores(tmp_path, traces, [False, True, None])
    shelf.read()
    found = rows_of(shelf)
    assert shelf.rows(None, 0)["generation"] == before + 1
    assert [row["external"] for row in found] == [0.0, 1.0, None, None]
    assert [row["externallySolved"] for row in found] == [False, True, None, None]
    # The last is no attempt of the result's: a later one took its place, say.
    assert [row["externalName"] for row in found] == ["test/exact"] * 3 + [None]
    assert [row["correct"] for row in found] == [trace.verdict.correct for trace in traces]


def test_a_column_that_only_a_former_result_has_keeps_its_scores(tmp_path):
    old = write_run(tmp_path, name="old-1.jsonl")
    write_scores(tmp_path, old, [True], name="old-1.jsonl", to="result-20261130.json")
    traces = write_run(tmp_path)
    write_scores(tmp_path, traces, [False])
    scores = ExternalScores()
    files = {"old-1.jsonl": True, RULE: False}
    for name, right in files.items():
        assert scores.of(tmp_path / "traces" / name, traces[0]).correct is right
    assert not scores.stale
    assert scores.notes == []


def test_a_result_that_can_not_be_read_is_a_note(tmp_path):
    write_run(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    shelf = Shelf([tmp_path])
    shelf.read()
    (note,) = shelf.rows(None, 0)["notes"]
    assert note.startswith("no external scores: ")
    written = write_page([tmp_path], tmp_path / "x.html", title="x")
    assert list(written.notes) == [note]


@pytest.mark.parametrize("named", [".", "traces", "traces/{file}"])
def test_an_evaluation_that_was_played_has_them_however_it_is_named(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    setting = EvaluationSetting("agentgym/ToolWorld-v0", n=2)
    columns = [scripted_column("none"), scripted_column("expert")]
    played = evaluate(Evaluation(setting, columns, out=Path("x")))
    expert = played.column("expert")
    path = Path("x") / named.format(file=Path(expert.trace_file).name)
    folder, scores = TraceFolder([path]), ExternalScores()
    found = {
        line.trace.trace_id: scores.of(folder.files[line.file].path, line.trace)
        for line in folder.news(whole=True)
    }
    assert [found[a.trace_id].score for a in expert.attempts] == [1.0, 1.0]
    assert {each.name for each in found.values()} == {played.external_score}
