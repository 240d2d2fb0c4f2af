"""Files that are replaced as a whole."""

from __future__ import annotations

import os

import pytest

from agentgym.durable import write_whole


def test_a_file_is_replaced_as_a_whole_and_its_folder_made(tmp_path):
    path = tmp_path / "new" / "file.json"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_what_can_not_be_written_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """Case H04: a full disk, shown by a write that fails after the first part."""
    path = tmp_path / "file.json"
    write_whole(path, "old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "file.json"
    write_whole(path, "old")
    with path.open() as reader:
        write_whole(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
