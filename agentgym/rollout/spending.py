"""What a run has spent of its budget, in a file, so that a killed one is gone on with honestly.

Traces tell what is over. Whatever was in flight when a process was killed has no trace and was paid
for all the same, and so were requests whose bill nobody ever saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from agentgym.errors import ConfigError, TraceError
from agentgym.types import Finite, Record, Usage

SPENT_FILE = "spent.json"
"""Its name in a run's folder."""


class Unbilled(Record):
    """What requests may have taken whose bill nobody knows, at their most."""

    usd: Finite = 0.0
    tokens: Finite = 0.0


class Spending(Record):
    """Tokens and dollars by role, of all parts of a run so far."""

    billed: dict[str, Usage] = Field(default_factory=dict)
    unbilled: dict[str, Unbilled] = Field(default_factory=dict)
    """Beside `billed`; calls that aren't over yet are in here, too."""

    def at_least(self, told: Mapping[str, Usage]) -> Spending:
        """With what the traces tell of a role, where that is more.

        They may be of a part of the run that had no budget, and this of one that was killed.
        """
        billed = dict(self.billed)
        for role, usage in told.items():
            known = billed.get(role)
            if known is None or _size(usage) > _size(known):
                billed[role] = usage
        return Spending(billed=billed, unbilled=self.unbilled)


def read_spending(file: Path) -> Spending:
    """What a run has spent; nothing if there is no such file.

    Raises:
        ConfigError: If it can't be read.
    """
    try:
        return Spending.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return Spending()
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"can't read {file}, which says what the run has spent: {type(error).__name__}"
        ) from error


def write_spending(file: Path, spending: Spending) -> None:
    """Replace the file as a whole.

    It is written after each episode, so it isn't forced to the disk: that a killed process leaves
    it behind needs no more than the kernel.

    Raises:
        TraceError: If it can't be written.
    """
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(
            json.dumps(spending.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8"
        )
        beside.replace(file)
    except OSError as error:
        raise TraceError(f"can't write {file}: {error.strerror or error}") from error


def _size(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens
