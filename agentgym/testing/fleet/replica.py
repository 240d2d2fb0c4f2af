"""One policy server without its HTTP: slots, a queue, a prefix cache, and how long a request takes.

The same code serves real requests (timers of an event loop) and the model that computes how fast an
engine without any cost of its own would be (timers of a simulation); so the two can't drift apart.
All times are virtual seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from agentgym.errors import ConfigError
from agentgym.testing.fleet.prefix import PrefixCache, Prompt
from agentgym.testing.fleet.simulated_time import Handle, LoopTimers
from agentgym.types import Finite, Record


class ReplicaSpec(Record):
    """How fast and how large a server is."""

    slots: int = Field(default=32, ge=1)
    """Requests decoded at once; who comes later waits, first come first served."""
    prefill_tokens_per_s: Finite = Field(default=8000.0, gt=0)
    """Prompt tokens computed per second and slot; cached ones take no time."""
    decode_tokens_per_s: Finite = Field(default=100.0, gt=0)
    """Tokens generated per second and slot."""
    cache_tokens: int | None = Field(default=None, ge=1)
    """Room of the prefix cache; None is unlimited."""

    def service_s(self, *, fresh_tokens: int, completion_tokens: int) -> float:
        """How long a request holds a slot, seconds.

        Args:
            fresh_tokens: Prompt tokens that no cache holds.
            completion_tokens: Tokens generated.
        """
        prefill_s = fresh_tokens / self.prefill_tokens_per_s
        return float(prefill_s + completion_tokens / self.decode_tokens_per_s)


def replicas_of(
    n: int, replica: ReplicaSpec | Sequence[ReplicaSpec] | None
) -> tuple[ReplicaSpec, ...]:
    """One spec per server.

    Args:
        n: Servers.
        replica: The spec of each, or all of them.

    Raises:
        ConfigError: If there are not as many as servers, or none.
    """
    if replica is None or isinstance(replica, ReplicaSpec):
        specs = (replica or ReplicaSpec(),) * n
    else:
        specs = tuple(replica)
    if n < 1 or len(specs) != n:
        raise ConfigError(
            f"a fleet needs at least one server and a spec for each, got n={n} and "
            f"{len(specs)} specs"
        )
    return specs


class ReplicaStatistics(Record):
    """What a server has done; times in virtual seconds."""

    name: str
    slots: int
    requests: int = 0
    completed: int = 0
    aborted: int = 0
    """Requests whose client went away."""
    waiting: int = 0
    """In its queue now."""
    running: int = 0
    """In its slots now."""
    most_waiting: int = 0
    busy_s: float = 0.0
    """Time in which at least one slot was taken."""
    slot_s: float = 0.0
    """Time that slots were taken, summed over the slots."""
    idle_while_queued_s: float = 0.0
    """Time in which it had nothing to do while requests waited at another server."""
    spare_slot_s: float = 0.0
    """Time that slots were free while requests waited at another server, summed over the slots."""
    waited_s: float = 0.0
    """Time in the queue, summed over the requests that got a slot."""
    wasted_s: float = 0.0
    """Time of slots spent on requests that were aborted."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that its prefix cache held."""
    possible_tokens: int = 0
    """Prompt tokens that it would have held, had it answered all requests of the fleet."""
    completion_tokens: int = 0


class FleetStatistics(Record):
    """What a fleet has done since the statistics began."""

    elapsed_s: float
    """Virtual seconds since then."""
    replicas: tuple[ReplicaStatistics, ...]

    def total(self, name: str) -> float:
        """The sum of a statistic over the servers."""
        return float(sum(getattr(replica, name) for replica in self.replicas))

    @property
    def hit_share(self) -> float:
        """Cached prompt tokens as a share of those that could have been; 1 if none could."""
        possible = self.total("possible_tokens")
        return self.total("cached_tokens") / possible if possible else 1.0

    @property
    def utilisation(self) -> float:
        """Share of the slots' time in which they were taken."""
        capacity = self.total("slots") * self.elapsed_s
        return self.total("slot_s") / capacity if capacity else 0.0


class Job:
    """One request at a server.

    Args:
        prompt: What is asked.
        answer: The message that will answer it.
        on_done: Called with the job when the answer is complete.
        on_start: Called with the job when it gets a slot.
    """

    __slots__ = (
        "answer",
        "answer_key",
        "arrived_s",
        "cached_tokens",
        "completion_tokens",
        "fresh_keys",
        "on_done",
        "on_start",
        "prompt",
        "ready_s",
        "started_s",
        "timer",
    )

    def __init__(
        self,
        prompt: Prompt,
        answer: dict[str, Any],
        on_done: Callable[[Job], None],
        on_start: Callable[[Job], None] | None = None,
    ) -> None:
        self.prompt = prompt
        self.answer = answer
        self.on_done = on_done
        self.on_start = on_start
        self.answer_key, self.completion_tokens = prompt.answered(answer)
        self.cached_tokens = 0
        self.arrived_s = 0.0
        self.started_s: float | None = None
        self.ready_s = 0.0
        self.fresh_keys: list[int] = []
        self.timer: Handle | None = None


class Replica:
    """A server's slots, queue and cache.

    Args:
        name: What it is called in statistics.
        spec: How fast and how large it is.
        fleet: The fleet it belongs to.
    """

    def __init__(self, name: str, spec: ReplicaSpec, fleet: Replicas) -> None:
        self.name = name
        self.spec = spec
        self.cache = PrefixCache(spec.cache_tokens)
        self.waiting: deque[Job] = deque()
        self.running: set[Job] = set()
        self.available = True
        """Whether it takes requests out of its queue: it is neither paused nor dead."""
        self.counts: dict[str, Any] = {}
        self._fleet = fleet
        self.forget_counts()

    def forget_counts(self) -> None:
        """Begin the statistics anew."""
        fields = ReplicaStatistics.model_fields
        self.counts = dict.fromkeys(
            (name for name, field in fields.items() if not field.is_required()), 0
        )

    def statistics(self) -> ReplicaStatistics:
        """What it has done."""
        now = {"waiting": len(self.waiting), "running": len(self.running)}
        return ReplicaStatistics(name=self.name, slots=self.spec.slots, **{**self.counts, **now})

    def submit(self, job: Job) -> None:
        """Take a request in."""
        job.arrived_s = self._fleet.advance()
        self.counts["requests"] += 1
        self.waiting.append(job)
        self._fill()
        self.counts["most_waiting"] = max(self.counts["most_waiting"], len(self.waiting))

    def cancel(self, job: Job) -> None:
        """Stop work on a request, and free its slot at once."""
        now = self._fleet.advance()
        if job in self.running:
            self._stop(job, now)
        elif job in self.waiting:
            self.waiting.remove(job)
        else:
            return
        self.counts["aborted"] += 1
        self._fill()

    def pause(self) -> None:
        """Take nothing out of the queue; what runs, runs on."""
        self._fleet.advance()
        self.available = False

    def resume(self) -> None:
        """Go on."""
        self._fleet.advance()
        self.available = True
        self._fill()

    def die(self) -> None:
        """Lose everything: requests, queue and cache."""
        now = self._fleet.advance()
        self.available = False
        self.counts["aborted"] += len(self.waiting) + len(self.running)
        for job in list(self.running):
            self._stop(job, now)
        self.waiting.clear()
        self.cache.clear()

    # --- inside -------------------------------------------------------------------------------

    def _fill(self) -> None:
        while self.available and self.waiting and len(self.running) < self.spec.slots:
            self._start(self.waiting.popleft())

    def _start(self, job: Job) -> None:
        fleet, spec, counts, prompt = self._fleet, self.spec, self.counts, job.prompt
        now = fleet.timers.now()
        job.cached_tokens = self.cache.cached_tokens(prompt, now)
        fresh = prompt.tokens - job.cached_tokens
        counts["waited_s"] += now - job.arrived_s
        counts["prompt_tokens"] += prompt.tokens
        counts["cached_tokens"] += job.cached_tokens
        counts["possible_tokens"] += fleet.everything.cached_tokens(prompt, now)
        job.started_s = now
        job.ready_s = now + spec.service_s(fresh_tokens=fresh, completion_tokens=0)
        job.fresh_keys = self.cache.keep(prompt, job.ready_s)
        fleet.everything.keep(prompt, job.ready_s)
        self.running.add(job)
        service_s = spec.service_s(fresh_tokens=fresh, completion_tokens=job.completion_tokens)
        job.timer = fleet.timers.call_later(service_s, self._finish, job)
        if job.on_start is not None:
            job.on_start(job)

    def _finish(self, job: Job) -> None:
        now = self._fleet.advance()
        self.running.discard(job)
        for cache in (self.cache, self._fleet.everything):
            cache.add(job.answer_key, job.completion_tokens, now)
        self.counts["completed"] += 1
        self.counts["completion_tokens"] += job.completion_tokens
        self._fill()
        job.on_done(job)

    def _stop(self, job: Job, now: float) -> None:
        assert job.timer is not None
        assert job.started_s is not None
        job.timer.cancel()
        self.running.discard(job)
        self.counts["wasted_s"] += now - job.started_s
        if job.ready_s > now:
            self.cache.drop(job.fresh_keys)


class Replicas:
    """The servers of a fleet, and the statistics that need all of them.

    Args:
        specs: One per server.
        timers: Their clock.
    """

    def __init__(self, specs: Sequence[ReplicaSpec], timers: LoopTimers) -> None:
        rooms = [spec.cache_tokens for spec in specs]
        room = None if None in rooms else sum(r for r in rooms if r is not None)
        self.timers = timers
        self.everything = PrefixCache(room)
        """What one server would hold that had answered all requests."""
        self.each = [Replica(f"replica-{k}", spec, self) for k, spec in enumerate(specs)]
        self._since_s = self._advanced_s = timers.now()

    def advance(self) -> float:
        """Account for the time since the last change, just before the next one.

        Returns:
            Now.
        """
        now = self.timers.now()
        passed_s = now - self._advanced_s
        if passed_s <= 0:
            return now
        self._advanced_s = now
        waiting = sum(len(replica.waiting) for replica in self.each)
        for replica in self.each:
            counts, running = replica.counts, len(replica.running)
            if running:
                counts["busy_s"] += passed_s
                counts["slot_s"] += running * passed_s
            if waiting > len(replica.waiting) and replica.available:
                counts["spare_slot_s"] += (replica.spec.slots - running) * passed_s
                if not running:
                    counts["idle_while_queued_s"] += passed_s
        return now

    def forget_counts(self) -> None:
        """Begin the statistics anew."""
        self._since_s = self.advance()
        for replica in self.each:
            replica.forget_counts()

    def statistics(self) -> FleetStatistics:
        """What the fleet has done since."""
        elapsed_s = self.advance() - self._since_s
        return FleetStatistics(
            elapsed_s=elapsed_s, replicas=tuple(replica.statistics() for replica in self.each)
        )
