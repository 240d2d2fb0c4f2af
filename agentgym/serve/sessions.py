"""The live environments of a service: who has which, and when it is taken back.

A client may die at any time. So a session is leased: one that gives no sign of life is closed, its
environment with it, and its slot goes to the next. Nothing is made for an id that nobody was given,
and an id alone is worth nothing without the token it was given to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from pydantic import Field

from agentgym.remote.session_schema import CreateSession
from agentgym.roles import Roles
from agentgym.rollout.hosted import check_keys, hosted_kwargs
from agentgym.rollout.source import EnvSource
from agentgym.serve.access import Caller
from agentgym.serve.accounts import Accounts
from agentgym.serve.allowed import Allowed
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_episode import fingerprint
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_state import Session
from agentgym.serve.session_thread import SessionThread
from agentgym.types import Record

logger = logging.getLogger(__name__)

_ID_BYTES = 24  # 192 random bits
_RETRY_AFTER_S = 2.0
_LOOK_S = (0.05, 30.0)
"""The reaper looks around this often at most and at least, seconds."""


class SessionsStatus(Record):
    """How many sessions there are and were."""

    active: int
    """At a request right now."""
    idle: int
    """Open, with nothing to do."""
    created: int = Field(ge=0)
    """Ever made."""
    closed: int
    """Closed by their clients, or with the service."""
    reaped: int
    """Closed because their clients gave no sign of life."""
    refused: int
    """Not made for want of room."""
    stuck: int
    """Environments that are in a call nobody waits for any more, right now."""
    abandoned: int
    """Environments ever left behind like that."""


class Sessions:
    """The sessions of one service, on one event loop.

    Args:
        limits: How many, how long, and what they may show.
        allowed: Which envs and parameters; None takes every registered env, for a program that
            serves nobody but itself.
        roles: The simulator and the judge of envs that take one and were given none.
        accounts: Who used how much; None counts nothing.
        clock: Seconds that never go back; what is idle is measured by it.
    """

    def __init__(
        self,
        limits: SessionLimits | None = None,
        *,
        allowed: Allowed | None = None,
        roles: Roles | None = None,
        accounts: Accounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or SessionLimits()
        self._allowed = allowed
        self._roles = roles or Roles()
        self._accounts = accounts
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._by_key: dict[tuple[str, str], Session] = {}
        self._unmade: set[str] = set()
        """Ids of sessions that have a slot and not yet an env."""
        self._closing: set[asyncio.Task[None]] = set()
        self._stuck: list[SessionThread] = []
        self._draining = False
        self._created = self._closed = self._reaped = self._refused = self._abandoned = 0

    def __len__(self) -> int:
        return len(self._open)

    def status(self) -> SessionsStatus:
        """How many there are and were."""
        active = sum(session.busy for session in self._open.values())
        return SessionsStatus(
            active=active,
            idle=len(self._open) - active,
            created=self._created,
            closed=self._closed,
            reaped=self._reaped,
            refused=self._refused,
            stuck=self._still_stuck(),
            abandoned=self._abandoned,
        )

    async def create(self, ask: CreateSession, caller: Caller) -> Session:
        """Make a session, or find the one that the caller made under the same key.

        Args:
            ask: Which env; `reset` in it is left to the caller of this.
            caller: Whose it will be.

        Raises:
            ServiceFault: If there is no room (429 for the caller's own, 503 for all), or the env
                can't be made as asked for.
        """
        mine = self.of(caller.name)
        if len(self._open) >= self.limits.max_sessions or len(mine) >= caller.quota.sessions:
            await self.reap()
        session = None if ask.key is None else self._by_key.get((caller.name, ask.key))
        if session is not None and session.made_by != _identity(ask):
            raise ServiceFault(
                409, "key_taken", f"session {ask.key!r:.60} is of another env; close it first"
            )
        if session is None:
            session = self._admitted(ask, caller)
        try:
            await session.make()
        except ServiceFault:
            if session.env is None:
                await self._drop(session)
            raise
        if session.session_id in self._unmade:
            self._unmade.discard(session.session_id)
            self._created += 1
        return session

    def find(self, session_id: str, caller: str) -> Session:
        """A caller's session.

        Raises:
            ServiceFault: 404, whether there is none of that id or it is another caller's.
        """
        session = self._open.get(session_id)
        if session is None or session.caller != caller:
            raise no_such_session()
        return session

    def of(self, caller: str) -> list[Session]:
        """A caller's sessions, the latest first."""
        return [s for s in reversed(self._open.values()) if s.caller == caller]

    async def close(self, session_id: str, caller: str) -> None:
        """Close a session; its slot is free at once.

        Raises:
            ServiceFault: If there is no such session.
        """
        session = self.find(session_id, caller)
        self._closed += 1
        await self._drop(session)

    async def reap(self) -> int:
        """Close every session that gave no sign of life for too long, and say how many."""
        late = [s for s in self._open.values() if s.idle_s >= self.limits.idle_ttl_s]
        self._reaped += len(late)
        await asyncio.gather(*(self._drop(session) for session in late))
        if late:
            logger.info("closed %d idle sessions", len(late))
        return len(late)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take back what is idle while the block runs, and close everything at its end."""
        reaper = asyncio.create_task(self._reap_forever())
        try:
            yield
        finally:
            reaper.cancel()
            await asyncio.wait({reaper})
            await self.aclose()

    def begin_no_more(self) -> None:
        """Make no further session, and begin no further episode."""
        self._draining = True

    async def settled(self) -> None:
        """Wait for the requests in progress."""
        await asyncio.gather(*(session.settled() for session in self._open.values()))

    async def aclose(self) -> None:
        """Close every session, and make no further ones."""
        self.begin_no_more()
        rest = list(self._open.values())
        self._closed += len(rest)
        await asyncio.gather(*(self._drop(session) for session in rest))
        if self._closing:
            await asyncio.wait(self._closing)

    # --- inside -------------------------------------------------------------------------------

    def _admitted(self, ask: CreateSession, caller: Caller) -> Session:
        """A slot, and the session in it, without an env yet."""
        self._check_room(caller)
        session = Session(
            session_id=secrets.token_urlsafe(_ID_BYTES),
            caller=caller.name,
            env_id=ask.env,
            source=lambda: self._source(ask),
            limits=self.limits,
            clock=self._clock,
            admit=self._check_state,
            charged=lambda episodes: self._charged(caller, episodes),
            on_stuck=self._left_behind,
        )
        session.key, session.made_by = ask.key, _identity(ask)
        self._open[session.session_id] = session
        if ask.key is not None:
            self._by_key[caller.name, ask.key] = session
        self._unmade.add(session.session_id)
        return session

    def _charged(self, caller: Caller, episodes: int) -> AbstractAsyncContextManager[None]:
        if self._accounts is None:
            return contextlib.nullcontext()
        return self._accounts.charged(caller, episodes=episodes)

    def _source(self, ask: CreateSession) -> EnvSource:
        """What makes the env asked for; this may block.

        Raises:
            ServiceFault: If it isn't allowed.
            ConfigError: If there is no such env.
        """
        env_kwargs = ask.env_kwargs
        if self._allowed is not None:
            env_kwargs = self._allowed.env_kwargs(self._allowed.env(ask.env), env_kwargs)
        env_kwargs = hosted_kwargs(ask.env, env_kwargs, self._roles).env_kwargs
        check_keys(env_kwargs)
        return EnvSource(ask.env, env_kwargs)

    def _check_room(self, caller: Caller) -> None:
        """Refuse a session that there is no room for.

        Raises:
            ServiceFault: 429 or 503.
        """
        most = caller.quota.sessions
        try:
            self._check_state()
            if len(self.of(caller.name)) >= most:
                text = f"you have {most} sessions open, which is the most; close one"
                raise ServiceFault(429, "too_many_sessions", text, retry_after_s=_RETRY_AFTER_S)
            if len(self._open) >= self.limits.max_sessions:
                most = self.limits.max_sessions
                text = f"all {most} sessions of the service are taken; try later"
                raise ServiceFault(503, "no_room", text, retry_after_s=_RETRY_AFTER_S)
        except ServiceFault:
            self._refused += 1
            raise

    def _check_state(self) -> None:
        """Refuse whatever is new while the service stops, or too many envs hang.

        Raises:
            ServiceFault: 503.
        """
        if self._draining:
            raise ServiceFault(503, "draining", "the service is stopping", retry_after_s=10)
        if self._still_stuck() > self.limits.max_stuck:
            text = "too many environments hang in a call; the service needs a look"
            raise ServiceFault(503, "envs_stuck", text, retry_after_s=60)

    async def _drop(self, session: Session) -> None:
        """Take a session out at once, and close its env whatever becomes of the caller."""
        if self._open.pop(session.session_id, None) is None:
            return
        self._unmade.discard(session.session_id)
        if session.key is not None:
            self._by_key.pop((session.caller, session.key), None)
        closing = asyncio.create_task(session.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._was_closed)
        await asyncio.wait({closing})  # which goes on if this is cancelled, and raises nothing

    def _was_closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            logger.warning("closing a session failed", exc_info=error)

    def _left_behind(self, thread: SessionThread | None) -> None:
        self._abandoned += 1
        if thread is not None:
            self._stuck.append(thread)

    def _still_stuck(self) -> int:
        self._stuck = [thread for thread in self._stuck if thread.alive]
        return len(self._stuck)

    async def _reap_forever(self) -> None:
        least, most = _LOOK_S
        while True:
            await asyncio.sleep(min(most, max(least, self.limits.idle_ttl_s / 4)))
            try:
                await self.reap()
            except Exception:  # one env's close() must not end the others' watch
                logger.warning("looking for idle sessions failed", exc_info=True)


def no_such_session() -> ServiceFault:
    """What is said of an id that nobody was given, that is closed, or that is another's."""
    return ServiceFault(
        404, "no_such_session", "there is no such session; it may have expired. Create another"
    )


def _identity(ask: CreateSession) -> tuple[str, str]:
    return ask.env, fingerprint(ask.env_kwargs)
