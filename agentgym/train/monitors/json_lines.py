"""Reading a run's files of JSON lines, which crashes tear and strangers write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, in order; none if there is no file.

    A line that holds no JSON object is left out: torn by a crash, or somebody else's. Only a line
    feed ends a line, whatever else `str.splitlines` takes for an end.
    """
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        for line in file:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found
