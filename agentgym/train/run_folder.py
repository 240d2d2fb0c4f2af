"""The folder of a run: whether it is free, and whether what is in it can be continued."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.train.config import TrainConfig
from agentgym.train.files import CONFIG_FILE

logger = logging.getLogger(__name__)

_FIXED = ("env", "env_kwargs", "tasks_per_step", "group_size", "seed", "lora", "learning_rate")
"""Fields that a run keeps to its end: tasks, seeds, and what is in the optimiser's own state."""
_FIXED_IN_EVALUATIONS = ("eval.tasks", "eval.env_kwargs")
"""Evaluations are compared task by task."""
_WHAT_IS_LEARNT = (
    "model", "objective.algorithm", "objective.refill", "objective.truncated",
    "sampling.temperature", "sampling.max_turn_tokens", "sampling.max_episode_tokens",
    "sampling.max_context", "grpo",
)  # fmt: skip
"""Fields that may change, and make another run of it."""


def run_record(config: TrainConfig) -> dict[str, Any]:
    """The config as the folder keeps it, so that the run can be resumed from anywhere."""
    record = config.model_dump(mode="json")
    folder = Path(config.model).expanduser()
    if folder.is_dir():
        record["model"] = str(folder.absolute())
    return record


def claim(config: TrainConfig, *, resume: bool = False) -> Path | None:
    """See that the output folder is free for this run; nothing is written yet.

    Returns:
        The checkpoint to continue from, if any.

    Raises:
        ConfigError: If the folder has another run, or can't be written to.
    """
    from transformers.trainer_utils import get_last_checkpoint

    record = config.out / CONFIG_FILE
    last = get_last_checkpoint(str(config.out)) if config.out.is_dir() else None
    if not resume:
        if last is not None:
            raise ConfigError(
                f"{config.out} already has a run ({Path(last).name}); continue it with --resume, "
                "or choose another --out"
            )
    elif record.exists():
        _compare(config, _read_record(record))
    there = next(p for p in (config.out, *config.out.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"can't write to {config.out}: {there} is not a folder to write in")
    if not resume:
        return None
    if last is None:
        if not record.exists():
            raise ConfigError(f"{config.out} has no run to resume; start one without --resume")
        logger.warning("%s has no checkpoint; starting from the beginning", config.out)
        return None
    done = int(Path(last).name.rpartition("-")[2])
    if done > config.steps:
        raise ConfigError(
            f"{config.out} is at step {done} already, past steps={config.steps}; name more steps"
        )
    return Path(last)


def _read_record(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"can't read {path}, the config of the run to resume: {error}; mend it, or start "
            "another run in another --out"
        ) from error
    return found if isinstance(found, dict) else {}


def _compare(config: TrainConfig, before: Mapping[str, Any]) -> None:
    """Refuse what would not continue, and tell what makes another run of it."""
    now = run_record(config)

    def changed(names: tuple[str, ...]) -> list[str]:
        return [n for n in names if _holds(before, n) and _value(before, n) != _value(now, n)]

    fixed = _FIXED if config.eval.every is None else _FIXED + _FIXED_IN_EVALUATIONS
    if broken := changed(fixed):
        raise ConfigError(
            f"can't resume {config.out} with another {', '.join(broken)}: tasks, seeds and the "
            "optimiser's state would not continue; it was "
            f"{', '.join(f'{name}={_value(before, name)!r}' for name in broken)}"
        )
    for name in changed(_WHAT_IS_LEARNT):
        logger.warning(
            "resumed with another %s: %r, it was %r; curves before and after are not comparable",
            name,
            _value(now, name),
            _value(before, name),
        )


def _holds(record: Mapping[str, Any], name: str) -> bool:
    """Whether a record has a field, which may be in a table (`eval.tasks`)."""
    table, _, inner = name.rpartition(".")
    holder = record.get(table) if table else record
    return isinstance(holder, Mapping) and inner in holder


def _value(record: Mapping[str, Any], name: str) -> Any:
    table, _, inner = name.rpartition(".")
    return record[table][inner] if table else record[inner]
