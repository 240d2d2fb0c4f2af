"""One environment of a session, behind one async face whatever it is.

An `AgentEnv` runs on the event loop, beside all others. Anything else (an env of another package, a
wrapper that knows no async) is made, stepped and closed by one thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from agentgym.core import AgentEnv
from agentgym.errors import ActionError, MalformedCall
from agentgym.judge import Scoring
from agentgym.remote.session_schema import Spaces
from agentgym.remote.spaces import described, from_wire, to_wire
from agentgym.rollout.failure import Failure
from agentgym.rollout.source import EnvSource
from agentgym.serve.session_thread import SessionThread
from agentgym.serve.session_view import json_bytes, least_bytes
from agentgym.spaces import AssistantSpace
from agentgym.threads import in_thread
from agentgym.types import Episode, Message, ToolSpec, TruncationReason

logger = logging.getLogger(__name__)

_ASYNC_FACE = ("areset", "astep", "atruncate")


@dataclass(frozen=True)
class Happened:
    """What a reset or a step returned."""

    observation: Any
    """Messages; of an env that isn't an `AgentEnv`, a JSON value of its observation space."""
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the episode ended."""
        return self.terminated or self.truncated


class SessionEnv:
    """One environment, made by `SessionEnv.make`."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], thread: SessionThread, max_observation_bytes: int
    ) -> None:
        while isinstance(env, OrderEnforcing | PassiveEnvChecker):  # the session checks both itself
            env = env.env
        self._env: Any = env
        core = env.unwrapped
        self.agent: AgentEnv | None = core if isinstance(core, AgentEnv) else None
        self._thread: SessionThread | None = thread
        self._max_observation_bytes = max_observation_bytes
        self.spaces: Spaces | None = None
        """What it takes and gives, of an env that isn't an `AgentEnv`."""
        if self.agent is not None and all(hasattr(env, name) for name in _ASYNC_FACE):
            self._thread = None
            thread.stop()

    @classmethod
    async def make(
        cls, source: Callable[[], EnvSource], thread: SessionThread, *, max_observation_bytes: int
    ) -> SessionEnv:
        """Make an environment, in the thread that will step it.

        One that is ready only after the caller has given up is closed by its thread.

        Args:
            source: Gives what makes it; it may block.
            thread: Made for it.
            max_observation_bytes: Of an env that isn't an `AgentEnv`, the most that an observation
                may have as JSON.

        Raises:
            ConfigError: If it can't be made as configured.
        """
        made: list[gymnasium.Env[Any, Any]] = []
        try:
            await thread.run(lambda: made.append(source().make()))
            found = cls(made[0], thread, max_observation_bytes)
            if found.agent is None:
                found.spaces = await thread.run(found._described)
            return found
        except BaseException:
            # An env that is made, or still being made; one that was refused leaves nothing to do.
            thread.stop((lambda: _all_closed(made)) if made or thread.working else None)
            raise

    @property
    def thread(self) -> SessionThread | None:
        """Its thread; None on the event loop."""
        return self._thread

    @property
    def stuck(self) -> bool:
        """Whether its thread is in a call."""
        return self._thread is not None and self._thread.working

    @property
    def scoring(self) -> Scoring | None:
        """How its episodes are judged; None where the env's own reward is all there is."""
        return None if self.agent is None else self.agent.scoring

    @property
    def tools(self) -> list[ToolSpec]:
        """The OpenAI tool list as it stands."""
        return [] if self.agent is None else list(self.agent.toolbox.specs)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Values to sample from where the env knows better than the schema."""
        space = None if self.agent is None else self.agent.action_space
        if not isinstance(space, AssistantSpace):
            return []
        return [
            {"tool": tool, "parameter": parameter, "values": list(values)}
            for (tool, parameter), values in space.choices.items()
        ]

    def _described(self) -> Spaces:
        return Spaces(
            observation=described(self._env.observation_space),
            action=described(self._env.action_space),
        )

    @property
    def hears_text(self) -> str | None:
        """What a message without calls is: `answer`, `talk` (to a user), or None (an action).

        An env with a text grammar of its own refuses prose, or reads it as an action.
        """
        if self.agent is None:
            return None
        try:
            if self.agent.parse_text("I have finished.") is not None:
                return None
        except MalformedCall:
            return None
        return "answer" if type(self.agent).reply is AgentEnv.reply else "talk"

    def check(self, action: Any) -> Any:
        """An action off the wire, as the env takes it.

        Raises:
            ActionError: If it is none.
        """
        if self.agent is None:
            space = self._env.action_space
            try:
                action = from_wire(space, action)
                fits = space.contains(action)
            except Exception as error:  # whatever a space's reader stumbles over
                raise ActionError(f"no action of {space}: {error}") from error
            if not fits:
                raise ActionError(f"no action of {space}: got {action!r:.200}")
        elif not self.agent.action_space.contains(action):
            raise ActionError(
                'an action is a text or an assistant message {"role": "assistant", "content": …, '
                f'"tool_calls": […]}}, got {action!r:.200}'
            )
        return action

    async def reset(
        self, *, seed: int | None, options: Mapping[str, Any], max_turns: int
    ) -> Happened:
        """Start an episode; an `AgentEnv` leaves judging to the session.

        Args:
            seed: As for `gymnasium.Env.reset`.
            options: The client's.
            max_turns: The most that an `AgentEnv` may allow, whatever the options say.
        """
        given: dict[str, Any] | None = dict(options) or None
        if self.agent is not None:
            asked = options.get("max_turns")
            if asked is None or (isinstance(asked, int) and asked > max_turns):
                asked = max_turns  # what is no number, or too small, is refused by the env
            given = {**options, "judging": "deferred", "max_turns": asked}
        if self._thread is None:
            return self._began(await self._env.areset(seed=seed, options=given))
        return await self._thread.run(
            lambda: self._began(self._env.reset(seed=seed, options=given))
        )

    async def step(self, action: Any) -> Happened:
        """Take a turn."""
        if self._thread is None:
            return self._happened(await self._env.astep(action))
        return await self._thread.run(lambda: self._happened(self._env.step(action)))

    async def truncate(self, reason: TruncationReason) -> Happened:
        """Cut the episode short; only an `AgentEnv` can be."""
        agent = self.agent
        assert agent is not None
        if self._thread is None:
            return self._happened(await self._env.atruncate(reason))
        return await self._thread.run(lambda: self._happened(agent.truncate(reason)))

    def _began(self, reset: tuple[Any, dict[str, Any]]) -> Happened:
        observation, info = reset
        return Happened(self._json(observation), info=info)

    def _happened(self, step: tuple[Any, Any, bool, bool, dict[str, Any]]) -> Happened:
        observation, reward, terminated, truncated, info = step
        return Happened(self._json(observation), reward, bool(terminated), bool(truncated), info)

    def _json(self, observation: Any) -> Any:
        """An observation as JSON, made in the env's thread: a large one would hold up the loop.

        Raises:
            Failure: If it is too large and no text, so that nothing can be left out of it.
        """
        if self.agent is not None:
            return observation
        self._check_size(least_bytes(observation))
        public = to_wire(self._env.observation_space, observation)
        self._check_size(json_bytes(public))
        return public

    def _check_size(self, size: int) -> None:
        if size > (limit := self._max_observation_bytes):
            text = f"an observation of at least {size} bytes; max_observation_bytes is {limit}"
            raise Failure("env", text)

    def spoken(self) -> Message | None:
        """The assistant message of the last turn, as it stands in the conversation."""
        running = None if self.agent is None else self.agent.running
        return running.records[-1].message if running is not None and running.records else None

    def failed_calls(self) -> list[str]:
        """Ids of the last turn's calls that were answered with an error."""
        running = None if self.agent is None else self.agent.running
        if running is None or not running.records:
            return []
        return [call.id for call in running.records[-1].calls if call.status != "ok"]

    def remains(self, failure: Failure, messages: Sequence[Message]) -> Episode | None:
        """The record of an episode that broke in the middle of a step, without that turn."""
        running = None if self.agent is None else self.agent.running
        if running is None or self.agent is None:
            return None
        running.fail(failure.failure_class, str(failure))
        spec = self.agent.spec
        episode = running.freeze(
            env_id=spec.id if spec else type(self.agent).__name__,
            tools=self.agent.toolbox.specs,
            outcome={},
        )
        return episode.model_copy(update={"messages": tuple(messages)})

    async def close(self) -> None:
        """Close the env, in its own thread; errors in it are logged."""
        if self._thread is None:
            await in_thread(lambda: _closed(self._env))
            return
        thread, env = self._thread, self._env
        try:
            await thread.run(lambda: _closed(env))
        finally:
            thread.stop()

    def abandon(self) -> None:
        """Leave the env to its thread, which closes it should its call ever return."""
        if self._thread is not None:
            self._thread.stop(lambda: _closed(self._env))


def _closed(env: gymnasium.Env[Any, Any]) -> None:
    try:
        env.close()
    except BaseException:  # the thread is this call's own: whatever comes is the env's
        logger.warning("closing %s failed", env, exc_info=True)


def _all_closed(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    for env in envs:
        _closed(env)
