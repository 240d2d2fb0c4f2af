"""How fast the best possible engine would be: the same servers, the same episodes, no cost at all.

A measured wall time says little by itself, since the longest episode and the servers' capacity
bound it from below, and a bad routing makes even a free engine slow. So the same servers are run
here in simulated time by an engine whose every action takes none, with the routing as a parameter.
What a real engine takes beyond that is its own cost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from agentgym.client import Endpoint
from agentgym.clients import BalancedClient
from agentgym.clients.replicas import Seat, name_of
from agentgym.testing.fleet.prefix import Prompt
from agentgym.testing.fleet.replica import FleetStatistics, Job, Replicas, ReplicaSpec
from agentgym.testing.fleet.simulated_time import LoopTimers, run_simulated
from agentgym.testing.fleet.workload import Workload
from agentgym.types import Message, Record, Usage


class Routing(Protocol):
    """Decides which server gets a request, and when."""

    async def enter(self, episode: int, prompt: Prompt) -> int:
        """Wait until a request may be sent; the index of its server."""

    def leave(self, episode: int, job: Job) -> None:
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

    async def enter(self, episode: int, prompt: Prompt) -> int:
        """See `Routing`."""
        return self._assigned.setdefault(episode, len(self._assigned) % self._n)

    def leave(self, episode: int, job: Job) -> None:
        """See `Routing`."""

    def over(self, episode: int) -> None:
        """See `Routing`."""


class Balanced:
    """The routing of `BalancedClient`: its own code, told of simulated servers.

    Args:
        slots: What each server is sent at once: the endpoints' `max_concurrency`.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        endpoints = [
            Endpoint(base_url=f"http://replica-{k}/v1", model="simulated", max_concurrency=most)
            for k, most in enumerate(slots)
        ]
        self._clock = asyncio.get_running_loop().time
        # A client that never sends anything: only its decisions are wanted.
        self._router = BalancedClient(endpoints, clock=self._clock)._router
        self._index = {name_of(endpoint.base_url): k for k, endpoint in enumerate(endpoints)}
        self._tickets = itertools.count()
        self._seats: dict[int, Seat] = {}

    async def enter(self, episode: int, prompt: Prompt) -> int:
        """See `Routing`."""
        seat = await self._router.enter(
            next(self._tickets), str(episode), prompt_tokens=prompt.tokens, most_tokens=4096
        )
        seat.sent_at = self._clock()
        self._seats[episode] = seat
        return self._index[seat.replica.name]

    def leave(self, episode: int, job: Job) -> None:
        """See `Routing`."""
        seat = self._seats.pop(episode)
        usage = Usage(
            prompt_tokens=job.prompt.tokens,
            cached_tokens=job.cached_tokens,
            completion_tokens=job.completion_tokens,
        )
        self._router.answered(seat, usage)
        self._router.leave(seat)

    def over(self, episode: int) -> None:
        """See `Routing`."""
        self._router.release(str(episode))


class SimulatedRun(Record):
    """A run of an engine without cost."""

    wall_s: float
    """Virtual seconds from the first request to the end of the last episode."""
    statistics: FleetStatistics


def simulate(
    workload: Workload,
    specs: Sequence[ReplicaSpec],
    routing: Callable[[], Routing],
    *,
    episodes: Iterable[int],
    concurrency: int,
    tools: Sequence[Mapping[str, Any]] = (),
) -> SimulatedRun:
    """Play episodes with an engine that costs nothing.

    Args:
        workload: What is played.
        specs: One per server.
        routing: Makes what decides which server gets a request, in simulated time.
        episodes: Which, in the order in which they begin.
        concurrency: How many at once.
        tools: OpenAI tool list, as the environment has it; it is part of the prompts.
    """

    async def run() -> SimulatedRun:
        loop = asyncio.get_running_loop()
        replicas = Replicas(specs, LoopTimers(loop))
        route, left = routing(), iter(episodes)

        async def play_on(left: Iterator[int]) -> None:
            for number in left:
                await _play(number, workload, replicas, route, tools)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(play_on(left))
        return SimulatedRun(wall_s=loop.time(), statistics=replicas.statistics())

    return run_simulated(run())


async def _play(
    number: int,
    workload: Workload,
    replicas: Replicas,
    routing: Routing,
    tools: Sequence[Mapping[str, Any]],
) -> None:
    """Play one episode."""
    messages: list[Message] = list(workload.opening(number))
    for turn in range(workload.turns(number)):
        prompt = Prompt(messages, tools)
        index = await routing.enter(number, prompt)
        done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        job = Job(prompt, workload.answer(number, turn), done.set_result)
        replicas.each[index].submit(job)
        await done
        routing.leave(number, job)
        messages += [job.answer, {"role": "tool", "content": workload.observation(number, turn)}]
        await asyncio.sleep(workload.turn(number, turn).tool_s)
    routing.over(number)


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
        served_s, tools_s = _alone(workload, fastest, number, tools, shared)
        work_s += served_s
        longest_s = max(longest_s, served_s + tools_s)
    return LowerBound(capacity_s=work_s / sum(spec.slots for spec in specs), longest_s=longest_s)


def episode_alone_s(
    workload: Workload,
    spec: ReplicaSpec,
    episode: int,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
) -> float:
    """How long an episode takes that never waits, virtual seconds.

    Args:
        workload: What is played.
        spec: The server.
        episode: Which.
        tools: As for `simulate`.
    """
    shared = Prompt(workload.opening(episode)[:1], tools).tokens
    return sum(_alone(workload, spec, episode, tools, shared))


def _alone(
    workload: Workload,
    spec: ReplicaSpec,
    number: int,
    tools: Sequence[Mapping[str, Any]],
    held: int,
) -> tuple[float, float]:
    """Seconds in a server and in tools of an episode whose first tokens are cached."""
    served_s = tools_s = 0.0
    messages: list[Message] = list(workload.opening(number))
    for turn in range(workload.turns(number)):
        prompt, answer = Prompt(messages, tools), workload.answer(number, turn)
        _, generated = prompt.answered(answer)
        served_s += spec.service_s(fresh_tokens=prompt.tokens - held, completion_tokens=generated)
        held = prompt.tokens + generated
        tools_s += workload.turn(number, turn).tool_s
        messages += [answer, {"role": "tool", "content": workload.observation(number, turn)}]
    return served_s, tools_s
