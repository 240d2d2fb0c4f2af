"""How many sessions a service keeps, how long, and what they may show."""

from __future__ import annotations

from pydantic import Field

from agentgym.serve.session_view import INFO_KEYS
from agentgym.types import Finite, Record


class SessionLimits(Record):
    """Limits of all sessions of a service."""

    max_sessions: int = Field(default=1024, ge=1)
    """Open at once, all clients together; a further one is refused with 503. How many of them one
    client may have is in its `Quota`."""
    max_stuck: int = Field(default=64, ge=0)
    """Environments left behind in a call that never returns; beyond, nothing is made any more."""
    idle_ttl_s: Finite = Field(default=900.0, gt=0)
    """Seconds without a request after which a session is closed."""
    make_timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest time for making an environment, seconds."""
    reset_timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest time for a reset, seconds."""
    step_timeout_s: Finite = Field(default=300.0, gt=0)
    """Longest time for a turn, judging left out, seconds; the episode is then masked."""
    judge_timeout_s: Finite = Field(default=300.0, gt=0)
    """Longest time for the verdict, seconds; the episode is then masked."""
    close_timeout_s: Finite = Field(default=10.0, gt=0)
    """Longest wait for an environment to close, seconds."""
    max_observation_bytes: int = Field(default=1 << 20, ge=64)
    """Bytes of one observation's text; what is more is left out, and the text says so."""
    max_action_bytes: int = Field(default=4 << 20, ge=1024)
    """Bytes of one action as JSON, token ids and log-probabilities included."""
    max_episode_bytes: int = Field(default=32 << 20, ge=1024)
    """Bytes of all actions of an `AgentEnv`'s episode together, which are kept for its trace."""
    max_turns: int = Field(default=1000, ge=1)
    """Turns of one episode of an `AgentEnv`; its own cap holds as well."""
    option_keys: frozenset[str] = frozenset({"task_id", "max_turns"})
    """What a client may pass to `reset` as options."""
    info_keys: frozenset[str] = INFO_KEYS
    """What of an env's `info` a client gets; nothing hidden belongs here."""
    reveal_outcomes: bool = False
    """Whether a finished episode's trace and verdict show the env's final state and the judge's
    remarks; they may name what the task kept hidden."""

    @property
    def longest_s(self) -> float:
        """Longest time for any one request, seconds."""
        making = self.make_timeout_s + self.reset_timeout_s
        return max(making, self.step_timeout_s + self.judge_timeout_s) + self.close_timeout_s
