"""Trace files: whole lines only, strict JSON, and a reader that a crash doesn't stop."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import TraceError
from agentgym.trace import Trace
from agentgym.traces import TraceFile, TraceWriter, read_traces
from agentgym.traces import jsonl as jsonl_module
from agentgym.types import Turn, Usage, Verdict


def make_trace(number: int = 0, **fields) -> Trace:
    given = {
        "trace_id": f"t{number}",
        "env_spec": "{}",
        "task_id": f"task/{number}",
        "verdict": Verdict(reward=0.5, correct=True),
        "started_at": "2026-01-01T00:00:00+00:00",
        "usage": {"policy": Usage(prompt_tokens=3)},
    }
    return Trace(**{**given, **fields})


MASKED = Verdict(reward=None, masked=True, failure_class="infra")


def strict_lines(path) -> list[dict]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_what_is_written_is_read_back(tmp_path):
    traces = [make_trace(k, messages=({"role": "user", "content": "né ☃"},)) for k in range(3)]
    with TraceWriter(tmp_path / "new" / "folder" / "t.jsonl") as writer:
        for trace in traces:
            writer.write(trace)
    assert list(read_traces(writer.path)) == traces


def test_non_finite_numbers_are_strict_json_and_read_back(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(metadata={"a": math.nan, "b": [math.inf]}))
        writer.write(make_trace(metadata={"a": math.nan, "odd": "\ud83d"}))
    first, second = strict_lines(path)
    assert first["metadata"] == {"a": "NaN", "b": ["Infinity"]}
    assert second["metadata"] == {"a": "NaN", "odd": "\ufffd"}
    assert len(list(read_traces(path))) == 2


def test_log_probabilities_that_are_not_finite_survive_the_file(tmp_path):
    turn = Turn(index=0, message={"role": "assistant"}, logprobs=(-0.5, math.nan, -math.inf))
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(make_trace(turns=(turn,)))
    (read,) = read_traces(writer.path)
    first, second, third = read.turns[0].logprobs
    assert (first, third) == (-0.5, -math.inf)
    assert math.isnan(second)


def test_values_without_a_json_form_are_described(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(metadata={"what": {1, 2}, "who": object}))
    (line,) = strict_lines(path)
    assert "object" in line["metadata"]["who"]


def test_lone_surrogates_are_replaced_on_write_and_on_read(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(messages=({"role": "user", "content": "a\ud83db"},)))
    raw = make_trace(1, messages=({"role": "user", "content": "MARK"},)).model_dump_json()
    with path.open("a") as file:
        file.write(raw.replace("MARK", "\\ud83d") + "\n")
    for trace in read_traces(path):
        trace.messages[0]["content"].encode()
    assert strict_lines(path)[0]["messages"][0]["content"] == "a\ufffdb"


def test_last_ten_bytes_missing_leaves_the_earlier_records_and_one_torn(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        for k in range(4):
            writer.write(make_trace(k))
    os.truncate(path, path.stat().st_size - 10)
    file = TraceFile(path, on_torn=lambda number: None)
    assert [trace.trace_id for trace in file] == ["t0", "t1", "t2"]
    assert file.torn == (4,)


def test_torn_line_is_logged_unless_asked_otherwise(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    path.write_text('{"schema_ver')
    assert list(read_traces(path)) == []
    assert "line 1 is torn" in caplog.text


def test_file_of_torn_lines_is_not_a_warning_each(tmp_path, caplog):
    path = tmp_path / "traces.jsonl"
    path.write_text("torn\n" * 1000)
    file = TraceFile(path)
    assert list(file) == []
    assert len(file.torn) == 1000
    assert len(caplog.records) == 6
    assert "further torn lines" in caplog.text


def test_writing_after_a_torn_line_starts_a_line_of_its_own(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(make_trace(0).model_dump_json()[:-10])
    with TraceWriter(path) as writer:
        writer.write(make_trace(1))
    file = TraceFile(path, on_torn=lambda number: None)
    assert [trace.trace_id for trace in file] == ["t1"]
    assert file.torn == (1,)


def test_failed_write_is_an_error_and_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path)
    writer.write(make_trace(0))
    before = path.read_bytes()
    real_write = os.write

    def full_disk(file: int, data: bytes) -> int:
        if len(data) > 40:
            return real_write(file, data[:40])
        raise OSError(28, "No space left on device")

    def half(file: int, data: bytes) -> int:
        monkeypatch.setattr(jsonl_module.os, "write", lambda f, d: full_disk(f, b""))
        return real_write(file, data[:40])

    monkeypatch.setattr(jsonl_module.os, "write", half)
    with pytest.raises(TraceError, match="No space left"):
        writer.write(make_trace(1))
    monkeypatch.undo()
    assert path.read_bytes() == before
    writer.write(make_trace(2))
    writer.close()
    assert [trace.trace_id for trace in read_traces(path)] == ["t0", "t2"]


def test_short_writes_are_completed(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(jsonl_module.os, "write", lambda f, d: real_write(f, d[:7]))
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(make_trace(0))
    monkeypatch.undo()
    assert list(read_traces(writer.path)) == [make_trace(0)]


def test_unwritable_place_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="can't open"):
        TraceWriter(tmp_path / "file" / "t.jsonl")


def test_closed_writer_says_so(tmp_path):
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(TraceError, match="closed"):
        writer.write(make_trace())


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="can't read"):
        list(read_traces(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema_version": 99}', "schema version 99; this agentgym reads version 1"),
        ('{"a": 1}', "not a trace"),
        ("[1]", "not a trace"),
        (make_trace().model_dump_json().replace('"trace_id"', '"trace_idd"'), "trace_id"),
    ],
)
def test_what_is_json_but_no_trace_is_an_error_with_its_line(tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(make_trace().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(TraceError, match=message) as caught:
        list(read_traces(path))
    assert "line 2" in str(caught.value)


def test_known_secrets_never_reach_the_file(tmp_path):
    secret = 'sk-"test"-123456'
    with TraceWriter(tmp_path / "t.jsonl", secrets=[secret[:9], secret, ""]) as writer:
        writer.write(make_trace(messages=({"role": "tool", "content": f"KEY={secret}"},)))
    (line,) = strict_lines(writer.path)
    assert line["messages"][0]["content"] == "KEY=[redacted]"


def test_credentials_of_the_environment_never_reach_the_file(tmp_path, monkeypatch):
    """J10."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-123")
    monkeypatch.setenv("DB_PASSWORD", 'ünter"w0rld')
    monkeypatch.setenv("GREETING", "good morning")
    environ = dict(os.environ)
    contents = [str(environ), json.dumps(environ), json.dumps(json.dumps(environ))]
    with TraceWriter(tmp_path / "t.jsonl", secrets=["by-hand"]) as writer:
        monkeypatch.delenv("DB_PASSWORD")  # as it stood when the file was opened
        writer.write(
            make_trace(
                messages=tuple({"role": "tool", "content": text} for text in contents),
                metadata=environ | {"more": "by-hand"},
            )
        )
    text = writer.path.read_text()
    for secret in ("sk-test", "w0rld", "by-hand"):
        assert secret not in text
    (trace,) = read_traces(writer.path)
    assert trace.metadata["OPENAI_API_KEY"] == "[redacted]"
    assert trace.metadata["GREETING"] == "good morning"
    assert json.loads(trace.messages[1]["content"])["DB_PASSWORD"] == "[redacted]"


def _append_many(path: str, name: str, count: int) -> None:
    with TraceWriter(path) as writer:
        for k in range(count):
            text = name * 300_000
            writer.write(make_trace(k, trace_id=f"{name}{k}", metadata={"text": text}))


@pytest.mark.thorough
def test_processes_that_share_a_file_never_tear_each_others_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(str(path), n, 15)) for n in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    found = list(read_traces(path))
    assert len({trace.trace_id for trace in found}) == len(found) == 60
    assert all(set(t.metadata["text"]) == {t.trace_id[0]} for t in found)


def test_threads_that_share_a_writer_never_tear_each_others_lines(tmp_path):
    writer = TraceWriter(tmp_path / "t.jsonl")
    threads = [
        threading.Thread(target=lambda: [writer.write(make_trace(k)) for k in range(20)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len(list(read_traces(writer.path))) == 160


def test_finished_is_by_task_and_sample_whatever_the_status(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(0))
        writer.write(make_trace(0, sample=1))
        writer.write(make_trace(1, verdict=MASKED))
        writer.write(make_trace(2, task_id=None, verdict=MASKED))
    file = TraceFile(path)
    assert file.finished() == {("task/0", 0), ("task/0", 1), ("task/1", 0)}
    assert file.finished(retry_masked=True) == {("task/0", 0), ("task/0", 1)}


def test_a_repeated_attempt_supersedes_the_earlier_one(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(0, verdict=MASKED))
        writer.write(make_trace(0, trace_id="again"))
        writer.write(make_trace(1, task_id=None, verdict=MASKED))
        writer.write(make_trace(2, task_id=None, verdict=MASKED))
    latest = [entry.trace_id for entry in TraceFile(path).latest().values()]
    assert latest == ["again", "t1", "t2"]


@given(st.text(), st.dictionaries(st.text(), st.floats() | st.text(st.characters()) | st.none()))
def test_any_text_and_number_survives_as_strict_json(text, metadata):
    trace = make_trace(messages=({"role": "user", "content": text},), metadata=metadata)
    line = trace.to_json_line()
    line.encode()
    assert line.index("\n") == len(line) - 1
    assert json.loads(line, parse_constant=pytest.fail)["messages"][0]["role"] == "user"


# --- telling traces apart without reading them --------------------------------------------------

NESTED = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["verdict", "reward", "policy", "x"]), inner)
    ),
    max_leaves=8,
)


@given(NESTED, st.text(), st.none() | st.floats(-1, 1), st.none() | st.text(min_size=1))
def test_entries_say_what_the_traces_say(tmp_path_factory, value, text, reward, task_id):
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    verdict = MASKED if reward is None else Verdict(reward=reward)
    inner = {"verdict": {"reward": 0.25}, "policy": value}
    one = make_trace(
        7,
        task_id=task_id,
        verdict=verdict,
        env_spec=text,
        policy=inner,
        outcome=inner,
        metadata=inner,
        messages=({"role": text},),
        sample=3,
    )
    with TraceWriter(path) as writer:
        writer.write(one)
        writer.write(one)
    traces = list(read_traces(path))
    for entry, trace in zip(TraceFile(path).entries(), traces, strict=True):
        assert (entry.task_id, entry.sample, entry.trace_id) == (
            *(trace.task_id, trace.sample, trace.trace_id),
        )
        assert (entry.reward, entry.scored) == (trace.reward, trace.scored)
        assert TraceFile(path).at(entry.offset) == trace


def test_line_that_is_torn_anywhere_is_no_entry(tmp_path):
    nested = {"verdict": {"reward": 1.0}}
    line = make_trace(outcome=nested, metadata=nested, messages=(nested,)).to_json_line().encode()
    path = tmp_path / "t.jsonl"
    for end in range(1, len(line) - 1):
        path.write_bytes(line[:end] + b"\n" + line)
        file = TraceFile(path, on_torn=lambda number: None)
        assert [entry.offset for entry in file.entries()] == [end + 1]
        assert file.torn == (1,)


def test_entries_of_another_version_are_an_error_with_its_line(tmp_path):
    path = tmp_path / "t.jsonl"
    line = make_trace().to_json_line()
    path.write_text(line + line.replace('"schema_version":1', '"schema_version":2'))
    with pytest.raises(TraceError, match="line 2: schema version 2; this agentgym reads version 1"):
        list(TraceFile(path).entries())


def test_each_trace_is_told_which_one_counts_in_its_place(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace(0, verdict=MASKED))
        writer.write(make_trace(1))
        writer.write(make_trace(0, trace_id="again"))
        writer.write(make_trace(2, task_id=None, verdict=MASKED))
    found = [(trace.trace_id, by) for trace, by in TraceFile(path).with_successors()]
    assert found == [("t0", "again"), ("t1", None), ("again", None), ("t2", None)]


def test_what_begins_nowhere_is_no_trace(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(make_trace())
    with pytest.raises(TraceError, match="byte 5: no JSON begins there"):
        TraceFile(path).at(5)


def test_disk_that_refuses_says_why_also_where_nothing_can_be_taken_back():
    with TraceWriter("/dev/full") as writer, pytest.raises(TraceError, match="No space left"):
        writer.write(make_trace())


def test_line_of_endless_brackets_is_torn_and_no_recursion_error(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text("[" * 100_000 + "\n" + make_trace(1).to_json_line())
    traces = TraceFile(path, on_torn=lambda number: None)
    assert [trace.trace_id for trace in traces] == ["t1"]
    assert traces.torn == (1,)
