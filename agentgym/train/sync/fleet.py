"""All servers of a policy: brought to new weights side by side, each as one transaction.

Per server: hold what is in flight, load, forget the prefix cache, name the weights, tell those who
send requests, go on. A step that fails is tried once more from the start; vLLM recovers from a
failed load if a good one follows before anything is generated, and dies if it has to generate first
(0.31). So a server that fails twice stays paused: it is told to the listeners, gets no requests,
and the next sync tries it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import aiohttp

from agentgym.client import Endpoint
from agentgym.errors import AgentGymError, TrainingError
from agentgym.sync import run_on_background_loop
from agentgym.train.sync.admin import UNNAMED, AdminClient, ServerFault, root_of
from agentgym.train.sync.contract import InFlight, SyncListener
from agentgym.train.sync.info import ServerInfo, SyncKind, differences

logger = logging.getLogger(__name__)

T = TypeVar("T")
Action: TypeAlias = Callable[[AdminClient], Awaitable[T]]
Load: TypeAlias = Callable[[AdminClient], Awaitable[None]]
"""Brings new weights into a server that is held."""

_RESET_S = 10.0
"""How long blocks of a server that is held may be in use by what ends by itself, seconds."""
_LAST_SYNC_S = 30.0
"""How long `close` waits for a sync that Ctrl-C left behind, seconds."""


class Fleet:
    """The servers of one policy.

    Args:
        listeners: Told of each server at each sync.
        in_flight: What becomes of requests while weights change.
        drain_s: How long a server may take to finish what is in flight, seconds.
        retry_pause_s: Before the second attempt, seconds.
    """

    def __init__(
        self,
        listeners: list[SyncListener],
        *,
        in_flight: InFlight = "pause",
        drain_s: float = 600.0,
        retry_pause_s: float = 1.0,
    ) -> None:
        self.endpoints: tuple[Endpoint, ...] = ()
        self.in_flight: InFlight = in_flight
        self.lost: dict[str, str] = {}
        """Root of each server that did not take the last weights, and why."""
        self.version: str | None = None
        """Of the last weights."""
        self.began_with: dict[str, str] = {}
        """Root of each server, and the version it had when it was taken."""
        self._given: set[str] = set()  # all versions of ours
        self._listeners = listeners
        self._drain_s = drain_s
        self._retry_pause_s = retry_pause_s
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def model(self) -> str:
        """What requests call the policy."""
        return self.endpoints[0].model

    @property
    def roots(self) -> tuple[str, ...]:
        """Of the servers that have the last weights."""
        return tuple(root for e in self.endpoints if (root := root_of(e)) not in self.lost)

    def take(self, endpoints: Sequence[Endpoint], kind: SyncKind, **facts: Any) -> list[ServerInfo]:
        """Take these servers and see that they fit.

        Args:
            endpoints: The servers.
            kind: How weights will come.
            **facts: For `ServerInfo.faults`.

        Raises:
            TrainingError: With all that is wrong, in one line.
        """
        roots = [root_of(endpoint) for endpoint in endpoints]
        if not roots:
            raise TrainingError("weights need a server to go to; name one with --policy-server")
        if len(set(roots)) < len(roots):
            raise TrainingError(f"a policy server is named twice: {', '.join(sorted(roots))}")
        if len(names := {endpoint.model for endpoint in endpoints}) > 1:
            raise TrainingError(
                f"replicas of one policy serve one model, got {', '.join(sorted(names))}"
            )
        self.endpoints = tuple(endpoints)
        told = self.each(_info)
        faults, infos = [], []
        for root, found in told.items():
            if isinstance(found, ServerFault):
                faults.append(str(found))
            else:
                info, self.began_with[root] = found
                infos.append(info)
                faults += [f"{root}: {x}" for x in info.faults(kind, model=self.model, **facts)]
        faults += differences(infos)
        if faults:
            raise TrainingError("; ".join(faults))
        return infos

    def swap(self, load: Load, *, version: str, model: str | None = None) -> float:
        """Bring all servers to new weights.

        Args:
            load: Brings them in.
            version: Their name.
            model: For the listeners.

        Returns:
            The longest that any server answered nobody, seconds.

        Raises:
            TrainingError: If no server took them.
        """

        async def once(server: AdminClient) -> float:
            await self.hold(server)
            started = time.perf_counter()
            await load(server)
            await self.release(server, version=version, model=model)
            return time.perf_counter() - started

        self.name(version)
        return max(self.settle(self.each(self.or_lost(once)), version=version))

    def or_lost(self, action: Callable[[AdminClient], Awaitable[T]]) -> Action[T]:
        """An action that is tried twice; a server at which it fails is told to be lost at once."""

        async def tried(server: AdminClient) -> T:
            try:
                return await self._twice(action, server)
            except ServerFault as fault:
                await self.tell("lost", server.endpoint, why=str(fault))
                raise

        return tried

    async def hold(self, server: AdminClient) -> None:
        """Let nothing run at a server, unless another run has brought it weights meanwhile."""
        await self.tell("holding", server.endpoint)
        if why := self._others(server, await server.version()):
            raise ServerFault(why)
        await server.pause(self.in_flight, timeout_s=self._drain_s)

    async def release(self, server: AdminClient, *, version: str, model: str | None) -> None:
        """Have a server that is held forget the old weights, and go on under the new ones."""
        await server.reset_prefix_cache(running=self.in_flight == "through", timeout_s=_RESET_S)
        await server.set_version(version)
        await self.tell("synced", server.endpoint, version=version, model=model)
        await server.resume()

    def settle(self, outcomes: dict[str, T | ServerFault], *, version: str) -> list[T]:
        """Note which servers are lost, and return what the others gave.

        Raises:
            TrainingError: If there are no others.
        """
        faults = {r: str(found) for r, found in outcomes.items() if isinstance(found, ServerFault)}
        good = [found for found in outcomes.values() if not isinstance(found, ServerFault)]
        self.version, self.lost = version, faults
        if not good:
            raise TrainingError(f"no server took weights {version}: {'; '.join(faults.values())}")
        for why in faults.values():
            logger.warning("training goes on without a policy server: %s", why)
        return good

    def each(
        self,
        action: Action[T],
        *,
        endpoints: Iterable[Endpoint] | None = None,
    ) -> dict[str, T | ServerFault]:
        """What an action gives at each server, side by side; a `ServerFault` where it fails.

        Where Ctrl-C ends the waiting, the action itself goes on: a server left in the middle of a
        sync would answer nobody.
        """
        chosen = self.endpoints if endpoints is None else tuple(endpoints)

        async def all_of_them() -> dict[str, T | ServerFault]:
            task = asyncio.create_task(self._gather(action, chosen))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return await asyncio.shield(task)

        return _run(all_of_them())

    def stale(self) -> dict[str, str]:
        """Roots of the servers that don't have the last weights, and why."""

        async def has_them(server: AdminClient) -> str | None:
            if (found := await server.version()) == self.version:
                return None
            if found == UNNAMED:
                return f"{server.root} was started anew, and has the weights it was started with"
            return self._others(server, found) or f"{server.root} has weights {found!r}"

        return self.faults(has_them) if self.version is not None else {}

    def faults(self, find: Action[str | None]) -> dict[str, str]:
        """What is wrong with each server: it is lost, does not answer, or what is found there."""
        there = [e for e in self.endpoints if root_of(e) not in self.lost]
        found = self.each(find, endpoints=there)
        return self.lost | {root: str(fault) for root, fault in found.items() if fault is not None}

    def name(self, version: str) -> None:
        """Servers may have these weights of ours from now on."""
        self._given.add(version)

    def _others(self, server: AdminClient, found: str) -> str | None:
        """What is wrong if weights that a server has are another run's."""
        if found in {*self._given, UNNAMED, self.began_with[server.root]}:
            return None
        return (
            f"{server.root} has weights {found!r}, which another run brought: give each run its "
            "own servers"
        )

    def close(self) -> None:
        """Wait for what Ctrl-C left running."""
        if self._running:

            async def wait() -> None:
                await asyncio.wait(set(self._running), timeout=_LAST_SYNC_S)

            _run(wait())

    async def _gather(
        self,
        action: Action[T],
        endpoints: Sequence[Endpoint],
    ) -> dict[str, T | ServerFault]:
        # vLLM's server closes a connection after an internal error, without saying so.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            servers = [AdminClient(endpoint, http) for endpoint in endpoints]
            found = await asyncio.gather(*map(action, servers), return_exceptions=True)
        outcomes: dict[str, T | ServerFault] = {}
        for server, outcome in zip(servers, found, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, ServerFault):
                raise outcome
            outcomes[server.root] = outcome
        return outcomes

    async def _twice(self, action: Action[T], server: AdminClient) -> T:
        try:
            return await action(server)
        except ServerFault as fault:
            logger.warning("a weight sync is tried once more: %s", fault)
            await asyncio.sleep(self._retry_pause_s)
        return await action(server)

    async def tell(self, what: str, endpoint: Endpoint, **facts: Any) -> None:
        """Tell the listeners, in a thread: what they do may need this loop."""
        for listener in self._listeners:
            try:
                await asyncio.to_thread(getattr(listener, what), endpoint, **facts)
            except AgentGymError as error:
                raise ServerFault(f"{root_of(endpoint)}: told, and refused: {error}") from error


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return run_on_background_loop(coroutine)


async def _info(server: AdminClient) -> tuple[ServerInfo, str]:
    info = ServerInfo.of(server.root, await server.models(), await server.info())
    return info, await server.version()
