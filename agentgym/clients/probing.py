"""Bringing back servers that are away: ejected ones, and those that asked for a pause.

One that cut a connection or didn't answer in time is asked at once whether it still lives, so that
the others of its calls need not find out by themselves.

A server that is away has a task of its own. It runs in the loop of the call that noticed, and ends
with that loop, or stands still with it; the next call finds the server still away, and starts
another one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym.clients.failures import words_of
from agentgym.clients.replicas import Replica
from agentgym.clients.reply import BadReply
from agentgym.clients.routing import Router

_TIMEOUT_S = 5.0


class Prober:
    """The tasks of a client's servers that are away.

    Args:
        router: Told what comes of it.
        rng: Jitter of the pauses between probes.
        sleep: Waits between probes.
    """

    def __init__(
        self, router: Router, *, rng: random.Random, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        self._router = router
        self._rng = rng
        self._sleep = sleep
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def tend(self) -> None:
        """See to it that each server that is away is being brought back."""
        for replica in self._router.away:
            task = self._tasks.get(replica)
            if task is None or task.done() or not task.get_loop().is_running():
                loop = asyncio.get_running_loop()
                self._tasks[replica] = loop.create_task(self._bring_back(replica))

    async def stop(self, replica: Replica) -> None:
        """Leave a server alone."""
        task = self._tasks.pop(replica, None)
        if task is None or task.done() or task.get_loop().is_closed():
            return
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def aclose(self) -> None:
        """End the tasks of the running loop."""
        loop = asyncio.get_running_loop()
        for replica in [r for r, task in self._tasks.items() if task.get_loop() is loop]:
            await self.stop(replica)

    async def _bring_back(self, replica: Replica) -> None:
        while not replica.leaving:
            pause_s = replica.limiter.paused_s
            if replica.suspect:
                await self._probe(replica)
            elif replica.ejected:
                await self._sleep(self._rng.uniform(replica.probe_s / 2, replica.probe_s))
                await self._probe(replica)
            elif pause_s > 0:
                await self._sleep(pause_s)
            else:
                break
        self._router.is_back(replica)

    async def _probe(self, replica: Replica) -> None:
        """Ask a server whether it is there."""
        try:
            async with asyncio.timeout(min(_TIMEOUT_S, replica.endpoint.timeout_s)):
                session = await replica.transport.session()
                await session.probe()
        except BadReply as bad:
            failure = bad
        except TimeoutError:
            failure = BadReply("no answer to a probe", retryable=True, unreachable=True)
        else:
            self._router.lives(replica)
            return
        self._router.is_dead(replica, failure, words_of(failure, replica.endpoint))
