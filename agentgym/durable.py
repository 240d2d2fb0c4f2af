"""Writing files that several threads, processes and crashes may share.

Traces are appended by the rollout engine's writer and by the `TraceLogger` wrapper; a line of
either survives the other and whatever kills one of them. Files that are written anew are replaced
as a whole.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from agentgym.errors import TraceError


def append_line(file: int, line: bytes) -> None:
    """Append a line whole, or leave the file as it was.

    An advisory lock is held meanwhile. What a killed writer left behind is ended first, so that it
    costs its own line and no other.

    Args:
        file: Descriptor of a file open for reading and appending.
        line: With its line feed.

    Raises:
        OSError: If it can't be written (disk full, …).
    """
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        end = os.lseek(file, 0, os.SEEK_END)
        if end and os.pread(file, 1, end - 1) != b"\n":
            line = b"\n" + line
        try:
            written = 0
            while written < len(line):
                written += os.write(file, line[written:])
        except OSError:
            with suppress(OSError):  # a device; the next writer ends the line
                os.ftruncate(file, end)
            raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole, so that nobody ever reads half of it; make its folder if missing.

    The content is on the disk before the old file goes, so a crash leaves the one or the other.

    Raises:
        OSError: If it can't be written; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


class LineFile:
    """A file that lines are appended to, whole or not at all; threads may share it.

    Args:
        path: The file; it and its folder are made if missing.

    Raises:
        TraceError: If the file can't be opened for appending.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            self._file: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise TraceError(
                f"can't open {path} for appending: {error.strerror or error}"
            ) from error

    def append(self, line: bytes) -> None:
        """Append a line; when this returns, it is in the file.

        Raises:
            TraceError: If it can't be written; the file then holds what it held.
        """
        with self._lock:
            if self._file is None:
                raise TraceError(f"{self._path} is closed; open it anew to append to it")
            try:
                append_line(self._file, line)
            except OSError as error:
                raise TraceError(
                    f"can't write to {self._path}: {error.strerror or error}; "
                    "the lines before this one are intact"
                ) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
