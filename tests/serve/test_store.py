"""The store: whole or not at all, one owner, one version, cursors that stay."""

from __future__ import annotations

import sqlite3

import pytest

from agentgym.rollout.request import EpisodeRequest
from agentgym.serve.store import Store
from agentgym.serve.store_records import (
    KeyTaken,
    Spending,
    StoredJob,
    StoredTrace,
    StoreError,
    StoreFull,
)


def stored(job_id="j", caller="me", **fields):
    values = {
        "job_id": job_id,
        "caller": caller,
        "spec": "{}",
        "open": True,
        "state": "running",
        "error": None,
        "created_at": "2026-01-01T00:00:00+00:00",
        "finished_at": None,
    }
    return StoredJob(**{**values, **fields})


def requests(count, **fields):
    return [EpisodeRequest(seed=seed, **fields) for seed in range(count)]


def trace(number, reward=1.0, group=None, line="{}"):
    failure = None if reward is not None else "env"
    return StoredTrace(number, group, reward, failure, line)


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "s.db")
    yield opened
    opened.close()


def accept(store, job=None, count=3, key=None, body_hash="h", **fields):
    return store.accept(job or stored(), requests(count, **fields), key=key, body_hash=body_hash)


def test_what_was_accepted_is_there_after_reopening(tmp_path):
    store = Store(tmp_path / "s.db")
    accept(store, key="k")
    store.keep("j", "me", [trace(1, line='{"a":1}')], {"policy": "{}"}, Spending(tokens=7))
    store.close()
    store = Store(tmp_path / "s.db")
    assert [job.job_id for job in store.jobs()] == ["j"]
    assert [number for number, _ in store.unfinished("j", -1, 10)] == [0, 2]
    assert store.traces("j", 0, 10, 10**6) == [(1, '{"a":1}')]
    assert store.spent("me") == Spending(episodes=3, tokens=7)
    assert store.under_key("me", "k", "h") == "j"
    store.close()


def test_an_episode_has_one_trace(store):
    accept(store)
    store.keep("j", "me", [trace(1)], {}, Spending())
    with pytest.raises(StoreError):
        store.keep("j", "me", [trace(0), trace(1)], {}, Spending(tokens=5))
    assert store.cursor("j") == 1  # nothing of it was kept
    assert [number for number, _ in store.unfinished("j", -1, 10)] == [0, 2]
    assert store.spent("me").tokens == 0


def test_replacements_have_no_number(store):
    accept(store)
    assert store.keep("j", "me", [trace(None), trace(None), trace(0)], {}, Spending()) == 3


def test_added_episodes_are_taken_once(store):
    accept(store, count=2)
    more = [EpisodeRequest(seed=10), EpisodeRequest(seed=11)]
    assert store.add("j", "me", 2, more, False) == 4
    assert store.add("j", "me", 2, more, False) == 4
    assert store.add("j", "me", 3, [EpisodeRequest(seed=11), EpisodeRequest(seed=12)], True) == 5
    seeds = [request.seed for _, request in store.unfinished("j", -1, 10)]
    assert seeds == [0, 1, 10, 11, 12]
    assert store.jobs()[0].open is False


def test_key_of_another_body_is_taken(store):
    accept(store, key="k")
    assert accept(store, stored("other"), key="k") == "j"
    with pytest.raises(KeyTaken):
        accept(store, stored("other"), key="k", body_hash="different")
    assert accept(store, stored("theirs", caller="you"), key="k") == "theirs"


def test_pages_end_at_their_bytes_but_hold_one_trace(store):
    accept(store)
    store.keep("j", "me", [trace(n, line="x" * 100) for n in range(3)], {}, Spending())
    assert [cursor for cursor, _ in store.traces("j", 0, 10, 10)] == [1]
    assert [cursor for cursor, _ in store.traces("j", 1, 10, 250)] == [2, 3]


def test_standing_counts_groups_that_are_over(store):
    members = [
        EpisodeRequest(seed=1, group=group, sample=sample) for group in "ab" for sample in (0, 1)
    ]
    store.accept(stored(), members, key=None, body_hash="h")
    rows = [trace(0, 1.0, "a"), trace(1, 0.0, "a"), trace(2, 1.0, "b")]
    store.keep("j", "me", rows, {}, Spending())
    standing = store.standing("j")
    assert standing.rest_of_group == {"b": 1}
    assert (standing.finished, standing.scored, standing.whole_scored) == (3, 3, 2)
    assert standing.informative_groups == 1


def fill(store):
    """Leave the database no page more than it has."""
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def test_full_disk_keeps_nothing_of_a_job(store):
    accept(store, stored("first"))
    fill(store)
    with pytest.raises(StoreFull):
        accept(store, stored("second"), count=5000)
    assert [job.job_id for job in store.jobs()] == ["first"]
    assert store.unfinished("second", -1, 10) == []
    assert store.spent("me").episodes == 3


def test_store_in_use_is_refused(tmp_path):
    store = Store(tmp_path / "s.db")
    with pytest.raises(StoreError, match="in use by another service"):
        Store(tmp_path / "s.db")
    store.close()
    Store(tmp_path / "s.db").close()


def test_store_under_another_name_is_the_same_store(tmp_path):
    store = Store(tmp_path / "s.db")
    (tmp_path / "also.db").symlink_to(tmp_path / "s.db")
    with pytest.raises(StoreError, match="in use"):
        Store(tmp_path / "also.db")
    store.close()


def test_store_of_another_version_is_refused(tmp_path):
    Store(tmp_path / "s.db").close()
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="store of version 99; this agentgym uses version 1"):
        Store(tmp_path / "s.db")


def test_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        Store(tmp_path / "s.db")


def test_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "s.db").write_text("a letter to my aunt, which goes on for quite a while" * 50)
    with pytest.raises(StoreError, match="can't use"):
        Store(tmp_path / "s.db")


def test_place_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't open"):
        Store(tmp_path / "file" / "s.db")
