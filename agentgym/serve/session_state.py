"""One session: an environment, the episode it is in, and one request at a time.

The work of a request belongs to the session, not to the connection that asked for it. A client that
hangs up leaves no half-taken turn behind, and one that asks again is given the same answer, whether
the work is still going on or over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

from agentgym.remote.session_schema import (
    CutEpisode,
    EpisodeStart,
    ResetEpisode,
    SessionState,
    SessionView,
    TakeTurn,
    TurnResult,
)
from agentgym.rollout.source import EnvSource
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_env import SessionEnv
from agentgym.serve.session_episode import PlayedEpisode, fingerprint
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_player import SessionPlayer
from agentgym.serve.session_thread import SessionThread
from agentgym.serve.session_view import json_bytes
from agentgym.serve.session_work import Key, SharedWork
from agentgym.trace import Trace

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Session:
    """One client's environment.

    Args:
        session_id: Unguessable; whoever has it and the caller's token may use the session.
        caller: Whose it is.
        env_id: The env's id, as asked for.
        source: Gives what makes the env; it may block, and refuse.
        limits: The service's.
        clock: Seconds, for what is idle.
        admit: Called before an episode begins; refuses it with a `ServiceFault`.
        charged: Charges the client for what is asked of models inside the context that it gives,
            and for so many episodes; refuses with a `ServiceFault` what is beyond a quota.
        on_stuck: Gets the thread of an env that was left behind in a call.
    """

    def __init__(
        self,
        *,
        session_id: str,
        caller: str,
        env_id: str,
        source: Callable[[], EnvSource],
        limits: SessionLimits,
        clock: Callable[[], float],
        admit: Callable[[], None],
        charged: Callable[[int], AbstractAsyncContextManager[None]],
        on_stuck: Callable[[SessionThread | None], None],
    ) -> None:
        self.session_id = session_id
        self.caller = caller
        self.env_id = env_id
        self.key: str | None = None
        """The client's own name for it."""
        self.made_by: tuple[str, str] = (env_id, "")
        """Env and parameters, as asked for."""
        self._limits = limits
        self._clock = clock
        self._admit = admit
        self._charged = charged
        self._on_stuck = on_stuck
        self._used = clock()
        self._created_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._player = SessionPlayer(env_id, source, limits, on_stuck=on_stuck)
        self._episode: PlayedEpisode | None = None
        self._number = 0
        self._reset_by: Key = ()
        self._work = SharedWork(clock, limits.longest_s)
        self._turnstile = asyncio.Lock()

    # --- looking at it ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on."""
        return self._work.busy

    @property
    def idle_s(self) -> float:
        """Seconds since the last sign of life, or since the work in hand should have been over."""
        since = self._work.due
        return max(0.0, self._clock() - (self._used if since is None else since))

    @property
    def state(self) -> SessionState:
        """Where it is."""
        if self._episode is None:
            return "new"
        return "over" if self._episode.over else "running"

    @property
    def episode(self) -> PlayedEpisode | None:
        """The episode in progress or just over."""
        return self._episode

    @property
    def env(self) -> SessionEnv | None:
        """The environment; None while there is none."""
        return self._player.env

    def touch(self) -> float:
        """Take a sign of life, and say how many seconds there are until the next one is due."""
        self._used = self._clock()
        return self._limits.idle_ttl_s

    def view(self, *, brief: bool = False) -> SessionView:
        """The session as its owner sees it.

        Args:
            brief: Leave the conversation out, for a list.
        """
        episode = None if brief else self._episode
        return SessionView(
            session_id=self.session_id,
            env=self.env_id,
            state=self.state,
            busy=self.busy,
            episode=self._number,
            turn=0 if self._episode is None else self._episode.turn,
            tools=() if self.env is None or brief else tuple(self.env.tools),
            spaces=self._player.spaces,
            messages=() if episode is None else tuple(episode.messages),
            last=None if episode is None else episode.last,
            started=episode.started if episode is not None else None,
            expires_in_s=max(0.0, self._limits.idle_ttl_s - self.idle_s),
            created_at=self._created_at,
        )

    def trace(self) -> Trace:
        """The record of the finished episode.

        Raises:
            ServiceFault: If there is none.
        """
        source = self._player.source
        if self._episode is None or source is None:
            raise _reset_needed()
        return self._episode.trace(source.spec_json, self.session_id)

    # --- playing ------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make the environment, if there is none.

        Raises:
            ServiceFault: If it can't be made.
        """
        if self.env is None:
            await self._once(("make",), self._player.make)

    async def reset(self, ask: ResetEpisode) -> EpisodeStart:
        """Start an episode.

        Raises:
            ServiceFault: If it can't be started as asked.
        """
        key = ("reset", fingerprint(ask.model_dump(mode="json")))
        if not self.busy and self._episode is not None and ask.episode == self._number:
            if key != self._reset_by:
                text = f"episode {ask.episode} was started with another request"
                raise ServiceFault(409, "episode_taken", text)
            self.touch()
            return self._episode.started
        if ask.episode not in (None, self._number + 1):
            text = f"the next episode is {self._number + 1}, got episode {ask.episode}"
            raise ServiceFault(409, "out_of_order", text)
        unknown = sorted(ask.options.keys() - self._limits.option_keys)
        if unknown:
            allowed = ", ".join(sorted(self._limits.option_keys))
            raise ServiceFault(
                422, "bad_option", f"reset takes no option {unknown[0]!r:.60}; allowed: {allowed}"
            )
        return await self._once(key, lambda: self._reset(ask, key), episodes=1)

    async def step(self, ask: TakeTurn) -> TurnResult:
        """Take a turn, once however often it is asked for.

        Raises:
            ServiceFault: If it isn't its turn, or the action is none.
        """
        episode = self._current(ask.episode)
        if (size := json_bytes(ask.action)) > (most := self._limits.max_action_bytes):
            text = f"an action may have {most} bytes as JSON, got {size}"
            raise ServiceFault(413, "action_too_large", text)
        key = ("step", episode.number, ask.turn, fingerprint(ask.action))
        if not self.busy:
            known = episode.answered(ask.turn, ask.action)
            if known is not None:
                self.touch()
                return known
            if episode.kept_bytes + size > (most := self._limits.max_episode_bytes):
                text = f"the actions of an episode may have {most} bytes as JSON; truncate it"
                raise ServiceFault(413, "episode_too_large", text)
        return await self._once(key, lambda: self._player.step(episode, ask.action))

    async def act(self, action: Any) -> TurnResult:
        """Take the next turn, after those that were asked for before.

        Raises:
            ServiceFault: If no episode is running, or the action is none.
        """
        async with self._turnstile:
            await self._work.wait()  # for somebody who numbers the turns, or has hung up
            episode = self._current(None)
            ask = TakeTurn(turn=episode.turn, action=action, episode=episode.number)
            return await self.step(ask)

    async def truncate(self, ask: CutEpisode) -> TurnResult:
        """End the running episode because of a limit outside the env.

        Raises:
            ServiceFault: If it ended otherwise, or the env can't be cut short.
        """
        episode = self._current(ask.episode)
        if not self.busy and episode.over:
            last = episode.last
            if last is not None and last.info.get("truncation_reason") == ask.reason:
                return last
            raise ServiceFault(409, "episode_over", "the episode is over; reset for another")
        if self.env is not None and self.env.agent is None:
            raise ServiceFault(
                409, "not_an_agent_env", "only an AgentEnv can be cut short; close the session"
            )
        return await self._once(
            ("truncate", episode.number, ask.reason), lambda: self._player.cut(episode, ask)
        )

    async def settled(self) -> None:
        """Wait until nothing is being done."""
        await self._work.wait()

    async def aclose(self) -> None:
        """Stop what is being done, and close the environment."""
        if not await self._work.stop(self._limits.close_timeout_s):
            self._on_stuck(None)  # an env that doesn't let itself be cancelled
        await self._player.discard()

    # --- inside -------------------------------------------------------------------------------

    async def _once(self, key: Key, work: Callable[[], Awaitable[T]], *, episodes: int = 0) -> T:
        """See `SharedWork.once`; the lease runs on from its end, and the client pays."""

        async def charged() -> T:
            async with self._charged(episodes):
                return await work()

        self.touch()
        try:
            return await self._work.once(key, charged)
        finally:
            self.touch()

    def _current(self, number: int | None) -> PlayedEpisode:
        if self._episode is None:
            raise _reset_needed()
        if number is not None and number != self._episode.number:
            raise ServiceFault(
                409,
                "out_of_order",
                f"the session is in episode {self._episode.number}, got episode {number}",
            )
        return self._episode

    async def _reset(self, ask: ResetEpisode, key: Key) -> EpisodeStart:
        self._admit()
        episode = await self._player.reset(ask, self._number + 1, on_broken=self._forget_episode)
        self._number += 1
        self._episode, self._reset_by = episode, key
        return episode.started

    def _forget_episode(self) -> None:
        self._episode = None


def _reset_needed() -> ServiceFault:
    return ServiceFault(409, "reset_needed", "no episode is running; reset first")
