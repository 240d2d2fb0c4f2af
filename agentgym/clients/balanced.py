"""Several servers of one policy behind one client: which they are, and how they are doing.

Rollouts are limited by the policy's servers, so these may come, go and be paused in the middle of a
run. How a call is answered by one of them is `routed`'s.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from agentgym.client import Endpoint
from agentgym.clients.failures import checked_url
from agentgym.clients.limiter import Limiter
from agentgym.clients.replicas import Listed, Replica, ReplicaStatus, name_of
from agentgym.clients.routed import RoutedClient
from agentgym.clients.transport import Transport
from agentgym.errors import ConfigError, EndpointError, unknown_name
from agentgym.types import ToolSpec

logger = logging.getLogger(__name__)

_OF_ALL: Final = (
    "model",
    "role",
    "prices",
    "budget_usd",
    "dialect",
    "tokens",
    "extra_body",
    "deadline_s",
    "max_retries",
)
"""Fields that say what the policy is, rather than where."""


class BalancedClient(RoutedClient):
    """A `ModelClient` for a policy that several servers have.

    An episode stays with the server that has its prefix cached; new ones go where there is least to
    do. A server that can't be reached is left out until it answers a probe, and its calls go to the
    others at once. Servers may be added, removed and paused while calls are in flight.

    Args:
        replicas: The servers. They differ in where they are, in key, slots, pace and time-out only;
            `max_concurrency` is what one of them works on at once.
        rng: Jitter of the pauses.
        sleep: Waits between attempts, and between probes.
        clock: Seconds, rising.

    Raises:
        ConfigError: If there is none, two are the same, or they are of different policies.

    Examples:
        >>> client = BalancedClient(Endpoint(base_url=url, model="policy") for url in urls)
        >>> completion = await client.complete(messages, tools, sampling, session="episode-1")
        >>> completion.replica
        '10.0.0.2:8000'
    """

    def __init__(
        self,
        replicas: Iterable[Endpoint],
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        endpoints = list(replicas)
        if not endpoints:
            raise ConfigError("a balanced client needs at least one replica, got none")
        self.changes = 0
        """How often `roster` has changed."""
        super().__init__(endpoints[0], rng=rng, sleep=sleep, clock=clock)
        for endpoint in endpoints:
            self.add(endpoint)

    def _begin(self) -> None:
        known = list(getattr(self, "_router", ()))
        super()._begin()
        for replica in known:  # in a forked process
            self._admit(replica.endpoint, replica.weight_version, paused=replica.paused)

    def __repr__(self) -> str:
        return f"BalancedClient(model={self.endpoint.model!r})"

    # --- the replicas -------------------------------------------------------------------------

    def add(self, endpoint: Endpoint, *, weight_version: str | None = None) -> str:
        """Send requests to one more server from now on.

        Args:
            endpoint: Where it is; policy, prices, budget and dialect are those of the others.
            weight_version: The weights that it answers with, for the completions.

        Returns:
            Its name.

        Raises:
            ConfigError: If it is there already, or serves another policy.
        """
        self._renewed()
        checked_url(endpoint.base_url)
        name = name_of(endpoint.base_url)
        _check_same_policy(name, endpoint, self.endpoint)
        if self._router.get(name) is not None:
            raise ConfigError(f"replica {name} is there already; remove it first to change it")
        self._admit(endpoint, weight_version, paused=False)
        self.changes += 1
        return name

    async def remove(self, name: str, *, drain: bool = True) -> None:
        """Send a server nothing further, and forget it.

        Args:
            name: Its name or base URL.
            drain: Whether to wait for what is in flight there; else that goes to the others now.

        Raises:
            ConfigError: If there is no such server.
        """
        replica = self._found(name)
        self._router.retire(replica)
        self.changes += 1
        if not drain:
            self._router.cut_all(replica, "the replica was removed")
        try:
            await self._router.idle(replica)
        finally:
            self._router.drop(replica)
            await self._prober.stop(replica)
            await replica.transport.aclose()

    def pause(self, name: str | None = None) -> None:
        """Send a server nothing further until `resume`; what is in flight there goes on.

        Calls that wait for it go to the others, or wait if there are none; that is no one's time.

        Args:
            name: Its name or base URL; None pauses all.

        Raises:
            ConfigError: If there is no such server.
        """
        for replica in self._named(name):
            self._router.pause(replica)
        self.changes += 1

    def resume(self, name: str | None = None) -> None:
        """Send a paused server requests again.

        Args:
            name: Its name or base URL; None resumes all, each with the calls that wait for it.

        Raises:
            ConfigError: If there is no such server.
        """
        self._router.resume(self._named(name))
        self.changes += 1

    async def idle(self, name: str | None = None) -> None:
        """Wait until nothing is in flight at a paused server.

        Args:
            name: Its name or base URL; None is all.

        Raises:
            ConfigError: If there is no such server.
        """
        for replica in self._named(name):
            await self._router.idle(replica)

    def set_weight_version(self, name: str | None, version: str | None) -> None:
        """Say which weights a server answers with from now on.

        Args:
            name: Its name or base URL; None is all.
            version: What completions will carry as `weight_version`.

        Raises:
            ConfigError: If there is no such server.
        """
        for replica in self._named(name):
            replica.weight_version = version
        self.changes += 1

    @property
    def roster(self) -> tuple[Listed, ...]:
        """The servers, for a client in another process; without those that are leaving."""
        return tuple(
            Listed(endpoint=r.endpoint, weight_version=r.weight_version, paused=r.paused)
            for r in self._router
            if r.state != "leaving"
        )

    def follow(self, roster: Iterable[Listed], *, sharers: int = 1) -> list[str]:
        """Have the servers that a client in another process has.

        Args:
            roster: That client's.
            sharers: How many clients ask those servers; each has its part of the slots, one at
                least.

        Returns:
            The servers that are no longer listed; they are to be removed.
        """
        listed = {name_of(each.endpoint.base_url): each for each in roster}
        for name, each in listed.items():
            if self._router.get(name) is None:
                self.add(each.endpoint)
            replica = self._found(name)
            replica.weight_version = each.weight_version
            replica.limiter.resize(max(1, each.endpoint.max_concurrency // sharers))
            if each.paused:
                self._router.pause(replica)
            elif replica.paused:
                self._router.resume([replica])
        return [replica.name for replica in self._router if replica.name not in listed]

    def status(self) -> tuple[ReplicaStatus, ...]:
        """The servers as they are now."""
        return tuple(replica.status() for replica in self._router)

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """Make one tiny request to every server to see that it, key and model are right.

        Those that don't answer are left out until they do, with a warning. One that turns out to be
        the wrong server for what is asked in token ids is an error.

        Args:
            tools: Sent along, to see that the servers take tools.

        Raises:
            EndpointError: If none answers; one line that says why.
        """
        self._renewed()
        replicas = list(self._router)
        found = await asyncio.gather(*(self._greet(replica, tools) for replica in replicas))
        errors = [error for error in found if error is not None]
        if self.endpoint.tokens is not None:  # a server of something else would spoil what is asked
            wrong = [each for each in errors if not (each.retryable or each.refuses_caller)]
            if wrong:
                raise wrong[0]
        if errors and len(errors) == len(replicas):
            raise errors[0] if len(errors) == 1 else self._none_answers(0, {})
        for replica, error in zip(replicas, found, strict=True):
            if error is not None:
                logger.warning("%r goes on without a replica: %s", self, error)
                self._router.eject(replica)
        if self._router.away:
            self._prober.tend()

    # --- inside -------------------------------------------------------------------------------

    def _admit(self, endpoint: Endpoint, weight_version: str | None, *, paused: bool) -> None:
        replica = Replica(
            endpoint,
            limiter=Limiter(
                endpoint.max_concurrency, endpoint.rate, clock=self._clock, sleep=self._sleep
            ),
            transport=Transport(endpoint, self._scopes, path=self._wire.path),
            weight_version=weight_version,
        )
        replica.paused = paused
        self._router.add(replica)

    def _found(self, name: str) -> Replica:
        self._renewed()
        replica = self._router.get(name) or self._router.get(name_of(name))
        if replica is None:
            raise ConfigError(unknown_name("replica", name, [r.name for r in self._router]))
        return replica

    def _named(self, name: str | None) -> list[Replica]:
        self._renewed()
        return list(self._router) if name is None else [self._found(name)]

    async def _greet(self, replica: Replica, tools: Sequence[ToolSpec]) -> EndpointError | None:
        if not replica.limiter.has_room:
            return None  # it has answered, or others would wait elsewhere
        try:
            await self._greeted(tools, only_at=replica.name)
        except EndpointError as error:
            return error
        return None


def _check_same_policy(name: str, given: Endpoint, known: Endpoint) -> None:
    for field in _OF_ALL:
        ours, theirs = getattr(given, field), getattr(known, field)
        if ours != theirs:
            # It may hold a key.
            shown = "" if field == "extra_body" else f": it has {ours!r}, they have {theirs!r}"
            raise ConfigError(
                f"replica {name} differs from the others in {field}{shown}; replicas of one policy "
                f"have the same {', '.join(_OF_ALL)}"
            )
