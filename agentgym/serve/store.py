"""What the service must not forget: accepted jobs, their episodes, the traces, the pools.

One SQLite file in WAL mode, written by one thread and locked by one service. A job is accepted with
all its episodes in one transaction, and an episode is over in the transaction that keeps its trace,
so a kill at any moment leaves jobs that are whole and episodes that are either over or not begun.
Traces are numbered per job; the number is the cursor with which a client goes on.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from agentgym.rollout.request import EpisodeRequest
from agentgym.serve.store_file import StoreFile
from agentgym.serve.store_records import (
    KeyTaken,
    Spending,
    Standing,
    StoredJob,
    StoredTrace,
    StoreError,
)

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """The service's memory; blocking, and used from one thread.

    Args:
        path: The file; None keeps everything in memory.

    Raises:
        StoreError: If it is of another version, in use, or no store at all.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = StoreFile(path)
        self._db = self._file.db
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentgym-store")

    async def do(
        self,
        method: Callable[Concatenate[Store, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call one of the methods below in the store's thread.

        Once begun, it is carried out even if the caller is cancelled.

        Raises:
            StoreError: As the method does, or if the file can't be read.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: method(self, *args, **kwargs))
        except sqlite3.Error as error:
            raise StoreError(f"the store can't be read: {error}") from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._thread.shutdown()
        self._file.close()

    # --- jobs ---------------------------------------------------------------------------------

    def accept(
        self,
        job: StoredJob,
        requests: Sequence[EpisodeRequest],
        *,
        key: str | None,
        body_hash: str,
    ) -> str:
        """Keep a job with its episodes, all or nothing.

        Returns:
            Its id; that of the earlier job if the same one was sent under the key before.

        Raises:
            KeyTaken: If another one was.
            StoreFull: If there is no room.
        """
        with self._file.writing() as db:
            if key is not None:
                earlier = self.under_key(job.caller, key, body_hash)
                if earlier is not None:
                    return earlier
            db.execute(
                "INSERT INTO jobs (job_id, caller, idempotency_key, body_hash, spec, open,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (job.job_id, job.caller, key, body_hash, job.spec, job.open, job.created_at),
            )
            self._insert(job.job_id, job.caller, 0, requests)
        return job.job_id

    def under_key(self, caller: str, key: str, body_hash: str) -> str | None:
        """The job that a client sent under a key, if it did.

        Raises:
            KeyTaken: If that is another one than this.
        """
        row = self._db.execute(
            "SELECT job_id, body_hash FROM jobs WHERE caller = ? AND idempotency_key = ?",
            (caller, key),
        ).fetchone()
        if row is not None and row["body_hash"] != body_hash:
            raise KeyTaken(f"key of another job, {row['job_id']}")
        return None if row is None else str(row["job_id"])

    def add(
        self, job_id: str, caller: str, after: int, requests: Sequence[EpisodeRequest], last: bool
    ) -> int:
        """Keep further episodes of an open job, as far as it doesn't have them.

        Returns:
            How many it has now.
        """
        with self._file.writing() as db:
            known = self._requested(job_id)
            self._insert(job_id, caller, known, requests[max(0, known - after) :])
            if last:
                db.execute("UPDATE jobs SET open = 0 WHERE job_id = ?", (job_id,))
            return self._requested(job_id)

    def end(self, job_id: str, state: str, error: dict[str, str] | None, at: str) -> None:
        """Keep that a job is over, since a moment (UTC, ISO 8601)."""
        with self._file.writing() as db:
            db.execute(
                "UPDATE jobs SET state = ?, error = ?, finished_at = ?, open = 0 WHERE job_id = ?",
                (state, json.dumps(error) if error else None, at, job_id),
            )

    def forget(self, job_id: str) -> None:
        """Delete a job and all it has."""
        with self._file.writing() as db:
            for table in ("traces", "episodes", "usage", "jobs"):
                db.execute(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))

    def jobs(self) -> list[StoredJob]:
        """All jobs, the oldest first."""
        return [
            StoredJob(
                job_id=row["job_id"],
                caller=row["caller"],
                spec=row["spec"],
                open=bool(row["open"]),
                state=row["state"],
                error=json.loads(row["error"]) if row["error"] else None,
                created_at=row["created_at"],
                finished_at=row["finished_at"],
            )
            for row in self._db.execute("SELECT * FROM jobs ORDER BY created_at, rowid")
        ]

    # --- episodes and traces ------------------------------------------------------------------

    def unfinished(self, job_id: str, after: int, limit: int) -> list[tuple[int, EpisodeRequest]]:
        """Episodes of a job that are not over, by number.

        Args:
            job_id: The job's.
            after: The number before the first one wanted; -1 for all.
            limit: How many at most.
        """
        rows = self._db.execute(
            "SELECT number, request FROM episodes WHERE job_id = ? AND number > ? AND over = 0"
            " ORDER BY number LIMIT ?",
            (job_id, after, limit),
        )
        return [(row["number"], EpisodeRequest.model_validate_json(row["request"])) for row in rows]

    def count_unfinished(self, job_id: str) -> int:
        """Episodes of a job that are not over."""
        query = "SELECT count(*) FROM episodes WHERE job_id = ? AND over = 0"
        return int(self._db.execute(query, (job_id,)).fetchone()[0])

    def keep(
        self,
        job_id: str,
        caller: str,
        traces: Sequence[StoredTrace],
        usage: dict[str, str],
        spending: Spending,
    ) -> int:
        """Keep finished traces, and with them that their episodes are over.

        Args:
            job_id: The job's.
            caller: Whose it is.
            traces: In the order in which they finished.
            usage: The job's usage by role after them, as JSON.
            spending: What they cost, for the day's account.

        Returns:
            The cursor of the last one.
        """
        with self._file.writing() as db:
            last = self.cursor(job_id)
            for cursor, trace in enumerate(traces, start=last + 1):
                values = (trace.number, trace.group, trace.reward, trace.failure_class, trace.line)
                db.execute(
                    "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?)", (job_id, cursor, *values)
                )
                db.execute(
                    "UPDATE episodes SET over = 1 WHERE job_id = ? AND number = ?",
                    (job_id, trace.number),
                )
            db.executemany(
                "INSERT OR REPLACE INTO usage VALUES (?, ?, ?)",
                [(job_id, role, text) for role, text in usage.items()],
            )
            self._spend(caller, spending)
            return last + len(traces)

    def traces(self, job_id: str, after: int, limit: int, max_bytes: int) -> list[tuple[int, str]]:
        """Traces after a cursor, in order, with their cursors.

        Args:
            job_id: The job's.
            after: The cursor.
            limit: How many at most.
            max_bytes: Of all together; the first is given however long it is.
        """
        found: list[tuple[int, str]] = []
        size = 0
        for row in self._db.execute(
            "SELECT cursor, line FROM traces WHERE job_id = ? AND cursor > ? ORDER BY cursor"
            " LIMIT ?",
            (job_id, after, limit),
        ):
            size += len(row["line"])
            if found and size > max_bytes:
                break
            found.append((row["cursor"], row["line"]))
        return found

    def cursor(self, job_id: str) -> int:
        """The cursor of a job's last trace; 0 before the first."""
        query = "SELECT coalesce(max(cursor), 0) FROM traces WHERE job_id = ?"
        return int(self._db.execute(query, (job_id,)).fetchone()[0])

    def standing(self, job_id: str) -> Standing:
        """How far a job is."""
        masked: dict[str, int] = {}
        finished = scored = 0
        for row in self._db.execute(
            "SELECT reward IS NULL AS masked, failure_class, count(*) AS n FROM traces"
            " WHERE job_id = ? GROUP BY 1, 2",
            (job_id,),
        ):
            finished += row["n"]
            if row["masked"]:
                masked[row["failure_class"] or "unknown"] = row["n"]
            else:
                scored += row["n"]
        usage = self._db.execute("SELECT role, usage FROM usage WHERE job_id = ?", (job_id,))
        return Standing(
            requested=self._requested(job_id),
            finished=finished,
            scored=scored,
            masked=masked,
            cursor=self.cursor(job_id),
            usage={row["role"]: row["usage"] for row in usage},
            rest_of_group=self._rest_of_groups(job_id),
            whole_scored=self._whole_scored(job_id),
            informative_groups=self._informative_groups(job_id),
        )

    # --- pools --------------------------------------------------------------------------------

    def keep_replica(
        self, caller: str, pool: str, base_url: str, endpoint: str, paused: bool
    ) -> None:
        """Keep a server of a pool, or what has changed about it."""
        with self._file.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO replicas VALUES (?, ?, ?, ?, ?)",
                (caller, pool, base_url, endpoint, paused),
            )

    def forget_replica(self, caller: str, pool: str, base_url: str) -> None:
        """Delete a server of a pool."""
        with self._file.writing() as db:
            db.execute(
                "DELETE FROM replicas WHERE caller = ? AND pool = ? AND base_url = ?",
                (caller, pool, base_url),
            )

    def replicas(self) -> list[tuple[str, str, str, bool]]:
        """All pools' servers: client, pool, endpoint as JSON, whether it is paused."""
        rows = self._db.execute("SELECT caller, pool, endpoint, paused FROM replicas")
        return [(row[0], row[1], row[2], bool(row[3])) for row in rows]

    # --- spending -----------------------------------------------------------------------------

    def spent(self, caller: str) -> Spending:
        """What a client has used today (UTC)."""
        row = self._db.execute(
            "SELECT episodes, tokens, usd FROM spent WHERE caller = ? AND day = ?",
            (caller, _now()[:10]),
        ).fetchone()
        return Spending(*row) if row is not None else Spending()

    def charge(self, spendings: Mapping[str, Spending]) -> None:
        """Put what clients have used, by name, on their accounts of today."""
        with self._file.writing():
            for caller, spending in spendings.items():
                self._spend(caller, spending)

    # --- inside -------------------------------------------------------------------------------

    def _requested(self, job_id: str) -> int:
        query = "SELECT coalesce(max(number) + 1, 0) FROM episodes WHERE job_id = ?"
        return int(self._db.execute(query, (job_id,)).fetchone()[0])

    def _insert(
        self, job_id: str, caller: str, first: int, requests: Sequence[EpisodeRequest]
    ) -> None:
        self._db.executemany(
            "INSERT INTO episodes (job_id, number, request, grp) VALUES (?, ?, ?, ?)",
            [
                (job_id, number, request.model_dump_json(exclude_defaults=True), request.group)
                for number, request in enumerate(requests, start=first)
            ],
        )
        self._spend(caller, Spending(episodes=len(requests)))

    def _spend(self, caller: str, spending: Spending) -> None:
        self._db.execute(
            "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " episodes = episodes + excluded.episodes, tokens = tokens + excluded.tokens,"
            " usd = usd + excluded.usd",
            (caller, _now()[:10], spending.episodes, spending.tokens, spending.usd),
        )

    def _rest_of_groups(self, job_id: str) -> dict[str, int]:
        """Groups that are partly over, with how many of theirs are not."""
        rows = self._db.execute(
            "SELECT grp, sum(over = 0) FROM episodes WHERE job_id = ? AND grp IS NOT NULL"
            " GROUP BY grp HAVING sum(over) > 0 AND sum(over = 0) > 0",
            (job_id,),
        )
        return {row[0]: row[1] for row in rows}

    def _whole_scored(self, job_id: str) -> int:
        query = (
            "SELECT count(*) FROM traces WHERE job_id = ?1 AND reward IS NOT NULL AND"
            " (grp IS NULL OR grp NOT IN"
            " (SELECT grp FROM episodes WHERE job_id = ?1 AND over = 0 AND grp IS NOT NULL))"
        )
        return int(self._db.execute(query, (job_id,)).fetchone()[0])

    def _informative_groups(self, job_id: str) -> int:
        query = (
            "SELECT count(*) FROM (SELECT grp FROM traces WHERE job_id = ?1 AND grp IS NOT NULL"
            " AND grp NOT IN"
            " (SELECT grp FROM episodes WHERE job_id = ?1 AND over = 0 AND grp IS NOT NULL)"
            " GROUP BY grp HAVING max(reward) > min(reward))"
        )
        return int(self._db.execute(query, (job_id,)).fetchone()[0])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
