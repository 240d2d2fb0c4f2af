"""Result files: written whole, read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import attempt, column, played, result
from pydantic import ValidationError

from agentgym.errors import DataError
from agentgym.evaluate import attempt_of, content_hash, read_result, write_result
from agentgym.trace import Trace
from agentgym.types import Usage, Verdict


def full_result():
    usage = {"policy": Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.25)}
    rows = [
        attempt("a", True, usage=usage, seconds=1.5, gates={"capped": False}, turns=3),
        attempt("b", False, truncation_reason="turns", reward=-0.5, completed=False),
        attempt("c", None),
    ]
    return result(
        column("ours", rows, hashes={"prompt": "1"}), column("theirs", [attempt("a", True)])
    )


def test_a_result_survives_the_file(tmp_path):
    path = tmp_path / "new" / "result.json"
    write_result(path, full_result())
    assert read_result(path) == full_result()
    assert [found.name for found in path.parent.iterdir()] == ["result.json"]


def test_a_file_of_this_schema_version_stays_readable():
    """Written when version 1 was new. A change that it can't be read after needs a version 2."""
    path = Path(__file__).parent / "data" / "result-v1.json"
    assert read_result(path) == full_result()


def test_a_row_is_a_line(tmp_path):
    path = tmp_path / "r.json"
    write_result(path, full_result())
    rows = [line for line in path.read_text().splitlines() if line.startswith('{"task_id"')]
    assert len(rows) == 4
    assert json.loads(rows[2]) == {
        "task_id":"c", "failure_class": "infra", "error": "EndpointError: gone"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("{}", "is no evaluation result"),
        ("[]", "is no evaluation result"),
        ("name,score\n", "it is no JSON"),
        ('{"schema_version":1,"trace_id":"x","verdict":{}}\n{}\n', "a file of traces"),
    ],
)
def test_what_is_no_result_is_named(tmp_path, text, complaint):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint) as caught:
        read_result(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="can't read .*gone.json: No such file"):
        read_result(tmp_path / "gone.json")
    with pytest.raises(DataError, match=r"is a folder without a result\.json"):
        read_result(tmp_path)
    write_result(tmp_path / "result.json", full_result())
    assert read_result(tmp_path) == full_result()


def test_a_file_that_was_cut_is_no_smaller_result(tmp_path):
    """Case H04: nothing is read from half a file, wherever it ends."""
    path = tmp_path / "r.json"
    whole = full_result().to_json()
    for length in range(60, len(whole) - 3, 41):
        path.write_text(whole[:length])
        with pytest.raises(DataError, match="was cut in the middle"):
            read_result(path)


def test_another_schema_version_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(full_result().to_json().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(DataError, match="schema version 2; .* reads version 1; upgrade"):
        read_result(path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"task_id":"b"', '"task_id":"x"', "none of the tasks"),
        ('"task_id":"b"', '"task_id":"a"', "two attempts with sample 0"),
        ('"theirs"', '"ours"', "two columns are called 'ours'"),
        ('"turns":3', '"turns":-3', "columns.0.attempts.0.turns"),
        ('"turns":3', '"trns": 3', "columns.0.attempts.0.trns"),
        ('"seconds":1.5', '"seconds":NaN', "no JSON"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(tmp_path, old, new, complaint):
    path = tmp_path / "r.json"
    text = full_result().to_json()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=complaint):
        read_result(path)


def test_zero_episodes_are_no_result(tmp_path):
    path = tmp_path / "r.json"
    write_result(path, result(column("ours", [])))
    with pytest.raises(DataError, match="holds no episode"):
        read_result(path)


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    path.mkdir()
    with pytest.raises(DataError, match="can't write"):
        write_result(path, full_result())
    assert [found.name for found in tmp_path.iterdir()] == ["r.json"]


def test_no_secret_reaches_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "hunter2-and-longer")
    row = attempt("a", None, error="401 for key hunter2-and-longer")
    write_result(tmp_path / "r.json", result(column("ours", [row])))
    assert "hunter2" not in (tmp_path / "r.json").read_text()


@settings(max_examples=25)
@given(text=st.text(st.characters(codec=None), max_size=20))
def test_any_text_of_a_model_can_be_written_and_read(text, tmp_path_factory):
    """Case H10: lone surrogates included."""
    path = tmp_path_factory.mktemp("r") / "r.json"
    write_result(path, result(column("ours", [attempt("a", None, error=text + "\ud83d")])))
    assert len(read_result(path).columns[0].attempts) == 1


def test_a_score_is_known_whole_or_not_at_all():
    with pytest.raises(ValidationError, match="both known or both None"):
        attempt("a", True, external=None)


def test_hash_of_tasks_is_that_of_their_content_and_not_of_their_order():
    one = result(played("x", {"a": [True], "b": [True]}))
    other = result(played("x", {"b": [True], "a": [True]}))
    assert one.tasks_hash == other.tasks_hash
    changed = dict(one.tasks) | {"a": one.tasks["b"]}
    assert one.tasks_hash != one.model_copy(update={"tasks": changed}).tasks_hash
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": [2], "a": 1})


def test_cost_is_unknown_where_a_used_role_has_no_price():
    priced, unpriced = Usage(prompt_tokens=1, cost_usd=0.5), Usage(prompt_tokens=1)
    assert attempt("a", True, usage={"policy": priced}).cost_usd == 0.5
    assert attempt("a", True, usage={"policy": priced, "judge": unpriced}).cost_usd is None
    assert attempt("a", True).cost_usd == 0


def test_attempt_of_a_trace():
    trace = Trace(
        trace_id="t", env_spec="{}", task_id="a", sample=2, started_at="2026-01-01T00:00:00Z",
        verdict=Verdict(reward=None, masked=True, completed=True, gates={"g": True}),
        error="Traceback\nEndpointError: gone", failure_class="infra",
        stage_s={"init": 1.0, "run": 0.5},
    )  # fmt: skip
    found = attempt_of(trace, external=None, correct=None)
    assert (found.task_id, found.sample, found.trace_id) == ("a", 2, "t")
    assert (found.error, found.failure_class) == ("EndpointError: gone", "infra")
    assert (found.seconds, found.reward, found.gates) == (1.5, None, {"g": True})
    assert attempt_of(trace, external=1.0, correct=True).error is None
    with pytest.raises(ValueError, match="no task"):
        attempt_of(trace.model_copy(update={"task_id": None}), external=None, correct=None)


def test_tasks_that_differ_in_a_credential_only_are_refused_and_not_made_one(tmp_path):
    """The file would be unreadable: one task with two attempts of sample 0."""
    file = tmp_path / "result.json"
    alike = {"sk-" + "a" * 40 + end: [True] for end in "12"}
    with pytest.raises(DataError, match="names of several tasks look like credentials"):
        write_result(file, result(played("ours", alike)))
    assert not file.exists()
    write_result(file, result(played("ours", {"sk-" + "a" * 40: [True], "other": [True]})))
    assert len(read_result(file).tasks) == 2


def test_a_byte_order_mark_of_an_editor_is_no_damage(tmp_path):
    file = tmp_path / "result.json"
    write_result(file, result(played("ours", {"a": [True]})))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [*read_result(file).tasks] == ["a"]
