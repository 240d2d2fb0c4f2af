"""Appending to a file that several threads, processes and crashes may share.

Traces are written by the rollout engine's writer and by the `TraceLogger` wrapper; a line of either
survives the other and whatever kills one of them.
"""

from __future__ import annotations

import fcntl
import os


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
            os.ftruncate(file, end)
            raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
