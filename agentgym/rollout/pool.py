"""Environments in use, and those waiting to be used again.

Making an environment may cost seconds (data, containers); resetting one clears everything. So they
are kept and reused, one episode at a time, and thrown away after anything went wrong in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from agentgym.core import AgentEnv
from agentgym.deadline import queued
from agentgym.errors import ConfigError, EnvFault
from agentgym.judge import Scoring
from agentgym.judges.rescore import task_again
from agentgym.rollout.failure import Failure
from agentgym.rollout.source import EnvSource
from agentgym.threads import in_thread
from agentgym.trace import Trace
from agentgym.types import Action, Episode, Message, Task, TruncationReason

logger = logging.getLogger(__name__)

_ASYNC_FACE = ("areset", "astep", "atruncate")


class EnvHandle:
    """One environment, behind an async face whatever it is wrapped in.

    Where every wrapper offers the async methods they are awaited, so episodes share the loop.
    Otherwise the plain ones run in a thread. The two checkers that `gymnasium.make` puts around
    everything are taken out wherever they are: an `AgentEnv` checks the same itself.

    Raises:
        ConfigError: If it is no `AgentEnv` inside.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        core = env.unwrapped
        if not isinstance(core, AgentEnv):
            raise ConfigError(
                f"the engine plays agentgym.AgentEnv environments, got {type(core).__name__}"
            )
        self._env: Any = _without_checkers(env)
        self._core = core
        self._closed = False
        self.is_async = all(
            hasattr(layer, name) for layer in _layers(self._env) for name in _ASYNC_FACE
        )

    @property
    def scoring(self) -> Scoring:
        """The env's scoring, which outlives the env."""
        return self._core.scoring

    @property
    def env_id(self) -> str:
        """What the env is called in its episodes' records."""
        spec = self._core.spec
        return spec.id if spec else type(self._core).__name__

    def task_again(self, trace: Trace) -> Task:
        """The task of an episode that was played in another environment like this one.

        Raises:
            DataError: If this one has it no more, or made from other data.
        """
        return task_again(self._core, trace)

    def spoken(self) -> Message:
        """The assistant message of the last turn, as it stands in the conversation.

        Raises:
            EnvFault: If there is none.
        """
        for message in reversed(self._core.messages):
            if message["role"] == "assistant":
                return message
        raise EnvFault("step() did not record the action: the conversation has no answer in it")

    async def reset(
        self, *, seed: int, options: dict[str, Any]
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """Start an episode.

        Raises:
            EnvFault: If the env returns something else than messages and `info`.
        """
        if self.is_async:
            result = await self._env.areset(seed=seed, options=options)
        else:
            result = await in_thread(lambda: self._env.reset(seed=seed, options=options))
        messages, info = _parts(result, "reset", "messages, info")
        return _messages(messages, "reset"), _info(info, "reset")

    async def step(self, action: Action) -> tuple[tuple[Message, ...], bool, dict[str, Any]]:
        """Take a turn.

        Returns:
            The new messages, whether the episode is over, and `info`.

        Raises:
            EnvFault: If the env returns something else than Gymnasium's five.
        """
        if self.is_async:
            step = await self._env.astep(action)
        else:
            step = await in_thread(lambda: self._env.step(action))
        five = "messages, reward, terminated, truncated, info"
        messages, _, terminated, truncated, info = _parts(step, "step", five)
        return _messages(messages, "step"), bool(terminated or truncated), _info(info, "step")

    async def truncate(self, reason: TruncationReason) -> dict[str, Any]:
        """Cut the episode short, and return `info`."""
        if self.is_async:
            step = await self._env.atruncate(reason)
        else:
            truncate = self._env.get_wrapper_attr("truncate")  # the outermost that has one
            step = await in_thread(lambda: truncate(reason))
        return cast("dict[str, Any]", step[4])

    def remains(self, failure: Failure, messages: Sequence[Message]) -> Episode | None:
        """The record of an episode that broke in the middle of a step, without that turn.

        Args:
            failure: What broke it.
            messages: The conversation, the message that was being answered included.
        """
        running = self._core.running
        if running is None:
            return None
        running.fail(failure.failure_class, str(failure))
        episode = running.freeze(
            env_id=self.env_id,
            tools=self._core.toolbox.specs,
            outcome={},
        )
        return episode.model_copy(update={"messages": tuple(messages)})

    def close(self) -> None:
        """Close the env, once; an error in it is logged, since nothing depends on it any more.

        It may block, and is no coroutine: it belongs into a thread.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._env.close()
        except BaseException:  # the thread is this call's own: whatever comes is the env's
            logger.warning("closing %s failed", self._core, exc_info=True)


class EnvPool:
    """The environments of one engine on one event loop.

    Args:
        source: Makes them.
        close_timeout_s: Longest wait for one to close.
    """

    def __init__(self, source: EnvSource, *, close_timeout_s: float = 10.0) -> None:
        self._source = source
        self._close_timeout_s = close_timeout_s
        self._idle: list[EnvHandle] = []
        self._late: set[asyncio.Future[None]] = set()
        """Done when an environment that is being made is closed, if nobody takes it."""
        self._first = asyncio.Lock()
        self._first_alone = True
        self._made = 0
        self._closed = False

    @property
    def spec_json(self) -> str:
        """The environments' spec."""
        return self._source.spec_json

    @property
    def made(self) -> int:
        """Environments made so far."""
        return self._made

    async def acquire(self) -> EnvHandle:
        """An idle environment, or a new one.

        Raises:
            ConfigError: If it can't be made as configured.
        """
        if self._first_alone:  # it loads what the others share
            with queued():
                await self._first.acquire()
            try:
                if self._first_alone:
                    return await self._make()
            except asyncio.CancelledError:  # took too long: the others need not wait in line
                self._first_alone = False
                raise
            finally:
                self._first.release()
        return self._idle.pop() if self._idle else await self._make()

    async def _make(self) -> EnvHandle:
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        gone.add_done_callback(self._late.discard)

        def make() -> gymnasium.Env[Any, Any]:
            try:
                return self._source.make()
            except BaseException:
                _tell(loop, gone)
                raise

        def close_late(env: gymnasium.Env[Any, Any]) -> None:
            _close_late(env)
            _tell(loop, gone)

        env = await in_thread(make, unwanted=close_late, begun=lambda: self._late.add(gone))
        self._late.discard(gone)
        self._made += 1
        self._first_alone = False
        return EnvHandle(env)

    async def release(self, handle: EnvHandle) -> None:
        """Give an environment back for the next episode."""
        if self._closed:
            await self.discard(handle)
        else:
            self._idle.append(handle)

    async def discard(self, handle: EnvHandle) -> None:
        """Close an environment; one that takes too long about it is left behind."""
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await in_thread(handle.close)
        except TimeoutError:
            logger.warning("an env's close() took over %g s; left behind", self._close_timeout_s)
        except EnvFault as error:
            logger.warning("an env is left open: %s", error)

    async def aclose(self) -> None:
        """Close all idle environments, and those in use once they come back.

        Those that are still being made, for episodes that were cancelled, are waited for as long
        as closing may take.
        """
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self.discard(handle) for handle in idle))
        here = asyncio.get_running_loop()
        if late := [gone for gone in self._late if gone.get_loop() is here]:
            await asyncio.wait(late, timeout=self._close_timeout_s)


def _parts(result: Any, method: str, names: str) -> tuple[Any, ...]:
    """What a method of an env returned, if it is a tuple of so many."""
    if isinstance(result, tuple) and len(result) == len(names.split(", ")):
        return result
    raise EnvFault(f"{method}() must return ({names}), got {result!r:.200}")


def _messages(messages: Any, method: str) -> tuple[Message, ...]:
    if isinstance(messages, list | tuple) and all(isinstance(m, dict) for m in messages):
        return tuple(messages)
    raise EnvFault(
        f"{method}() must return a list or tuple of messages first, got {messages!r:.200}; "
        "does a wrapper make something else of them?"
    )


def _info(info: Any, method: str) -> dict[str, Any]:
    if isinstance(info, dict):
        return info
    raise EnvFault(f"{method}() must return info as a dict, got {info!r:.200}")


def _without_checkers(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_checkers(env.env)
    return env


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The env's wrappers, the outermost first, and the env."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def _tell(loop: asyncio.AbstractEventLoop, gone: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(gone.set_result, None)


def _close_late(env: gymnasium.Env[Any, Any]) -> None:
    """Close an environment that was ready only after its episode had been given up."""
    try:
        env.close()
    except BaseException:
        logger.warning("closing %s failed", env, exc_info=True)
