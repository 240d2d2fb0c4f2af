"""The folder of an evaluation: whose it is, what its tasks were, and the results that it has had.

`tasks.json` notes the content of every task that was played here. Episodes are known by the names
of their tasks; where a task of the same name has become another one, the old episodes say nothing
of it, so that going on is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from agentgym.durable import write_whole
from agentgym.errors import ConfigError, DataError
from agentgym.evaluate.result import EvaluationResult, TaskFacts, read_result

TASKS = "tasks.json"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from playing in a folder of traces; it is made if missing.

    Raises:
        ConfigError: If another one plays in it, or it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"can't use {folder} as a folder: {error.strerror}") from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process plays in {folder.parent}; wait for its end, or take another --out"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)
        with suppress(OSError):  # there are traces in it
            folder.rmdir()


def check_tasks(out: Path, world: str, tasks: Mapping[str, TaskFacts]) -> None:
    """See that no task has become another one since it was played here.

    Args:
        out: The evaluation's folder.
        world: Hash of env and parameters; tasks of another world are others anyway.
        tasks: Those to be played.

    Raises:
        ConfigError: If one has, or the notes can't be read.
    """
    before = _noted(out).get(world, {})
    changed = [
        task for task, facts in tasks.items() if before.get(task, facts.content) != facts.content
    ]
    if changed:
        raise ConfigError(
            f"{out} has episodes of {changed[0]!r} as it was before; its content or prompt has "
            f"changed ({len(changed)} such tasks), so take another --out"
        )


def note_tasks(out: Path, world: str, tasks: Mapping[str, TaskFacts]) -> None:
    """Note what the tasks are that are about to be played.

    Raises:
        DataError: If it can't be written.
    """
    notes = _noted(out)
    now = {**notes.get(world, {}), **{task: facts.content for task, facts in tasks.items()}}
    if notes.get(world) == now:
        return
    try:
        write_whole(out / TASKS, json.dumps({**notes, world: now}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"can't write {out / TASKS}: {error.strerror or error}") from error


def keep_aside(file: Path, new: EvaluationResult) -> Path | None:
    """Keep a result that has episodes which the one that takes its place lacks.

    Returns:
        Where it is now; None where nothing would be lost.
    """
    if not file.exists():
        return None
    before = read_result(file)
    kept = {(c.name, a.task_id, a.sample) for c in new.columns for a in c.attempts}
    if all((c.name, a.task_id, a.sample) in kept for c in before.columns for a in c.attempts):
        return None
    stamp = re.sub(r"\D", "", before.created_at)[:14]
    number, aside = 1, file.with_name(f"{file.stem}-{stamp}{file.suffix}")
    while aside.exists():
        number, aside = number + 1, file.with_name(f"{file.stem}-{stamp}-{number}{file.suffix}")
    file.rename(aside)
    return aside


def _noted(out: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads((out / TASKS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read {out / TASKS}: {error}; take another --out") from error
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ConfigError(f"{out / TASKS} has another form; take another --out")
    return found
