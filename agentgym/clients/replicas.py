"""One server of a policy that several serve: what it is doing, and whether it is well.

What a failure says about a server is decided here. A request that is wrong is wrong everywhere; a
server that is busy gets fewer requests; one that can't be reached, or refuses its caller, gets none
until it has answered a probe.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field

from agentgym.client import Endpoint, public_url
from agentgym.clients.limiter import Limiter, Permit
from agentgym.clients.lines import Line
from agentgym.clients.reply import BadReply
from agentgym.clients.sessions import Session
from agentgym.clients.speeds import Speed
from agentgym.clients.transport import Transport
from agentgym.clients.waiting import Wake
from agentgym.types import Record

Fault: TypeAlias = Literal["request", "passing", "busy", "shaky", "gone", "refused"]
"""What a failure says: the request is wrong, nothing, the server has too much to do, it may be
dying, it isn't there, it won't answer this caller."""

State: TypeAlias = Literal["ready", "paused", "leaving", "ejected"]

MOST_STRIKES = 3
"""Doubtful failures in a row, with no answer between them, after which a server counts as dead."""
FIRST_PROBE_S = 0.5
LAST_PROBE_S = 30.0


def fault_of(failure: BadReply) -> Fault:
    """What a failed request says about its server."""
    status = failure.status
    if failure.own_fault or failure.empty or failure.not_finite:
        return "passing"
    if failure.out_of_money or status in (401, 402, 403, 404, 405):
        return "refused"
    if status is not None and 300 <= status < 400:
        return "refused"
    if failure.is_overload:
        return "busy"
    if failure.unreachable and not failure.retryable:  # its certificate is wrong, say
        return "refused"
    if failure.unreachable and not failure.unknown_bill:
        return "gone"
    if failure.unreachable or failure.unknown_bill or (status is not None and status >= 500):
        return "shaky"
    return "passing" if failure.retryable else "request"


def name_of(base_url: str) -> str:
    """What a server is called: host, port and, if it isn't the usual one, path."""
    parts = urlsplit(public_url(base_url))
    return parts.netloc + parts.path.removesuffix("/v1")


class Listed(Record):
    """One server of a policy, as a client in another process is told of it."""

    endpoint: Endpoint
    weight_version: str | None = None
    paused: bool = False


class ReplicaStatus(Record):
    """One server of a policy, as it is now."""

    name: str
    """Host, port and, if it isn't the usual one, path."""
    state: State
    """`ready`; `paused` by `pause`; `leaving` while what is in flight ends; `ejected` since it is
    dead or refuses its caller, and probed."""
    in_flight: int
    capacity: int
    """Requests allowed at once now: `max_concurrency`, fewer where the server was overloaded."""
    waiting: int
    """Calls that wait for this server, since it holds their prefix."""
    outstanding_tokens: int
    """What is in flight: prompt tokens that aren't cached there, and the output expected."""
    sessions: int
    """Episodes whose prefix it holds."""
    answered: int
    failed: int
    """Requests without an answer."""
    last_error: str | None
    weight_version: str | None
    cached_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the prompt tokens that the server had cached, as it says; None before any answer."""


class Seat:
    """One request's place at a server.

    Args:
        replica: The server.
        session: The request's episode; None if it belongs to none.
        prompt_tokens: As estimated.
        tokens: What the server has to do for it, as expected.
    """

    __slots__ = (
        "cut_because",
        "loop",
        "permit",
        "prompt_tokens",
        "replica",
        "scope",
        "sent_at",
        "session",
        "tokens",
        "weight_version",
    )

    def __init__(
        self, replica: Replica, session: Session | None, *, prompt_tokens: int, tokens: int
    ) -> None:
        self.replica = replica
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.permit: Permit | None = None
        self.sent_at = 0.0
        self.weight_version: str | None = None
        self.cut_because: str | None = None
        """Why the request was ended before there was an answer."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.scope: asyncio.Timeout | None = None

    def can_be_cut(self, scope: asyncio.Timeout) -> None:
        """It is sent inside this scope, in the running loop."""
        self.loop, self.scope = asyncio.get_running_loop(), scope

    def cut(self, because: str) -> None:
        """End the request, from any thread; its call goes elsewhere."""
        if self.cut_because is None and self.loop is not None:
            self.cut_because = because
            try:
                self.loop.call_soon_threadsafe(self._expire)
            except RuntimeError:  # closed, and the request with it
                return

    def _expire(self) -> None:
        assert self.loop is not None
        assert self.scope is not None
        try:
            self.scope.reschedule(self.loop.time())
        except RuntimeError:  # it is through
            return


class Replica:
    """One server and its state; all of it changes under the router's lock.

    Args:
        endpoint: Where it is, how much at once.
        limiter: Its slots and pace.
        transport: Its connections.
        weight_version: The weights it answers with, if known.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        limiter: Limiter,
        transport: Transport,
        weight_version: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.name = name_of(endpoint.base_url)
        self.limiter = limiter
        self.transport = transport
        self.weight_version = weight_version
        self.line = Line()
        """Calls that wait for this server rather than for any."""
        self.seats: set[Seat] = set()
        self.paused = False
        self.leaving = False
        self.ejected = False
        self.suspect = False
        """Whether it may be dead; a probe will tell."""
        self.is_proven = False
        """Whether it has answered since it came, or came back."""
        self.strikes = 0
        self.probe_s = FIRST_PROBE_S
        """Pause before the next probe."""
        self.outstanding_tokens = 0
        self.sessions = 0
        self.busy_sessions = 0
        self.answered = 0
        self.failed = 0
        self.last_failure: BadReply | None = None
        self.last_error: str | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.answer_s: float | None = None
        """Seconds that a request takes, lately."""
        self.speed = Speed()
        self.idle_wakes: list[Wake] = []

    @property
    def is_up(self) -> bool:
        """Whether it is given requests."""
        return not (self.paused or self.leaving or self.ejected)

    @property
    def in_flight(self) -> int:
        """Requests it has."""
        return len(self.seats)

    @property
    def state(self) -> State:
        """In one word; the one that lasts longest goes first."""
        if self.leaving:
            return "leaving"
        if self.ejected:
            return "ejected"
        return "paused" if self.paused else "ready"

    def status(self) -> ReplicaStatus:
        """As it is now."""
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None
        return ReplicaStatus(
            name=self.name,
            state=self.state,
            in_flight=self.in_flight,
            capacity=self.limiter.allowed,
            waiting=len(self.line),
            outstanding_tokens=self.outstanding_tokens,
            sessions=self.sessions,
            answered=self.answered,
            failed=self.failed,
            last_error=self.last_error,
            weight_version=self.weight_version,
            cached_share=share,
        )

    def load(self, turn_tokens: float) -> float:
        """Tokens in flight and expected back, for the server's size and speed.

        Args:
            turn_tokens: What a turn is to a server; one is expected of each episode that is in a
                tool just now.
        """
        resting = self.sessions - self.busy_sessions
        tokens = self.outstanding_tokens + resting * turn_tokens
        return tokens * self.speed.slowness / self.limiter.most

    def wait_s(self) -> float:
        """Seconds until the last of its line is served, as far as anybody can tell."""
        paused_s = self.limiter.paused_s
        if self.answer_s is None:
            return paused_s
        return paused_s + len(self.line) * self.answer_s / max(1, self.limiter.allowed)
