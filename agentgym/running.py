"""The episode in progress: the mutable state behind `AgentEnv`, frozen into records at the end.

Kept apart from the env so that it can be copied for a snapshot in one piece, and built from plain
attributes because it is touched several times in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.errors import SimulatorAbort, SimulatorError
from agentgym.metering import Meter
from agentgym.types import (
    Episode,
    FailureClass,
    Message,
    Task,
    ToolCall,
    ToolSpec,
    TruncationReason,
    Turn,
    clean_text,
)


class TurnRecord:
    """A turn while it happens; it becomes a `Turn` when the episode is over."""

    __slots__ = ("annotations", "calls", "env_s", "malformed_text", "message", "replies")

    def __init__(self, message: Message, annotations: dict[str, Any]) -> None:
        self.message = message
        self.annotations = annotations
        self.calls: list[ToolCall] = []
        self.replies: Sequence[Message] = ()
        self.malformed_text = False
        self.env_s = 0.0

    @property
    def cut_off(self) -> bool:
        """Whether the output limit ended the message."""
        return bool(self.annotations.get("cut_off")) or (
            self.annotations.get("finish_reason") == "length"
        )

    def turn(self, index: int) -> Turn:
        """The frozen record."""
        return Turn(
            index=index,
            message=self.message,
            replies=tuple(self.replies),
            calls=tuple(self.calls),
            malformed_text=self.malformed_text,
            env_s=self.env_s,
            **{**self.annotations, "cut_off": self.cut_off},
        )


class RunningEpisode:
    """The mutable state of the episode in progress."""

    def __init__(self, task: Task, *, deferred: bool) -> None:
        self.task = task
        self.deferred = deferred
        self.max_turns: int | None = None
        self.messages: list[Message] = []
        self.records: list[TurnRecord] = []
        self.call_ids: set[str] = set()
        self._repeats: dict[str, int] = {}
        self.over = False
        self.ended: str | None = None
        self.answer: str | None = None
        self.truncation_reason: TruncationReason | None = None
        self.failure_class: FailureClass | None = None
        self.error: str | None = None
        self.meter = Meter()

    def new_call_id(self, given: object) -> str:
        """The model's id if it is new in this episode, else a fresh one."""
        wanted = clean_text(given) if isinstance(given, str) and given else ""
        wanted = wanted or f"call_{len(self.call_ids)}"
        unique, number = wanted, self._repeats.get(wanted, 1)
        while unique in self.call_ids:
            number += 1
            unique = f"{wanted}_{number}"
        self._repeats[wanted] = number  # where the search goes on: 10,000 equal ids are linear
        self.call_ids.add(unique)
        return unique

    def add(self, record: TurnRecord) -> None:
        """Append a finished turn to the conversation."""
        self.messages.append(record.message)
        self.messages.extend(record.replies)
        self.records.append(record)

    def fail(
        self, failure_class: FailureClass, error: str, *, reason: TruncationReason = "fault"
    ) -> None:
        """End the episode because something other than the policy broke; it won't be scored."""
        self.failure_class, self.error = failure_class, error
        self.truncation_reason = reason

    def fail_by_simulator(self, error: SimulatorError) -> None:
        """End the episode because a simulator failed or gave up."""
        aborted = isinstance(error, SimulatorAbort)
        self.fail("simulator", str(error), reason="simulator_abort" if aborted else "fault")

    @property
    def is_ending(self) -> bool:
        """Whether something already ended the episode, so that further calls don't run."""
        return self.ended is not None or self.truncation_reason is not None

    @property
    def at_cap(self) -> bool:
        """Whether the last allowed turn is over and nothing else ended the episode."""
        if self.is_ending or self.max_turns is None:
            return False
        return len(self.records) >= self.max_turns

    @property
    def turns_left(self) -> int | None:
        """Assistant messages still allowed; None without a cap."""
        return None if self.max_turns is None else self.max_turns - len(self.records)

    def freeze(
        self, *, env_id: str, tools: tuple[ToolSpec, ...], outcome: dict[str, Any]
    ) -> Episode:
        """The record of the finished episode."""
        truncated = self.truncation_reason is not None
        return Episode(
            env_id=env_id,
            task=self.task,
            tools=tools,
            messages=tuple(self.messages),
            turns=tuple(record.turn(i) for i, record in enumerate(self.records)),
            terminated=not truncated,
            truncated=truncated,
            termination_reason=None if truncated else self.ended,
            truncation_reason=self.truncation_reason,
            answer=self.answer,
            outcome=outcome,
            failure_class=self.failure_class,
            error=self.error,
            spent=dict(self.meter.by_role),
        )
