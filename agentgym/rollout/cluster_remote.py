"""One worker, as the driver sees it: its actor, what it has been given, what it says."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

from agentgym.clients.replicas import Listed
from agentgym.errors import ConfigError
from agentgym.rollout.backend import Played
from agentgym.rollout.cluster_parcel import Member, Parcel
from agentgym.rollout.cluster_worker import Finished, News, Order, Started
from agentgym.rollout.limits import Limits
from agentgym.trace import Trace

logger = logging.getLogger(__name__)

_STOP_S = 10.0


class RemoteWorker:
    """A worker and the parcels it has.

    Args:
        ray: Ray.
        actor_class: Makes the actor, which may have to wait for room.
        node: The node it was asked for, or None where Ray chooses.
    """

    def __init__(self, ray: Any, actor_class: Any, node: str | None) -> None:
        self._ray = ray
        self._actor = actor_class.remote()
        self.name = uuid.uuid4().hex
        self.node = node
        """Ray's id of its node, once that is known."""
        self.label = "?"
        """Its node and process, for people."""
        self.is_ready = False
        self.capacity = 0
        """Episodes that are not through with their turns, at most."""
        self.parcels: set[Parcel] = set()
        self._members: dict[str, tuple[Parcel, Member]] = {}
        self._asked_to_cancel: dict[str, asyncio.Event] = {}
        self._outbox: list[Order] = []
        self._has_orders = asyncio.Event()
        self._sent = 0
        self._received = 0
        self._pending = 0

    @property
    def running(self) -> int:
        """Episodes given to it and not through with their turns."""
        return self._pending + self._sent - self._received

    @property
    def has_room(self) -> bool:
        """Whether it may be given another episode."""
        return self.is_ready and self.running < self.capacity

    # --- orders -------------------------------------------------------------------------------

    def begin(self, parcel: Parcel, member: Member) -> None:
        """Give it an episode."""
        parcel.worker = self
        member.whereabouts.node = self.label
        self.parcels.add(parcel)
        self._members[member.key] = (parcel, member)
        self._sent += 1
        name = parcel.name if parcel.is_group else ""
        self._order(("begin", name, member.key, member.request.model_dump_json()))

    def close(self, parcel: Parcel) -> None:
        """Nobody else will come to a group."""
        self._order(("close", parcel.name))

    def share(self, limits: Limits, workers: int, most: int) -> None:
        """Tell it its share of the limits.

        Args:
            limits: Its share.
            workers: Among how many they are shared out.
            most: Episodes that take their turns, at most, whatever the limits.
        """
        self.capacity = min(most, limits.concurrency + limits.init_concurrency)
        self._order(("share", limits.model_dump_json(), workers))

    def cancel(self, member: Member) -> asyncio.Event:
        """Have an episode cancelled.

        Returns:
            Set once it is, or nobody is there to do it.
        """
        cancelled = self._asked_to_cancel.get(member.key)
        if cancelled is None:
            cancelled = asyncio.Event()
            if member.key in self._members and self.is_ready:
                self._asked_to_cancel[member.key] = cancelled
                self._order(("cancel", member.key))
            else:
                cancelled.set()
        return cancelled

    def follow(self, roster: tuple[Listed, ...]) -> None:
        """Tell it the policy's replicas."""
        self._order(("policy", roster))

    def _order(self, order: Order) -> None:
        self._outbox.append(order)
        self._has_orders.set()

    # --- its life -----------------------------------------------------------------------------

    async def start(self, job: bytes, limits: Limits, desk: Any) -> Started:
        """Wait until it has a place and is ready to play.

        Raises:
            ray.exceptions.RayError: If it dies before.
        """
        arguments = (self.name, job, limits.model_dump_json(), desk)
        started: Started = await self._actor.start.remote(*arguments)
        self.node, self.label = started.node, started.label
        return started

    async def serve(
        self,
        *,
        turn: Callable[[int], None],
        moved: Callable[[], None],
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Pass on orders and news until the worker dies.

        Args:
            turn: Hears of each answer of the policy, with its tokens.
            moved: Called when it may have room.
            until: Looked at after each news; ends it.

        Raises:
            ray.exceptions.RayError: When it dies; inside an exception group.
        """
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send())
            while not until():
                news: News = await self._actor.news.remote()
                for tokens in news.turns:
                    turn(tokens)
                self._follow(news)
                for finished in news.finished:
                    self._finish(finished)
                self._received, self._pending = news.orders, news.pending
                moved()
            sending.cancel()

    async def stop(self) -> None:
        """End it: in good order if it answers, else at once."""
        was_ready = self.is_ready
        self.retire()
        try:
            if was_ready:
                async with asyncio.timeout(_STOP_S):
                    await self._actor.stop.remote()
        except Exception as error:  # dead, or stuck: it ends anyhow
            logger.debug("worker %s was stopped by force: %s", self.label, error)
        self.kill()

    def kill(self) -> None:
        """End it at once; whatever it still says is not heard."""
        self.retire()
        self._members.clear()
        self._ray.kill(self._actor)

    def retire(self) -> None:
        """Give it nothing more, and wait for none of its episodes to be cancelled."""
        self.is_ready = False
        for cancelled in self._asked_to_cancel.values():
            cancelled.set()

    async def _send(self) -> None:
        while True:
            await self._has_orders.wait()
            self._has_orders.clear()
            orders, self._outbox = self._outbox, []
            await self._actor.orders.remote(orders)

    def _follow(self, news: News) -> None:
        """Bring the driver's picture of the episodes up to date."""
        for key, usage in news.usage.items():
            if key in self._members:
                self._members[key][1].usage = usage
        for key, where in (news.whereabouts or {}).items():
            if key not in self._members:
                continue
            _, member = self._members[key]
            stage, waiting, waited_s, turn, attempt, replica = where
            member.whereabouts.follow(stage, waiting, waited_s=waited_s)
            member.whereabouts.turn = turn
            member.whereabouts.attempt = attempt + len(member.lost)
            member.whereabouts.replica = replica
            member.whereabouts.node = self.label

    def _finish(self, finished: Finished) -> None:
        parcel, member = self._members.pop(finished.key)
        if finished.trace is None:
            member.usage = finished.spent
        if (cancelled := self._asked_to_cancel.pop(finished.key, None)) is not None:
            cancelled.set()
        if finished.trace is not None:
            parcel.take(member, _read(finished.trace, finished))
        elif finished.error is not None:
            parcel.fail(ConfigError(finished.error))
        if parcel.is_over:
            self.parcels.discard(parcel)


def _read(trace: str, finished: Finished) -> Played:
    return Played(
        Trace.model_validate_json(trace),
        fatal=finished.fatal,
        replaced=tuple(map(Trace.model_validate_json, finished.replaced)),
    )
