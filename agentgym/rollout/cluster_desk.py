"""How models are asked from many processes without leaning on them harder than one would.

A budget or a rate limit belongs to an endpoint, and as many copies of it as there are workers would
multiply it; a share for each would be wasted wherever a worker is idle, and lost with the worker.
So calls of such endpoints, which are few (they are what somebody pays for or has rationed), pass
through one process, the desk, whose client keeps both exactly. All other endpoints are asked by
the workers directly, each with its share of `max_concurrency`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.client import Completion, Endpoint, ModelClient, RateLimits, SamplingParams
from agentgym.clients.connect import SharedClient, shared_client
from agentgym.deadline import Deadline, queued
from agentgym.errors import EndpointError
from agentgym.metering import Meter, charge, metered, report_refusal
from agentgym.types import Message, ToolSpec, Usage

_FOREVER_S = 1e9
_QUEUED_BY_S = 0.01
"""By then a call that must wait for its turn is waiting, seconds."""


def is_rationed(endpoint: Endpoint) -> bool:
    """Whether an endpoint has limits that can't be shared out."""
    return endpoint.budget_usd is not None or endpoint.rate != RateLimits()


@dataclass
class Asked:
    """One call, as it travels to the desk."""

    endpoint: Endpoint
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    sampling: SamplingParams
    session: str | None


@dataclass
class Answered:
    """What came of it."""

    completion: Completion | None
    error: EndpointError | None
    usage: dict[str, Usage]
    """Charged by the call, by role."""
    refused: dict[str, str]


class _Queueing(Deadline):
    """A deadline that never strikes; it tells when the call inside no longer waits for its turn."""

    def __init__(self) -> None:
        super().__init__(_FOREVER_S)
        self._queues = 0
        self.is_out = asyncio.Event()
        """Set while the request is under way."""
        self.is_out.set()

    def tell(self, change: int) -> None:
        """See `Deadline`."""
        super().tell(change)
        self._queues += change
        if self._queues:
            self.is_out.clear()
        else:
            self.is_out.set()


class Desk:
    """The body of the actor that answers for rationed endpoints."""

    def __init__(self) -> None:
        self._calls: dict[str, asyncio.Task[Answered]] = {}

    async def ask(self, key: str, asked: Asked) -> None:
        """Start a call; returns once its request is under way, or will never be.

        Args:
            key: The worker's name, a slash, and what is unique in the worker.
            asked: The call.
        """
        queueing = _Queueing()
        self._calls[key] = task = asyncio.create_task(self._answer(asked, queueing))
        await asyncio.wait([task], timeout=_QUEUED_BY_S)
        out = asyncio.create_task(queueing.is_out.wait())
        try:
            await asyncio.wait([task, out], return_when=asyncio.FIRST_COMPLETED)
        finally:
            out.cancel()

    async def answer(self, key: str) -> Answered:
        """Wait for a call's answer."""
        try:
            return await self._calls[key]
        finally:
            self._calls.pop(key, None)

    async def drop(self, prefix: str) -> None:
        """Give up calls: one, or all of a worker."""
        for key in [key for key in self._calls if key.startswith(prefix)]:
            self._calls.pop(key).cancel()

    async def _answer(self, asked: Asked, queueing: _Queueing) -> Answered:
        client = shared_client(asked.endpoint)
        completion, failure, meter = None, None, Meter()
        try:
            with metered(meter):
                async with queueing:
                    completion = await client.complete(
                        asked.messages, asked.tools, asked.sampling, session=asked.session
                    )
        except EndpointError as error:
            failure = error
        return Answered(completion, failure, meter.by_role, meter.refused)


class DeskClient:
    """A `ModelClient` that asks at the desk.

    Args:
        endpoint: Whom to ask.
        desk: The actor.
        worker: This worker's name.
    """

    def __init__(self, endpoint: Endpoint, desk: Any, worker: str) -> None:
        self.endpoint = endpoint
        self._desk = desk
        self._worker = worker

    def __deepcopy__(self, memo: dict[int, Any]) -> DeskClient:
        return self  # Gymnasium copies what an environment is made of

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `ModelClient.complete`."""
        key = f"{self._worker}/{uuid.uuid4().hex}"
        asked = Asked(self.endpoint, list(messages), list(tools), sampling, session)
        try:
            with queued():
                await self._desk.ask.remote(key, asked)
            answered: Answered = await self._desk.answer.remote(key)
        except asyncio.CancelledError:
            self._desk.drop.remote(key)
            raise
        for role, usage in answered.usage.items():
            charge(role, usage)
        for role, reason in answered.refused.items():
            report_refusal(role, reason)
        if answered.error is not None:
            raise answered.error
        assert answered.completion is not None
        return answered.completion

    async def release(self, session: str) -> None:
        """Nothing; what the desk remembers of a session is small and bounded."""

    async def aclose(self) -> None:
        """Nothing; the desk ends with the backend."""


class ClientsOfWorker:
    """The clients of one worker: of the desk for rationed endpoints, of its own for the others.

    Args:
        desk: The actor.
        worker: The worker's name.
    """

    def __init__(self, desk: Any, worker: str) -> None:
        self._desk = desk
        self._worker = worker
        self._direct: dict[str, SharedClient] = {}
        self._at_desk: dict[str, DeskClient] = {}
        self._workers = 1

    def client_of(self, endpoint: Endpoint) -> ModelClient:
        """The worker's client of an endpoint; for `connecting_by`."""
        key = endpoint.model_dump_json()
        if is_rationed(endpoint):
            if key not in self._at_desk:
                self._at_desk[key] = DeskClient(endpoint, self._desk, self._worker)
            return self._at_desk[key]
        if key not in self._direct:
            self._direct[key] = shared_client(endpoint)
            self._limit(self._direct[key])
        return self._direct[key]

    def share(self, workers: int) -> None:
        """So many workers ask the same endpoints."""
        self._workers = workers
        for client in self._direct.values():
            self._limit(client)

    def _limit(self, client: SharedClient) -> None:
        client.limit_to(max(1, client.endpoint.max_concurrency // self._workers))
