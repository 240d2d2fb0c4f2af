"""What the store keeps and tells, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import AgentGymError


class StoreError(AgentGymError):
    """The store can't be used, or can't take what is to be kept."""


class StoreFull(StoreError):
    """There is no room for it; nothing of it was kept."""


class KeyTaken(StoreError):
    """Another job was sent under the idempotency key."""


@dataclass(frozen=True)
class StoredJob:
    """A job as it was accepted, and how far it is."""

    job_id: str
    caller: str
    spec: str
    """Its `JobRequest` as JSON."""
    open: bool
    state: str
    error: dict[str, str] | None
    created_at: str
    finished_at: str | None


@dataclass(frozen=True)
class StoredTrace:
    """A trace on its way into the store."""

    number: int | None
    """The episode's in the job; None for one that the engine played as a replacement."""
    group: str | None
    reward: float | None
    failure_class: str | None
    line: str


@dataclass(frozen=True)
class Spending:
    """What a client has used on one day."""

    episodes: int = 0
    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.episodes + other.episodes, self.tokens + other.tokens, self.usd + other.usd
        )

    def __sub__(self, other: Spending) -> Spending:
        return self + Spending(-other.episodes, -other.tokens, -other.usd)


@dataclass(frozen=True)
class Standing:
    """How far a job is, as the store knows it."""

    requested: int
    finished: int
    scored: int
    masked: dict[str, int]
    cursor: int
    usage: dict[str, str]
    """By role, as JSON."""
    rest_of_group: dict[str, int]
    """Groups that are partly over: how many of theirs are not."""
    whole_scored: int
    """Scored episodes without a group, or of a group that is over."""
    informative_groups: int
    """Groups that are over and differ in reward."""
