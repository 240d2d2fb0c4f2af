"""How fast the best possible engine would be: the same servers, the same episodes, no cost at all.

A measured wall time says little by itself, since the longest episode and the servers' capacity
bound it from below, and a bad routing makes even a free engine slow. So the same servers are run
here in simulated time by an engine whose every action takes none, with the routing as a parameter.
What a real engine takes beyond that is its own cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from agentgym.testing.fleet.prefix import Prompt
from agentgym.testing.fleet.replica import (
    FleetStatistics,
    Job,
    Replicas,
    ReplicaSpec,
)
from agentgym.testing.fleet.workload import Workload
from agentgym.types import Message, Record


class Router(Protocol):
    """Decides which server gets a request."""

    def begin(self, episode: int, prompt_tokens: int) -> int:
        """A request is about to be sent; the index of its server."""

    def end(self, episode: int, completion_tokens: int) -> None:
        """The episode's request was answered."""

    def over(self, episode: int) -> None:
        """The episode has ended."""


class EqualAssignment:
    """Every server gets as many episodes as the others, and keeps them: sticky round-robin.

    Which is what counting assignments without ever counting them off again comes to.

    Args:
        n: Servers.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._assigned: dict[int, int] = {}

    def begin(self, episode: int, prompt_tokens: int) -> int:
        """See `Router`."""
        return self._assigned.setdefault(episode, len(self._assigned) % self._n)

    def end(self, episode: int, completion_tokens: int) -> None:
        """See `Router`."""

    def over(self, episode: int) -> None:
        """See `Router`."""


class SimulatedRun(Record):
    """A run of an engine without cost."""

    wall_s: float
    """Virtual seconds from the first request to the end of the last episode."""
    statistics: FleetStatistics


class SimulatedTimers:
    """Time that jumps from one timer to the next."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._heap: list[tuple[float, int, SimulatedHandle]] = []

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call back after a while."""
        handle = SimulatedHandle(callback, args)
        heapq.heappush(self._heap, (self._now + delay_s, next(self._order), handle))
        return handle

    def run(self) -> None:
        """Let all timers go off, also those set meanwhile."""
        while self._heap:
            self._now, _, handle = heapq.heappop(self._heap)
            if not handle.cancelled:
                handle.callback(*handle.args)


class SimulatedHandle:
    """A timer of `SimulatedTimers`."""

    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        """Let it not go off."""
        self.cancelled = True


def simulate(
    workload: Workload,
    specs: Sequence[ReplicaSpec],
    router: Router,
    *,
    episodes: Iterable[int],
    concurrency: int,
    tools: Sequence[Mapping[str, Any]] = (),
) -> SimulatedRun:
    """Play episodes with an engine that costs nothing.

    Args:
        workload: What is played.
        specs: One per server.
        router: Decides which server gets a request.
        episodes: Which, in the order in which they begin.
        concurrency: How many at once.
        tools: OpenAI tool list, as the environment has it; it is part of the prompts.
    """
    timers = SimulatedTimers()
    replicas = Replicas(specs, timers)
    left = iter(episodes)

    def begin_next() -> None:
        if (number := next(left, None)) is not None:
            messages = list(workload.opening(number))
            ask(number, 0, messages)

    def ask(number: int, turn: int, messages: list[Message]) -> None:
        prompt = Prompt(messages, tools)
        index = router.begin(number, prompt.tokens)

        def answered(job: Job) -> None:
            router.end(number, job.completion_tokens)
            if not job.answer.get("tool_calls"):
                router.over(number)
                begin_next()
                return
            observation = {"role": "tool", "content": workload.observation(number, turn)}
            longer = [*messages, job.answer, observation]
            tool_s = workload.turn(number, turn).tool_s
            timers.call_later(tool_s, ask, number, turn + 1, longer)

        replicas.each[index].submit(Job(prompt, workload.answer(number, turn), answered))

    for _ in range(concurrency):
        begin_next()
    timers.run()
    return SimulatedRun(wall_s=timers.now(), statistics=replicas.statistics())


class LowerBound(Record):
    """Times that no engine and no routing can go below; virtual seconds."""

    capacity_s: float
    """All work over all slots, each prefix computed once."""
    longest_s: float
    """The longest episode, alone."""

    @property
    def wall_s(self) -> float:
        """The larger of the two."""
        return max(self.capacity_s, self.longest_s)


def lower_bound(
    workload: Workload,
    specs: Sequence[ReplicaSpec],
    *,
    episodes: Iterable[int],
    tools: Sequence[Mapping[str, Any]] = (),
) -> LowerBound:
    """How fast anything could be.

    Args:
        workload: What is played.
        specs: One per server.
        episodes: Which.
        tools: As for `simulate`.
    """
    fastest = ReplicaSpec(
        prefill_tokens_per_s=max(spec.prefill_tokens_per_s for spec in specs),
        decode_tokens_per_s=max(spec.decode_tokens_per_s for spec in specs),
    )
    shared = Prompt(workload.opening(0)[:1], tools).tokens
    work_s = fastest.service_s(fresh_tokens=shared, completion_tokens=0)
    longest_s = 0.0
    for number in episodes:
        held, alone_s, tools_s = shared, 0.0, 0.0
        messages = list(workload.opening(number))
        for turn in range(workload.turns(number)):
            prompt, answer = Prompt(messages, tools), workload.answer(number, turn)
            _, generated = prompt.answered(answer)
            alone_s += fastest.service_s(
                fresh_tokens=prompt.tokens - held, completion_tokens=generated
            )
            held = prompt.tokens + generated
            tools_s += workload.turn(number, turn).tool_s
            observation = {"role": "tool", "content": workload.observation(number, turn)}
            messages += [answer, observation]
        work_s += alone_s
        longest_s = max(longest_s, alone_s + tools_s)
    return LowerBound(capacity_s=work_s / sum(spec.slots for spec in specs), longest_s=longest_s)
