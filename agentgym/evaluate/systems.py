"""The systems that a user names: columns of result files, each with a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from agentgym.errors import ConfigError, unknown_name
from agentgym.evaluate.comparable import System
from agentgym.evaluate.result import RESULT_FILE, Column, EvaluationResult, read_result


def systems_of(names: Sequence[str]) -> list[System]:
    """Read `FILE` or `FILE:COLUMN` into systems; a file alone is all its columns.

    A folder stands for the result file in it.

    Labels are as short as they can be while no two are alike: the column's name, with the file's or
    the folder's before it where that is needed.

    Args:
        names: As the user gave them, in order.

    Raises:
        ConfigError: If a column is not in its file, or something is named twice.
        DataError: If a file can't be read.
    """
    found: list[tuple[Path, EvaluationResult, Column]] = []
    read: dict[Path, EvaluationResult] = {}
    for name in names:
        path, column = _split(name)
        if path not in read:
            read[path] = read_result(path)
        result = read[path]
        wanted = [c for c in result.columns if c.name == column] if column else result.columns
        if not wanted:
            known = [c.name for c in result.columns]
            raise ConfigError(f"{path}: {unknown_name('column', column, known)}")
        if column and not wanted[0].attempts:
            raise ConfigError(f"{path}: no episode of {column!r} was played")
        found += [(path, result, each) for each in wanted if each.attempts]
    twice = Counter((path.resolve(), column.name) for path, _, column in found)
    (path, column), count = twice.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{column!r} of {path} is named twice; a system can't be compared to itself"
        )
    labels = _labels([(path, each.name) for path, _, each in found])
    return [
        System(label, result, each) for label, (_, result, each) in zip(labels, found, strict=True)
    ]


def _split(name: str) -> tuple[Path, str]:
    """The file and the column, which may have colons of their own: `x/result.json:qwen3:8b`."""
    path, column = name, ""
    if not Path(name).exists():
        ends = [i for i, char in enumerate(name) if char == ":"]
        # No such file: what stands before the last colon is the one that is missed.
        end = next((i for i in ends if i and Path(name[:i]).exists()), ends[-1] if ends else None)
        if end is not None:
            path, column = name[:end], name[end + 1 :]
    in_folder = Path(path) / RESULT_FILE
    return in_folder if in_folder.exists() else Path(path), column


def _labels(named: Sequence[tuple[Path, str]]) -> list[str]:
    ways: list[Callable[[Path, str], str]] = [
        lambda path, name: name,
        lambda path, name: f"{path.stem}:{name}",
        lambda path, name: f"{path.resolve().parent.name}:{name}",
        lambda path, name: f"{path}:{name}",
    ]
    labels: list[str] = []
    for way in ways:
        labels = [way(path, name) for path, name in named]
        if len(set(labels)) == len(labels):
            return labels
    return labels
