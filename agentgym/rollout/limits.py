"""How much at once, how long at most, and when to give up on a batch."""

from __future__ import annotations

import re
from collections import Counter, deque

from pydantic import Field

from agentgym.errors import RolloutStopped
from agentgym.rollout.budget import RunBudget
from agentgym.statistics import wilson_interval
from agentgym.trace import Trace
from agentgym.types import Finite, Record


class Limits(Record):
    """Concurrency, deadlines and budgets of an engine.

    Every clock runs only while its stage works on the episode: waiting for a slot is free, and so
    is a call's wait for its turn in the client (`max_concurrency`, rate limits).
    """

    concurrency: int = Field(default=64, ge=1)
    """Episodes taking turns at once (RUN)."""
    init_concurrency: int = Field(default=16, ge=1)
    """Environments made or reset at once (INIT)."""
    eval_concurrency: int = Field(default=64, ge=1)
    """Episodes judged at once (EVAL)."""
    init_timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest time to make and reset an environment, seconds."""
    episode_timeout_s: Finite = Field(default=1800.0, gt=0)
    """Longest time for all turns of an episode, seconds. Passing it between turns truncates the
    episode (`time`); in the middle of an env step it fails it (`infra`)."""
    turn_timeout_s: Finite = Field(default=600.0, gt=0)
    """Longest wait for one answer of the policy, or for one env step, seconds."""
    eval_timeout_s: Finite = Field(default=300.0, gt=0)
    """Longest time for a verdict, seconds; passing it masks the episode (`judge`)."""
    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Tokens the policy may generate per episode; at the limit the episode is truncated
    (`tokens`). None is no limit."""
    max_turns: int | None = Field(default=None, ge=1)
    """Assistant messages per episode, where that is tighter than the env's own cap."""
    backlog: int = Field(default=256, ge=1)
    """Episodes that may wait for a slot of EVAL, and finished traces that may wait to be read from
    `run`. Beyond either, no further episode begins; those in the middle are never held up."""
    max_threads: int = Field(default=256, ge=1)
    """Blocking calls at once (tools, plain environments, closing); further ones wait. As many may
    have been given up and go on all the same; then they are an error."""
    cleanup_timeout_s: Finite = Field(default=10.0, gt=0)
    """Longest time for what is over or cancelled to come to an end, seconds: an env that closes, a
    tool or a judge that is told to stop. What takes longer is left behind and counted."""
    max_failure_rate: Finite = Field(default=0.5, ge=0, le=1)
    """Share of episodes that may fail through no fault of the policy, of all and of the last
    `failure_window`; the run stops where it is exceeded by more than chance, that is with the lower
    end of its 95 % interval. Attempts that were made again count, too."""
    min_failures: int = Field(default=20, ge=1)
    """Failures before that share is looked at; 1 with a rate of 0 stops at the first failure."""
    failure_window: int = Field(default=200, ge=1)
    """How many episodes are recent: a run that goes bad late stops as soon as one that began so."""
    budget: RunBudget | None = None
    """Dollars and tokens that the engine's runs may spend together; None is no limit."""

    def describe(self) -> str:
        """What is in effect, in one line."""
        budgets = {"turns": self.max_turns, "tokens": self.max_episode_tokens}
        per_episode = "".join(f", {n} {what}" for what, n in budgets.items() if n is not None)
        return (
            f"{self.concurrency} episodes at once, {self.init_concurrency} set up, "
            f"{self.eval_concurrency} judged; {self.backlog} may wait for a verdict; "
            f"at most {self.episode_timeout_s:g} s per episode ({self.init_timeout_s:g} s to set "
            f"up, {self.turn_timeout_s:g} s per turn, {self.eval_timeout_s:g} s to judge)"
            f"{per_episode}; stops above {self.max_failure_rate:.0%} failures"
            + (f", and at {self.budget}" if self.budget is not None else "")
        )


class FailureWatch:
    """Counts failures that are not the policy's, and says when they are too many."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._finished = 0
        self._repeats = 0
        self._failures: Counter[str] = Counter()
        self._recent: deque[tuple[str, str] | None] = deque(maxlen=limits.failure_window)
        self._recently: Counter[str] = Counter()
        self._latest = ""

    def count(self, trace: Trace) -> None:
        """Count a finished episode, and the attempts at it that failed before.

        Raises:
            RolloutStopped: If the failures are abnormally many. A note on it has the whole text of
                the commonest one, with its traceback.
        """
        for attempt in trace.earlier:
            if attempt.lost_worker:  # one failure of a machine, however many were on it
                continue
            self._repeats += 1
            self._add((attempt.failure_class, attempt.error))
        if trace.scored:
            self._add(None)
        else:
            why = trace.error or trace.verdict.reason or "no reason given"
            self._add((trace.failure_class or "unknown", why))
        self._check(self._failures, self._finished, "")
        self._check(self._recently, len(self._recent), "the last ")

    def _add(self, failure: tuple[str, str] | None) -> None:
        self._finished += 1
        if len(self._recent) == self._recent.maxlen and (gone := self._recent[0]) is not None:
            self._recently[gone[0]] -= 1
        self._recent.append(failure)
        if failure is not None:
            self._latest = failure[1]
            self._failures[failure[0]] += 1
            self._recently[failure[0]] += 1

    def _check(self, failures: Counter[str], of: int, which: str) -> None:
        failed = failures.total()
        if failed < self._limits.min_failures:
            return
        # A share that is looked at after each episode is above any limit by chance, in the end.
        least, _ = wilson_interval(failed, of)
        if least <= self._limits.max_failure_rate:
            return
        classes = ", ".join(f"{name} {count}" for name, count in failures.most_common() if count)
        errors = [f[1] for f in self._recent if f is not None] or [self._latest]
        cause, times = Counter(map(_kind_of, errors)).most_common(1)[0]
        example = next(error for error in errors if _kind_of(error) == cause).strip()
        what = "attempts" if self._repeats else "episodes"
        stopped = RolloutStopped(
            f"stopped: {failed} of {which}{of} {what} failed ({classes}), clearly more than "
            f"max_failure_rate={self._limits.max_failure_rate:g}; the commonest cause lately, "
            f"{times}×: {example.splitlines()[-1]}"
        )
        if "\n" in example:
            stopped.add_note(example)
        raise stopped


def _kind_of(error: str) -> str:
    """An error without what differs from one episode to the next: its numbers and ids."""
    line = error.strip().rpartition("\n")[2]
    return re.sub(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", "#", line)[:200]
