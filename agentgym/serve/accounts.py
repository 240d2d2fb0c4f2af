"""What each client uses in a day, and that nobody uses more than its quota.

Jobs note their spending with the traces that it paid for. What leaves no trace in the store is
noted here: what a job's cancelled episodes had cost, and what sessions use, an episode at its
reset, and what the service's models cost whenever a request is done. What several owe at once is
written in one go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from agentgym.metering import Meter, metered
from agentgym.serve.access import Caller
from agentgym.serve.faults import ServiceFault
from agentgym.serve.store import Store
from agentgym.serve.store_records import Spending, StoreError
from agentgym.serve.storing import storing
from agentgym.types import Usage

logger = logging.getLogger(__name__)


class Accounts:
    """The clients' accounts of the day, for work that leaves nothing else in the store.

    Args:
        store: Keeps them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owed: dict[str, Spending] = {}
        self._admitting = asyncio.Lock()
        self._writing = asyncio.Lock()

    @asynccontextmanager
    async def charged(self, caller: Caller, *, episodes: int = 0) -> AsyncIterator[None]:
        """Charge a client for what the models cost that are asked inside the block.

        Args:
            caller: Who pays.
            episodes: Begun by the block; given back if it raises.

        Raises:
            ServiceFault: 429, before the block, if a quota of the day is used up.
        """
        await self._admit(caller, episodes)
        meter, given_back = Meter(), -episodes
        try:
            with metered(meter):
                yield
            given_back = 0
        finally:
            self.owe(caller, Spending(episodes=given_back) + cost_of(meter.by_role))
            await self.write()

    async def _admit(self, caller: Caller, episodes: int) -> None:
        async with self._admitting:  # or two could both take the last episode
            if caller.quota.is_daily:
                await self.check(caller, episodes=episodes)
            self.owe(caller, Spending(episodes=episodes))

    async def check(self, caller: Caller, *, episodes: int) -> None:
        """Refuse so many episodes if a quota of the day is used up.

        Raises:
            ServiceFault: 429.
        """
        with storing():
            check_day(caller, await self.spent(caller), episodes)

    async def spent(self, caller: Caller) -> Spending:
        """What a client has used today."""
        await self.write()
        return await self._store.do(Store.spent, caller.name)

    def owe(self, caller: Caller, spending: Spending) -> None:
        """Note what a client used, to be written down with the next `write`."""
        self._owed[caller.name] = self._owed.get(caller.name, Spending()) + spending

    async def write(self) -> None:
        """Write down what is owed; while the store can't be written, it stays owed."""
        async with self._writing:
            owed = {name: spent for name, spent in self._owed.items() if spent != Spending()}
            self._owed = {}
            try:
                if owed:
                    await self._store.do(Store.charge, owed)
            except StoreError as error:
                logger.warning("what clients used isn't written down yet: %s", error)
                for name, spent in owed.items():
                    self._owed[name] = self._owed.get(name, Spending()) + spent


def cost_of(by_role: Mapping[str, Usage]) -> Spending:
    """What all roles together cost."""
    spent = sum(by_role.values(), start=Usage(calls=0))
    return Spending(tokens=spent.prompt_tokens + spent.completion_tokens, usd=spent.cost_usd or 0.0)


def used_up(caller: Caller, spent: Spending, episodes: int) -> str | None:
    """Which quota of the day is used up, if one is.

    Args:
        caller: Whose.
        spent: What was used so far.
        episodes: Wanted beside.
    """
    quota = caller.quota
    if quota.episodes_per_day is not None and spent.episodes + episodes > quota.episodes_per_day:
        return f"{quota.episodes_per_day} episodes"
    if quota.tokens_per_day is not None and spent.tokens >= quota.tokens_per_day:
        return f"{quota.tokens_per_day} tokens"
    if quota.usd_per_day is not None and spent.usd >= quota.usd_per_day:
        return f"${quota.usd_per_day:g}"
    return None


def check_day(caller: Caller, spent: Spending, episodes: int) -> None:
    """Refuse what is more than a quota of the day; see `used_up`.

    Raises:
        ServiceFault: 429.
    """
    quota = used_up(caller, spent, episodes)
    if quota is None:
        return
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0)
    raise ServiceFault(
        HTTPStatus.TOO_MANY_REQUESTS,
        "quota_used_up",
        f"your quota of {quota} a day is used up; it begins anew at midnight UTC",
        retry_after_s=(midnight - now).total_seconds(),
    )
