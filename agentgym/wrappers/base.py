"""The base of wrappers: written once, working from plain code and from an event loop.

An agent environment has two faces, `step` and `astep`. A wrapper that overrode only one would be
silently skipped through the other, so subclasses override small hooks instead, and both faces call
them.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.threads import in_thread
from agentgym.types import TruncationReason

Step = tuple[Any, Any, bool, bool, dict[str, Any]]
"""What `step` returns, whatever the wrapper made of the observation."""


class AgentWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes what goes into and comes out of an environment, through either of its faces.

    Override `on_reset`, `after_reset`, `on_step`, `after_step` or `on_error` rather than `reset`
    and `step`. The async face uses the wrapped env's own async methods where it has them; where it
    has none, as Gymnasium's wrappers, its plain methods run in a thread, so nothing is skipped.
    As every wrapper, it is made with what it wraps, any Gymnasium environment.
    """

    # --- what a subclass says -----------------------------------------------------------------

    def on_reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Before a reset; returns the options to pass on."""
        return options

    def after_reset(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """After a reset; returns what the caller gets."""
        return observation, info

    def on_step(self, action: Any) -> Any:
        """Before a step; returns the action to pass on."""
        return action

    def after_step(self, result: Step) -> Step:
        """After a step or a truncation; returns what the caller gets."""
        return result

    def on_error(self, error: BaseException) -> None:
        """When a reset or a step raised; the error goes on to the caller."""

    # --- the plain face -----------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        options = self.on_reset(seed, options)
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except BaseException as error:
            self.on_error(error)
            raise
        return self.after_reset(observation, info)

    def step(self, action: Any) -> Step:
        """See `gymnasium.Env.step`."""
        action = self.on_step(action)
        try:
            result = self.env.step(action)
        except BaseException as error:
            self.on_error(error)
            raise
        return self.after_step(result)

    def truncate(self, reason: TruncationReason) -> Step:
        """See `AgentEnv.truncate`."""
        return self.after_step(self._inner("truncate")(reason))

    # --- the async face -----------------------------------------------------------------------

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """`reset`, on the caller's event loop."""
        options = self.on_reset(seed, options)
        inner = getattr(self.env, "areset", None)
        try:
            if inner is not None:
                observation, info = await inner(seed=seed, options=options)
            else:
                observation, info = await in_thread(
                    lambda: self.env.reset(seed=seed, options=options)
                )
        except BaseException as error:
            self.on_error(error)
            raise
        return self.after_reset(observation, info)

    async def astep(self, action: Any) -> Step:
        """`step`, on the caller's event loop."""
        action = self.on_step(action)
        inner = getattr(self.env, "astep", None)
        try:
            if inner is not None:
                result = await inner(action)
            else:
                result = await in_thread(lambda: self.env.step(action))
        except BaseException as error:
            self.on_error(error)
            raise
        return self.after_step(result)

    async def atruncate(self, reason: TruncationReason) -> Step:
        """`truncate`, on the caller's event loop."""
        return self.after_step(await self._inner("atruncate")(reason))

    def _inner(self, method: str) -> Any:
        """A method of the agent env or agent wrapper below, past Gymnasium's own wrappers."""
        try:
            return self.env.get_wrapper_attr(method)
        except AttributeError as error:
            raise ConfigError(
                f"{self.env} has no {method}(): only an AgentEnv can be cut short from outside"
            ) from error


def agent_env(env: gymnasium.Env[Any, Any], *, wrapper: str, instead: str) -> AgentEnv:
    """The `AgentEnv` underneath, for wrappers that need one.

    Args:
        env: What is being wrapped.
        wrapper: The wrapper's name, for the error.
        instead: What to use for other environments, for the error.

    Raises:
        ConfigError: If there is none.
    """
    base = env.unwrapped
    if not isinstance(base, AgentEnv):
        raise ConfigError(
            f"{wrapper} needs an agentgym AgentEnv, got {type(base).__name__}; {instead}"
        )
    return base
