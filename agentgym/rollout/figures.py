"""The figures of a run as people see them beside a bar or in a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from agentgym.rollout.status import Waiters, dollars_text, masked_text, waits
from agentgym.rollout.tally import Sample, Tally, Window
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import Trace
from agentgym.types import Usage


class Figures:
    """What has come of a run so far, and what it waits for.

    Args:
        total: Episodes to come, if known.
        clock: Seconds, from any origin.
    """

    def __init__(
        self, total: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._started = clock()
        self._tally = Tally()
        self._window = Window()
        self._in_flight: Sequence[Whereabouts] = ()
        self._groups: tuple[Waiters, ...] | None = ()
        self.total = total
        self.note = ""
        """A remark that stands beside the figures."""
        self._window.add(self._sample())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def moves(self) -> tuple[int, int]:
        """Episodes and turns so far."""
        return self._tally.finished, self._tally.turns

    @property
    def episodes(self) -> int:
        """Episodes that are over."""
        return self._tally.finished

    @property
    def tokens(self) -> int:
        """Tokens that the policy has generated."""
        return self._tally.tokens

    def add_turn(self, tokens: int) -> None:
        """Count a turn."""
        self._tally.turn(tokens)

    def add(self, trace: Trace) -> None:
        """Count an episode."""
        self._tally.finish(trace)

    def drop(self, usage: Mapping[str, Usage]) -> None:
        """Count an episode that was cancelled."""
        self._tally.drop(usage)

    def look(self, in_flight: Sequence[Whereabouts]) -> None:
        """Take in where the episodes are at the moment."""
        self._in_flight = in_flight
        self._groups = None
        self._window.add(self._sample())

    @property
    def _waits(self) -> tuple[Waiters, ...]:
        """What they wait for; sorted out when it is first shown, since thousands may wait."""
        if self._groups is None:
            self._groups = waits(self._in_flight)
        return self._groups

    def _sample(self) -> Sample:
        return Sample(self._clock(), self._tally.tokens, self._tally.turns, self._tally.finished)

    # --- as text ------------------------------------------------------------------------------

    def count(self) -> str:
        """Episodes so far, of how many."""
        return f"{self.episodes}/{self.total}" if self.total is not None else str(self.episodes)

    def text(self) -> str:
        """All figures but the episodes, in one line."""
        counts = self._tally.episodes()
        mean = "-" if counts.mean_reward is None else f"{counts.mean_reward:.3f}"
        parts = (
            f"{self._tally.turns} turns",
            f"{self._tokens_per_s():.0f} tok/s",
            f"reward {mean}",
            masked_text(counts.masked),
            f"played again {counts.reruns}" if counts.reruns else "",
            _dollars(self._tally.usage),
            self._dropped(),
            self._queues(),
            self.note,
        )
        return " · ".join(part for part in parts if part)

    def commonest_wait(self) -> str:
        """How many episodes are in flight, and what most of them wait for."""
        groups = self._waits
        if not groups:
            return "0 in flight"
        return (
            f"{len(self._in_flight)} in flight ({groups[0].episodes} wait for {groups[0].phrase})"
        )

    def standstill(self) -> str:
        """What a run waits for in which nothing happens."""
        groups = self._waits
        if not groups:
            return "waiting for a request, or for the traces to be taken"
        longest_s = groups[0].longest.waited_s
        return f"waiting for {groups[0].phrase}, the longest for {longest_s:.0f} s"

    def _tokens_per_s(self) -> float:
        """Of late, where there were ticks; else since the start."""
        rates = self._window.rates(self._sample())
        if rates.window_s:
            return rates.tokens_per_s
        return self._tally.tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def _dropped(self) -> str:
        """How many were cancelled, and what they had cost."""
        if not self._tally.dropped:
            return ""
        spent = _dollars(self._tally.dropped_usage)
        return f"dropped {self._tally.dropped}" + (f" ({spent})" if spent else "")

    def _queues(self) -> str:
        """How many wait for a slot, by stage."""
        queues = [f"{g.stage} {g.episodes}" for g in self._waits if g.waiting == "slot"]
        return f"queued: {', '.join(queues)}" if queues else ""


def _dollars(usage: Mapping[str, Usage]) -> str:
    spent = {role: used.cost_usd for role, used in usage.items()}
    return ", ".join(f"{role} {dollars_text(usd)}" for role, usd in spent.items() if usd)
