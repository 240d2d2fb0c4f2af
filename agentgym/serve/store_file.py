"""The store's file: its tables, its version, its owner, its transactions."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgym.serve.store_records import StoreError, StoreFull

STORE_VERSION = 1
_APPLICATION_ID = 0x41475356  # "AGSV": another program's database is told apart

_SCHEMA = """
CREATE TABLE jobs (
  job_id TEXT PRIMARY KEY, caller TEXT NOT NULL, idempotency_key TEXT, body_hash TEXT NOT NULL,
  spec TEXT NOT NULL, open INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'running',
  error TEXT, created_at TEXT NOT NULL, finished_at TEXT,
  UNIQUE (caller, idempotency_key)
);
CREATE TABLE episodes (
  job_id TEXT NOT NULL, number INTEGER NOT NULL, request TEXT NOT NULL, grp TEXT,
  over INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
CREATE TABLE traces (
  job_id TEXT NOT NULL, cursor INTEGER NOT NULL, number INTEGER, grp TEXT, reward REAL,
  failure_class TEXT, line TEXT NOT NULL,
  PRIMARY KEY (job_id, cursor)
);
CREATE UNIQUE INDEX one_trace_per_episode ON traces (job_id, number) WHERE number IS NOT NULL;
CREATE TABLE usage (
  job_id TEXT NOT NULL, role TEXT NOT NULL, usage TEXT NOT NULL, PRIMARY KEY (job_id, role)
);
CREATE TABLE replicas (
  caller TEXT NOT NULL, pool TEXT NOT NULL, base_url TEXT NOT NULL, endpoint TEXT NOT NULL,
  paused INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (caller, pool, base_url)
);
CREATE TABLE spent (
  caller TEXT NOT NULL, day TEXT NOT NULL, episodes INTEGER NOT NULL DEFAULT 0,
  tokens INTEGER NOT NULL DEFAULT 0, usd REAL NOT NULL DEFAULT 0, PRIMARY KEY (caller, day)
);
"""


class StoreFile:
    """An SQLite file in WAL mode that one service owns.

    Args:
        path: The file, which only its owner may read; None keeps everything in memory.

    Raises:
        StoreError: If it is of another version, in use, or no store at all.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = _locked(path) if path is not None else None
        try:
            self.db = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            self._unlock()
            raise StoreError(f"can't use {path} as a store: {error}") from error
        self.db.row_factory = sqlite3.Row
        try:
            self._prepare()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"can't use {path} as a store: {error}") from error
        except StoreError:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing.

        Raises:
            StoreFull: If there is no room for it.
            StoreError: If it can't be done for another reason.
        """
        try:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                text = f"the store can't be written ({error}; is the disk full?)."
                raise StoreFull(text) from None
            raise StoreError(f"the store failed: {error}") from error

    def close(self) -> None:
        """Close it, and let others have it; may be called twice."""
        self.db.close()
        self._unlock()

    def _prepare(self) -> None:
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        (application,) = self.db.execute("PRAGMA application_id").fetchone()
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        (tables,) = self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            with self.writing() as db:
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {STORE_VERSION}")
        elif application != _APPLICATION_ID:
            raise StoreError(f"{self.path} is a database of another program; name another file")
        elif version != STORE_VERSION:
            raise StoreError(
                f"{self.path} is a store of version {version}; this agentgym uses version "
                f"{STORE_VERSION}: finish its jobs with the version that made it, or name another "
                "file"
            )

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path) -> int:
    """Take the store for this process; a kill gives it back.

    Raises:
        StoreError: If another process has it, or the place can't be written.
    """
    try:
        path = path.resolve()  # one store has one lock, whatever it is called
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"can't open {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"{path} is in use by another service; stop that one, or name another store"
        ) from error
    return lock
