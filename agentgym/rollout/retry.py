"""What is tried again after a failure, and how often at most.

Only failures that are nobody's fault in the conversation: a policy's failure is a result, and so is
a reward of zero. A call is never tried twice over: what a client gave up on after its own attempts
is not asked again here. But where a step's outcome is unknown (the env broke or hung in the middle
of it, a worker died) nobody can go on from there, so the whole episode is played again from the
same seed. A failed judgement is made again without rolling out again.
"""

from __future__ import annotations

from pydantic import Field

from agentgym.types import Finite, Record


class Retry(Record):
    """How often episodes are played again, by whose fault the failure was.

    Everything here is bounded per episode and over the run, and every attempt is paid for: what it
    cost is in the trace (`Trace.earlier`, `Trace.usage`).
    """

    env: int = Field(default=1, ge=0)
    """Times an episode is played again after its environment broke."""
    simulator: int = Field(default=1, ge=0)
    """Times after a user or tool simulator failed."""
    infra: int = Field(default=2, ge=0)
    """Times after a step or a worker was lost, or the env was not ready in time; never after a call
    that the policy's client has given up on."""
    judge: int = Field(default=1, ge=0)
    """Times a failed judgement is made again; the episode is not played again for it."""
    per_episode: int = Field(default=2, ge=0)
    """Times an episode is played again at most, whatever the failures."""
    budget: Finite = Field(default=0.2, ge=0)
    """Further attempts and top-ups in a run, per episode that was asked for."""
    budget_floor: int = Field(default=10, ge=0)
    """As many are allowed however short the run is."""
    pause_s: Finite = Field(default=1.0, ge=0)
    """Pause before the second attempt, seconds; doubled before each further one, with jitter."""
    max_pause_s: Finite = Field(default=60.0, ge=0)
    """Longest pause, seconds."""
    min_group_size: int | None = Field(default=None, ge=2)
    """Scored rollouts that a group needs: where failures leave fewer, replacements are rolled out,
    under new sample numbers. None: groups are left as they are."""
    top_ups: int = Field(default=2, ge=0)
    """Replacements for one group at most."""
