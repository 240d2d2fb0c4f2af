"""Which files a viewer reads, and that nothing in them stops it."""

from __future__ import annotations

import json

import pytest
import trace_zoo as zoo
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import TraceError
from agentgym.report.viewer.reading import FileReplaced, TraceFolder


def ids(folder, *, whole=True):
    return [line.trace.trace_id for line in folder.news(whole=whole)]


def test_folder_is_searched_for_traces_and_other_files_are_passed_over(tmp_path):
    zoo.write_traces(tmp_path / "traces-step000002.jsonl", [zoo.make_trace("a")])
    zoo.write_traces(tmp_path / "deep" / "traces.jsonl", [zoo.make_trace("b")])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' * 9)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "summary.json").write_text("{}")
    folder = TraceFolder([tmp_path])
    assert ids(folder) == ["b", "a"]
    assert [file.facts() for file in folder.files] == [
        {"name": "deep/traces.jsonl", "step": None},
        {"name": "traces-step000002.jsonl", "step": 2},
    ]
    assert folder.notes == []


def test_torn_and_foreign_lines_are_left_out_and_told(tmp_path):
    path = zoo.write_traces(tmp_path / "traces.jsonl", [zoo.make_trace("a")])
    line = path.read_text()
    other = json.dumps({**json.loads(line), "schema_version": 99})
    broken = json.dumps({**json.loads(line), "turns": 3})
    lines = [line, line[:50] + "\n", other + "\n", "\n", broken + "\n", '{"x": 1}\n', line]
    path.write_text("".join(lines) + line[: len(line) // 2])
    folder = TraceFolder([path])
    assert ids(folder) == ["a", "a"]
    assert folder.notes == [
        "traces.jsonl, line 2 is left out: torn: no JSON",
        "traces.jsonl, line 3 is left out: schema version 99; this agentgym reads version 1",
        "traces.jsonl, line 5 is left out: turns: Input should be a valid tuple",
        "traces.jsonl, line 6 is left out: not a trace (no schema_version)",
        "traces.jsonl, line 8 is left out: torn: no JSON",
    ]


def test_of_many_faulty_lines_the_first_are_told(tmp_path):
    path = zoo.write_traces(tmp_path / "traces.jsonl", [zoo.make_trace("a")])
    path.write_text(path.read_text() + "{\n" * 9)
    folder = TraceFolder([path])
    assert ids(folder) == ["a"]
    assert len(folder.notes) == 6
    assert folder.notes[-1] == "traces.jsonl: 4 more lines are left out"


def test_last_line_waits_until_it_is_whole(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.make_trace("a"), zoo.make_trace("b")])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    folder = TraceFolder([path])
    assert ids(folder, whole=False) == ["a"]
    assert folder.notes == ["t.jsonl: its last line has no end: it is being written, or was cut"]
    assert ids(folder, whole=False) == []
    path.write_bytes(whole)
    assert ids(folder, whole=False) == ["b"]
    assert folder.notes == []


def test_file_that_appears_later_is_found(tmp_path):
    zoo.write_traces(tmp_path / "a.jsonl", [zoo.make_trace("a")])
    folder = TraceFolder([tmp_path])
    assert ids(folder, whole=False) == ["a"]
    zoo.write_traces(tmp_path / "b.jsonl", [zoo.make_trace("b")])
    assert ids(folder, whole=False) == ["b"]
    assert [file.name for file in folder.files] == ["a.jsonl", "b.jsonl"]


def test_shorter_file_is_another_one(tmp_path):
    path = zoo.write_traces(tmp_path / "a.jsonl", [zoo.make_trace("a")])
    folder = TraceFolder([path])
    assert ids(folder) == ["a"]
    path.write_text("")
    with pytest.raises(FileReplaced):
        ids(folder)


def test_longer_file_of_the_same_name_is_another_one(tmp_path):
    path = zoo.write_traces(tmp_path / "a.jsonl", [zoo.make_trace("a")])
    folder = TraceFolder([path])
    assert ids(folder) == ["a"]
    path.unlink()
    zoo.write_traces(path, [zoo.make_trace("b"), zoo.make_trace("c")])
    with pytest.raises(FileReplaced):
        ids(folder)


def test_file_that_cant_be_read_hides_no_other(tmp_path):
    for name in "abc":
        zoo.write_traces(tmp_path / f"{name}.jsonl", [zoo.make_trace(name)])
    folder = TraceFolder([tmp_path])
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl").mkdir()
    assert ids(folder) == ["a", "c"]
    assert folder.notes == ["b.jsonl can't be read: Is a directory"]
    assert not folder.hopeless


def test_file_that_is_named_twice_is_read_once(tmp_path, monkeypatch):
    path = zoo.write_traces(tmp_path / "run" / "t.jsonl", [zoo.make_trace("a")])
    (tmp_path / "run" / "latest.jsonl").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    folder = TraceFolder([path, path.parent, path.relative_to(tmp_path)])
    assert ids(folder) == ["a"]


def test_torn_lines_at_the_beginning_hide_nothing(tmp_path):
    line = zoo.make_trace("a").to_json_line()
    (tmp_path / "traces.jsonl").write_text((line[:90] + "\n") * 29 + line)
    folder = TraceFolder([tmp_path])
    assert ids(folder) == ["a"]
    assert folder.notes[-1] == "traces.jsonl: 24 more lines are left out"


def test_why_there_is_nothing(tmp_path):
    def why() -> str:
        folder = TraceFolder([tmp_path])
        assert ids(folder) == []
        return folder.why_empty()

    assert why() == f"no traces in {tmp_path}: there is no *.jsonl file"
    (tmp_path / "traces.jsonl").write_text("")
    assert "no episode has finished yet" in why()
    (tmp_path / "traces.jsonl").write_text('{"schema_ver')
    assert "traces.jsonl is no trace file (line 1: torn: no JSON)" in why()
    (tmp_path / "traces.jsonl").write_bytes(b"\xff\xfe\x00binary\n" * 50)
    assert "is no trace file" in why()
    with pytest.raises(TraceError, match="no such file or folder: nowhere"):
        TraceFolder([tmp_path.relative_to(tmp_path) / "nowhere"])


def test_control_characters_in_a_file_name_are_escaped(tmp_path):
    zoo.write_traces(tmp_path / "a\x1b[31m.jsonl", [zoo.make_trace("a")])
    folder = TraceFolder([tmp_path])
    assert ids(folder) == ["a"]
    assert folder.files[0].name == r"a\x1b[31m.jsonl"


LINE = zoo.make_trace("a").to_json_line().encode()
JUNK = st.one_of(
    st.binary(max_size=60),
    st.integers(1, len(LINE) - 1).map(lambda n: LINE[:n]),
    st.integers(1, len(LINE) - 1).map(lambda n: LINE[n:]),
    st.sampled_from([b"[" * 100_000, b"null", b"[]", b"{}", b"NaN", b'{"schema_version": 1}']),
    st.sampled_from([300, 600, 900]).map(
        lambda n: LINE.replace(b'"outcome":{}', b'"outcome":{"x":%s}' % (b"[" * n + b"]" * n))
    ),
)


@given(st.lists(JUNK, max_size=4))
def test_whatever_lies_in_a_file_the_traces_come(tmp_path_factory, junk):
    path = tmp_path_factory.mktemp("junk") / "traces.jsonl"
    path.write_bytes(LINE + b"".join(part + b"\n" + LINE for part in junk))
    folder = TraceFolder([path])
    assert ids(folder).count("a") >= 1
    assert folder.why_empty()
    for note in folder.notes:
        assert note.isprintable()
