"""Why an episode can't go on, when it is not the policy's doing."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from agentgym.errors import AgentGymError
from agentgym.types import Episode, FailureClass, clean_text


class Failure(Exception):
    """An episode can't go on, through no fault of the policy.

    Args:
        failure_class: Whose fault it is.
        error: What happened, for the trace.
    """

    def __init__(self, failure_class: FailureClass, error: str) -> None:
        super().__init__(error)
        self.failure_class = failure_class

    def marks(self, episode: Episode) -> Episode:
        """The episode's record with this failure in it, which masks its verdict."""
        update = {"failure_class": self.failure_class, "error": str(self)}
        return episode.model_copy(update=update)


class OutOfTime(Exception):
    """The episode's clock ran out between two turns, which truncates it."""


def text_of(error: BaseException) -> str:
    """An exception for the trace: one line if it is ours, with its traceback otherwise."""
    if isinstance(error, AgentGymError) and error.__cause__ is None:
        return clean_text(f"{type(error).__name__}: {error}")
    return clean_text("".join(traceback.format_exception(error)).strip())


def last_line(text: str) -> str:
    """The line of a failure's text that says what happened."""
    return text.strip().rpartition("\n")[2]


def record_of(info: Mapping[str, Any]) -> Episode:
    """The episode's record in the last `info`.

    Raises:
        Failure: If it isn't there.
    """
    record = info.get("episode_record")
    if not isinstance(record, Episode):
        raise Failure("env", 'the last info has no "episode_record"; does a wrapper drop it?')
    return record
