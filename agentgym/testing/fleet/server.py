"""A fleet of simulated policy servers: real HTTP on the loopback interface, simulated inference.

What an engine does to its servers (which one it asks, how long it lets them idle, how often it
throws a prefix away) shows only with many of them, and nobody has sixteen GPUs at hand for a test.
These answer OpenAI chat-completions requests like vLLM does: slots, a queue, prefill and decode at
a rate, a prefix cache, continuous batching. What is answered, and how long it takes, follows from
the episode and the turn, whatever the order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentgym.errors import ConfigError
from agentgym.testing.fleet.http import Connection, Policy
from agentgym.testing.fleet.replica import (
    FleetStatistics,
    Replica,
    Replicas,
    ReplicaSpec,
    replicas_of,
)
from agentgym.testing.fleet.simulated_time import LoopTimers
from agentgym.testing.fleet.workload import Workload

_BACKLOG = 4096


class SimulatedFleet:
    """Simulated policy servers on the running event loop.

    Args:
        n: How many.
        replica: How fast and large each is; a sequence where they differ.
        policy: What they answer, by the request's body; by default `workload.policy`.
        workload: How many turns, how long the answers; see `Workload`.
        speed: Virtual seconds per second: 10 makes everything ten times as fast.
        model: The model's name.

    Raises:
        ConfigError: If `n`, `replica` and `speed` don't fit together.

    Examples:
        >>> async with SimulatedFleet(4, speed=20) as fleet:
        ...     endpoints = [Endpoint(base_url=url, model=fleet.model) for url in fleet.urls]
        ...     ...
        >>> fleet.statistics().hit_share
    """

    def __init__(
        self,
        n: int = 1,
        *,
        replica: ReplicaSpec | Sequence[ReplicaSpec] | None = None,
        policy: Policy | None = None,
        workload: Workload | None = None,
        speed: float = 1.0,
        model: str = "simulated",
    ) -> None:
        if not speed > 0:
            raise ConfigError(f"speed must be above 0 virtual seconds per second, got {speed}")
        self.model = model
        self.speed = speed
        self.workload = workload or Workload()
        self.specs = replicas_of(n, replica)
        """How fast and large each server is."""
        self._policy = policy or self.workload.policy
        self._replicas: Replicas | None = None
        self._listeners: list[_Listener] = []

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs, once the fleet runs."""
        return tuple(listener.url for listener in self._listeners)

    async def __aenter__(self) -> SimulatedFleet:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, each server on a port of its own."""
        self._replicas = Replicas(self.specs, LoopTimers(asyncio.get_running_loop(), self.speed))
        self._listeners = [
            _Listener(replica, self._policy, self.model) for replica in self._replicas.each
        ]
        for listener in self._listeners:
            await listener.start()

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        for listener in self._listeners:
            await listener.stop()

    def statistics(self) -> FleetStatistics:
        """What the servers have done since the start or the last `forget_statistics`."""
        return self._running().statistics()

    def forget_statistics(self) -> None:
        """Begin the statistics anew."""
        self._running().forget_counts()

    async def kill(self, index: int) -> None:
        """Let a server die: connections are reset, new ones refused, its cache is lost."""
        await self._listeners[index].stop()

    async def restart(self, index: int) -> None:
        """Let a killed server listen again, at the same address, with an empty cache."""
        await self._listeners[index].start()

    def pause(self, index: int) -> None:
        """Let a server hang: it takes connections and requests and sends nothing."""
        self._listeners[index].pause()

    def resume(self, index: int) -> None:
        """Let a paused server go on."""
        self._listeners[index].resume()

    def _running(self) -> Replicas:
        if self._replicas is None:
            raise ConfigError("the fleet isn't running; use `async with SimulatedFleet(…)`")
        return self._replicas


class _Listener:
    """One server's address and connections."""

    def __init__(self, replica: Replica, policy: Policy, model: str) -> None:
        self.url = ""
        self._replica = replica
        self._policy = policy
        self._model = model
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._held: list[Callable[[], None]] | None = None

    async def start(self) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection, "127.0.0.1", self._port, backlog=_BACKLOG
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self.resume()

    async def stop(self) -> None:
        if self._server is None:
            return
        self._held = None
        self._replica.die()
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # aborted connections are let go of in the loop's next round
        await self._server.wait_closed()
        self._server = None

    def pause(self) -> None:
        self._replica.pause()
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        held, self._held = self._held or (), None
        self._replica.resume()
        for send in held:
            send()

    def _connection(self) -> Connection:
        return Connection(
            self._replica,
            self._policy,
            model=self._model,
            open_connections=self._connections,
            hold=self._send,
        )

    def _send(self, send: Callable[[], None]) -> None:
        if self._held is None:
            send()
        else:
            self._held.append(send)
