"""The environment of a session: made, reset, stepped and cut short, each within its time.

One that breaks, or takes too long, is closed and made anew for the next episode. Who asked, and
whether the same was asked before, is the session's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym.deadline import Deadline
from agentgym.errors import ActionError, ConfigError, SimulatorError, UnknownTaskError
from agentgym.remote.session_schema import CutEpisode, ResetEpisode, Spaces, TurnResult
from agentgym.rollout.failure import Failure, is_ours, text_of
from agentgym.rollout.request import fresh_seed
from agentgym.rollout.source import EnvSource
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_env import Happened, SessionEnv
from agentgym.serve.session_episode import PlayedEpisode
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_thread import SessionThread
from agentgym.types import FailureClass

logger = logging.getLogger(__name__)


class SessionPlayer:
    """Plays one environment, an episode after the other.

    Args:
        env_id: The env's id, for the log.
        source: Gives what makes the env; it may block, and refuse.
        limits: The service's.
        on_stuck: Gets the thread of an env that was left behind in a call.
    """

    def __init__(
        self,
        env_id: str,
        source: Callable[[], EnvSource],
        limits: SessionLimits,
        *,
        on_stuck: Callable[[SessionThread | None], None],
    ) -> None:
        self._env_id = env_id
        self._find_source = source
        self._limits = limits
        self._on_stuck = on_stuck
        self.source: EnvSource | None = None
        """What makes the env, once it was asked for."""
        self.env: SessionEnv | None = None
        """None while there is none."""
        self.spaces: Spaces | None = None
        """What the last env takes and gives, if it isn't an `AgentEnv`."""
        self._drawn = False

    async def make(self) -> None:
        """Make the environment, if there is none.

        Raises:
            ServiceFault: If it can't be made.
        """
        if self.env is not None:
            return
        limit = Deadline(self._limits.make_timeout_s)
        thread = SessionThread("session-env")
        try:
            async with limit:
                self.env = await SessionEnv.make(
                    self._found_source,
                    thread,
                    max_observation_bytes=self._limits.max_observation_bytes,
                )
        except BaseException as error:
            if thread.working:
                self._on_stuck(thread)
            if is_ours(error) or isinstance(error, ServiceFault):
                raise
            if isinstance(error, ConfigError):
                raise ServiceFault(422, "bad_env", str(error)) from error
            if limit.is_over:
                text = f"the env wasn't ready within {self._limits.make_timeout_s:g} s"
                raise ServiceFault(503, "env_not_ready", text, retry_after_s=10) from error
            logger.warning("making %s failed", self._env_id, exc_info=True)
            raise _env_broke(error) from error
        self._drawn = False
        self.spaces = self.env.spaces

    async def reset(
        self, ask: ResetEpisode, number: int, *, on_broken: Callable[[], None]
    ) -> PlayedEpisode:
        """Start an episode.

        Args:
            ask: How.
            number: The episode's.
            on_broken: Called when the env turns out to be broken, before it is closed.

        Raises:
            ServiceFault: If it can't be started as asked.
        """
        await self.make()  # anew, if the last episode broke it
        env = self.env
        assert env is not None
        seed = ask.seed
        if seed is None and not self._drawn:
            seed = fresh_seed()  # so that the trace says how to repeat it
        started = time.perf_counter()
        limit = Deadline(self._limits.reset_timeout_s)
        try:
            async with limit:
                happened = await env.reset(
                    seed=seed, options=ask.options, max_turns=self._limits.max_turns
                )
            episode = PlayedEpisode(
                number, env, self._limits, seed=seed, started_s=started, happened=happened
            )
        except BaseException as error:
            if is_ours(error):
                raise
            if isinstance(error, ConfigError):  # the env is as it was
                unknown = isinstance(error, UnknownTaskError)
                code = "unknown_task" if unknown else "bad_option"
                raise ServiceFault(422, code, str(error)) from error
            on_broken()
            await self.discard()
            if limit.is_over:
                text = f"reset took more than {self._limits.reset_timeout_s:g} s"
                raise ServiceFault(503, "env_not_ready", text, retry_after_s=1) from error
            logger.warning("resetting %s failed", self._env_id, exc_info=True)
            raise _env_broke(error) from error
        self._drawn = True
        return episode

    async def step(self, episode: PlayedEpisode, action: Any) -> TurnResult:
        """Take a turn.

        Raises:
            ServiceFault: If the action is none; the turn wasn't taken.
        """
        env = self.env
        assert env is not None
        try:
            checked = env.check(action)
        except ActionError as error:
            raise _bad_action(error) from error
        return await self._bounded(
            episode,
            lambda: env.step(checked),
            lambda happened: episode.took(action, happened),
            action=action,
        )

    async def cut(self, episode: PlayedEpisode, ask: CutEpisode) -> TurnResult:
        """End an episode because of a limit outside the env."""
        env = self.env
        assert env is not None
        return await self._bounded(
            episode, lambda: env.truncate(ask.reason), episode.was_cut, action=None
        )

    async def discard(self) -> None:
        """Close the env; one that is stuck, or takes too long about it, is left behind."""
        env, self.env = self.env, None
        if env is None:
            return
        if env.stuck:
            env.abandon()
            self._on_stuck(env.thread)
            return
        try:
            async with asyncio.timeout(self._limits.close_timeout_s):
                await env.close()
        except TimeoutError:
            logger.warning("closing %s took too long; left behind", self._env_id)
            self._on_stuck(env.thread)

    def _found_source(self) -> EnvSource:
        if self.source is None:
            self.source = self._find_source()
        return self.source

    async def _bounded(
        self,
        episode: PlayedEpisode,
        work: Callable[[], Awaitable[Happened]],
        note: Callable[[Happened], Awaitable[TurnResult]],
        *,
        action: Any,
    ) -> TurnResult:
        """Have the env do something; if it breaks, the episode is over and masked."""
        limit = Deadline(self._limits.step_timeout_s)
        try:
            async with limit:
                happened = await work()
            return await note(happened)
        except ActionError as error:  # its annotations; the turn wasn't taken
            raise _bad_action(error) from error
        except BaseException as error:
            if is_ours(error):
                raise
            failure = self._failure(error, in_time=not limit.is_over)
        result = await episode.broke(action, failure)
        await self.discard()
        return result

    def _failure(self, error: BaseException, *, in_time: bool) -> Failure:
        if isinstance(error, Failure):
            return error
        if not in_time:
            return Failure("infra", "step_timeout_s passed in the middle of an env step")
        logger.warning("a step of %s failed", self._env_id, exc_info=error)
        whose: FailureClass = "simulator" if isinstance(error, SimulatorError) else "env"
        return Failure(whose, text_of(error))


def _bad_action(error: ActionError) -> ServiceFault:
    return ServiceFault(422, "bad_action", str(error))


def _env_broke(error: BaseException) -> ServiceFault:
    """What the client is told; the details, which may hold anything, are in the service's log."""
    kind = type(error).__name__
    text = str(error) if isinstance(error, Failure) else kind
    return ServiceFault(500, "env_broke", f"the environment broke: {text}")
