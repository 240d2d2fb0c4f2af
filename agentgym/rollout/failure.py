"""Why an episode can't go on, when it is not the policy's doing."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from typing import Any

from agentgym.errors import AgentGymError
from agentgym.types import Episode, FailureClass, TruncationReason, clean_text


class Failure(Exception):
    """An episode can't go on, through no fault of the policy.

    Args:
        failure_class: Whose fault it is.
        error: What happened, for the trace.
        fatal: Whether every other episode of the batch will fail of it too.
        cut: How the episode is truncated if the env is still in order.
        again: Whether another attempt at the episode may fare better. Not where a client has made
            all its own attempts: the same call would be tried twice over.
    """

    def __init__(
        self,
        failure_class: FailureClass,
        error: str,
        *,
        fatal: bool = False,
        cut: TruncationReason = "fault",
        again: bool = True,
    ) -> None:
        super().__init__(error)
        self.failure_class = failure_class
        self.fatal = fatal
        self.cut: TruncationReason = cut
        self.again = again and not fatal

    def marks(self, episode: Episode) -> Episode:
        """The episode's record with this failure in it, which masks its verdict."""
        update = {"failure_class": self.failure_class, "error": str(self)}
        return episode.model_copy(update=update)


class OutOfTime(Exception):
    """The episode's clock ran out between two turns, which truncates it."""


def text_of(error: BaseException) -> str:
    """An exception for the trace: one line if it is ours, with its traceback otherwise."""
    if isinstance(error, AgentGymError) and isinstance(error.__cause__, AgentGymError | None):
        return clean_text(f"{type(error).__name__}: {error}")
    text = "".join(traceback.format_exception(error)).strip()
    if isinstance(error, BaseExceptionGroup):  # whose text ends in a ruled line
        text += f"\n{type(error).__name__}: {error}"
    return clean_text(text)


def is_ours(error: BaseException) -> bool:
    """Whether an exception is meant for the batch: Ctrl-C, or the cancellation of this task.

    What an environment, a policy or a judge raises is the episode's, `SystemExit` and a
    cancellation of its own making (an inner task that was cancelled) included. So is a
    `GeneratorExit` in a running task; a coroutine that is thrown away gets one outside of any.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    task = _current_task()
    cancelled = task is not None and task.cancelling() > 0
    return task is None or (cancelled and isinstance(error, asyncio.CancelledError))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


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


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors that stopped a run; the others followed from it or equal it."""
    error = group.exceptions[0]
    return first_cause(error) if isinstance(error, BaseExceptionGroup) else error
