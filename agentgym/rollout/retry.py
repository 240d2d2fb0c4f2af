"""What is tried again after a failure, and how often at most.

Only failures that are nobody's fault in the conversation: a policy's failure is a result, and so is
a reward of zero. A call is never tried twice over: what a client gave up on after its own attempts
is not asked again here. But where a step's outcome is unknown (the env broke or hung in the middle
of it, a worker died) nobody can go on from there, so the whole episode is played again from the
same seed. A failed judgement is made again without rolling out again.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from agentgym.rollout.request import derived_seed
from agentgym.trace import EarlierAttempt
from agentgym.types import FailureClass, Finite, Record

logger = logging.getLogger(__name__)


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
    """Times a failed judgement is made again, unless an endpoint failed all its client's attempts;
    the episode is not played again for it."""
    per_episode: int = Field(default=2, ge=0)
    """Times an episode is played again at most, whatever the failures."""
    budget: Finite = Field(default=0.2, ge=0)
    """Further attempts and replacements, per episode that the engine was asked for so far."""
    budget_floor: int = Field(default=10, ge=0)
    """As many are allowed however few it was asked for."""
    pause_s: Finite = Field(default=1.0, ge=0)
    """Pause before the second attempt, seconds; doubled before each further one, with jitter."""
    max_pause_s: Finite = Field(default=60.0, ge=0)
    """Longest pause, seconds."""
    min_group_size: int | None = Field(default=None, ge=2)
    """Scored rollouts that a group needs: where failures leave fewer, replacements are rolled out,
    under new sample numbers. None: groups are left as they are."""
    top_ups: int = Field(default=2, ge=0)
    """Replacements for one group at most."""


class Retries:
    """What has been tried again by an engine, and what still may be.

    Args:
        retry: None allows nothing.
    """

    def __init__(self, retry: Retry | None) -> None:
        self._retry = retry
        self._asked = 0
        self._warned = False
        self.again = 0
        """Attempts that were made again."""
        self.topped_up = 0
        """Rollouts in place of others of their group."""

    def asked(self) -> None:
        """One more episode was asked for."""
        self._asked += 1

    def pause_s(
        self, failure_class: FailureClass, earlier: Sequence[EarlierAttempt], *, name: str, why: str
    ) -> float | None:
        """The pause before another attempt, seconds; None if there is to be none.

        Args:
            failure_class: Whose fault the latest attempt's failure was.
            earlier: The attempts before that.
            name: The episode's.
            why: What happened, for the log.
        """
        retry = self._retry
        if retry is None or len(earlier) >= retry.per_episode:
            return None
        allowed = {"env": retry.env, "simulator": retry.simulator, "infra": retry.infra}
        so_far = Counter(attempt.failure_class for attempt in earlier)
        if so_far[failure_class] >= allowed.get(failure_class, 0) or not self._afford():
            return None
        self.again += 1
        pause_s = pause_before(retry, len(earlier) + 1, name)
        logger.warning(
            "attempt %d at %s failed (%s: %s); playing it again in %.1f s",
            *(len(earlier) + 1, name, failure_class, why, pause_s),
        )
        return pause_s

    def replaces(self, *, size: int, lost: int, replaced: int, name: str) -> bool:
        """Whether a rollout that failed for good is to be replaced by another of its task.

        Args:
            size: Rollouts of the group.
            lost: Those that failed for good and weren't replaced, without this one.
            replaced: Those that were replaced.
            name: The rollout's, for the log.
        """
        retry = self._retry
        if retry is None or retry.min_group_size is None or replaced >= retry.top_ups:
            return False
        if size - lost - 1 >= min(retry.min_group_size, size) or not self._afford():
            return False
        self.topped_up += 1
        logger.warning(
            "%s failed for good and its group needs it; rolling out another in its place", name
        )
        return True

    def _afford(self) -> bool:
        assert self._retry is not None
        share = math.floor(self._retry.budget * self._asked + 1e-9)  # 0.29 of 100 are 29
        allowed = max(self._retry.budget_floor, share)
        if self.again + self.topped_up < allowed:
            return True
        if not self._warned:
            self._warned = True
            logger.warning(
                "the retry budget is used up: %d attempts and replacements for %d episodes; "
                "failures are final until more have been asked for",
                *(self.again + self.topped_up, self._asked),
            )
        return False


def pause_before(retry: Retry, attempt: int, name: str) -> float:
    """The pause before an attempt, seconds: exponential, with jitter of up to half of it.

    Args:
        retry: How long.
        attempt: 1 for the second one.
        name: Of what is tried again; the jitter follows from it.
    """
    longest = min(retry.max_pause_s, retry.pause_s * 2.0 ** min(attempt - 1, 30))
    return longest * (1 - random.Random(derived_seed(attempt, name)).random() / 2)
