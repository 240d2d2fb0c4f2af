"""An environment that runs elsewhere, as a Gymnasium environment here.

`RemoteEnv(url, "agentgym/WebShop-v0")` is used as `gym.make("agentgym/WebShop-v0")` is: the same
spaces, the same five values from `step`, the same `info["verdict"]` at the end. The service plays
each turn once, however often the network makes the client ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NoReturn

import gymnasium

from agentgym.errors import ActionError, AgentGymError, ConfigError, EnvFault, ResetNeeded
from agentgym.remote.http import TOKEN_VARIABLE, ServiceClient, ServiceError
from agentgym.remote.session_schema import Choices, EpisodeStart, SessionView, TurnResult
from agentgym.remote.spaces import from_wire, rebuilt, to_wire
from agentgym.remote.wire import strict_json
from agentgym.spaces import AssistantSpace, MessageSpace
from agentgym.sync import run_on_background_loop
from agentgym.trace import Trace
from agentgym.types import Message, Messages

logger = logging.getLogger(__name__)

_LOCAL_ERRORS: dict[str, type[AgentGymError]] = {
    "bad_action": ActionError,
    "bad_env": ConfigError,
    "bad_option": ConfigError,
    "env_broke": EnvFault,
    "episode_over": ResetNeeded,
    "reset_needed": ResetNeeded,
}
"""What the env itself would have raised, by the service's code."""
_GONE = "no_such_session"
_TAKEN = "episode_taken"
"""An earlier reset, whose answer was given up on, went through all the same."""
_CLOSE_S = 5.0


class RemoteEnv(gymnasium.Env[Any, Any]):
    """A session of a rollout service, as an environment.

    While the service is full, making one waits for a place. A session that expired while nobody
    asked for it is made again by `reset`.

    Args:
        url: The service's root, such as `http://localhost:8321`.
        env_id: The environment's id there.
        env_kwargs: Its parameters, JSON values.
        token_env: Environment variable that holds the token, if the service wants one; read now.
        deadline_s: Longest time for one call, waiting for a place included, seconds.
        render_mode: `"ansi"` for the conversation as text, or None.
        sleep: Waits for a number of seconds between two attempts.

    Raises:
        ConfigError: If the service doesn't know or doesn't allow the env or its parameters.
        ServiceError: If it can't be reached, doesn't know the token, or has no place within the
            deadline.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as Gymnasium has it

    def __init__(
        self,
        url: str,
        env_id: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        token_env: str = TOKEN_VARIABLE,
        deadline_s: float = 900.0,
        render_mode: Literal["ansi"] | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ConfigError(f"deadline_s must be a number above 0, got {deadline_s!r}")
        self.render_mode = render_mode
        self._env_id = env_id
        self._env_kwargs = _json_values(env_kwargs, "env_kwargs")
        token = os.environ.get(token_env, "").strip() or None
        client = ServiceClient(url, token=token, reconnect_s=deadline_s, sleep=sleep)
        self._lease = _Lease(client)
        self._episode = 0
        self._turn: int | None = None
        self._messages: list[Message] = []
        self._closed = False
        self._on_loss = weakref.finalize(self, self._lease.let_go)
        self._on_loss.atexit = False  # by then the lease has to do
        try:
            view = self._create()
        except BaseException:
            self.close()
            raise
        if view.spaces is None:
            self.observation_space: gymnasium.Space[Any] = MessageSpace()
            self.action_space: gymnasium.Space[Any] = AssistantSpace(view.tools)
        else:
            self.observation_space = rebuilt(view.spaces.observation)
            self.action_space = rebuilt(view.spaces.action)

    @property
    def session_id(self) -> str | None:
        """The session, for `/v1/sessions/{session_id}/mcp`."""
        return self._lease.session_id

    @property
    def messages(self) -> Messages:
        """The conversation so far, as the service has it."""
        return tuple(self._messages)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `AgentEnv.reset`.

        Raises:
            ConfigError: On unknown options.
            UnknownTaskError: If there is no such task.
            EnvFault: If the env broke, or the service is gone.
        """
        super().reset(seed=seed)
        self._check_open()
        self._turn = None
        try:
            answer = self._reset(seed, options)
        except ServiceError as error:
            if error.code == _GONE:
                self._create()
            elif error.code == _TAKEN:
                self._episode = self._ask("GET", "")["episode"]
            else:
                _raise(error)
            answer = self._reset(seed, options)
        started = EpisodeStart.model_validate(answer)
        self._episode, self._turn = started.episode, 0
        self._take_tools(started.tools, started.choices)
        observation = self._observed(started.observation)
        self._messages = list(observation) if isinstance(self.action_space, AssistantSpace) else []
        info = {**started.info, "tools": list(started.tools)}
        return observation, self._marked(info, cut=started.observation_truncated)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one turn; see `AgentEnv.step`.

        Returns:
            What it caused; the reward, 0.0 for an episode without a score, whose
            `info["masked"]` and `info["verdict"].masked` say so; terminated; truncated; info.

        Raises:
            ActionError: If the action is none.
            ResetNeeded: If no episode is running.
            EnvFault: If the session or the service is gone.
        """
        turn = self._running()
        body = {"turn": turn, "episode": self._episode, "action": self._sent(action)}
        return self._took(self._play("step", body))

    def truncate(
        self, reason: Literal["tokens", "context", "time"]
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Cut the episode short because of a limit of yours; see `AgentEnv.truncate`."""
        self._running()
        return self._took(self._play("truncate", {"reason": reason, "episode": self._episode}))

    def trace(self) -> Trace:
        """The finished episode's record.

        Raises:
            ResetNeeded: If no episode is over.
        """
        self._check_open()
        try:
            return Trace.model_validate(self._ask("GET", "/trace"))
        except ServiceError as error:
            _raise(error)

    def render(self) -> str | None:
        """The conversation so far as text, if `render_mode` is `"ansi"`."""
        if self.render_mode != "ansi" or not self._messages:
            return None
        return "\n\n".join(f"[{m['role']}] {m.get('content') or ''}" for m in self._messages)

    def close(self) -> None:
        """Close the session and free its slot; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._on_loss.detach()
        run_on_background_loop(self._lease.aclose())

    # --- inside -------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask about the session."""
        return run_on_background_loop(self._lease.ask(method, path, body))

    def _create(self) -> SessionView:
        body = {"env": self._env_id, "env_kwargs": self._env_kwargs, "key": uuid.uuid4().hex}
        try:
            view: SessionView = run_on_background_loop(self._lease.begin(body))
        except ServiceError as error:
            _raise(error)
        self._episode = 0
        return view

    def _reset(self, seed: int | None, options: Mapping[str, Any] | None) -> Any:
        asked = _json_values(options, "options")
        body = {"seed": seed, "options": asked, "episode": self._episode + 1}
        return self._ask("POST", "/reset", body)

    def _play(self, what: str, body: Mapping[str, Any]) -> TurnResult:
        try:
            return TurnResult.model_validate(self._ask("POST", f"/{what}", body))
        except ServiceError as error:
            if error.code == _GONE:
                self._turn = None
                raise EnvFault("the session expired in the middle of an episode") from error
            _raise(error)

    def _took(self, result: TurnResult) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._turn = None if result.over else result.turn
        self._take_tools(result.tools, result.choices)
        observation = self._observed(result.observation)
        if isinstance(self.action_space, AssistantSpace):
            self._messages += [] if result.message is None else [result.message]
            self._messages += observation or ()
            info = {**result.info, "tools": list(self.action_space.tools)}
        else:
            info = dict(result.info)
        if result.over:
            info["masked"] = result.masked
            info["failure_class"] = result.failure_class
            if result.verdict is not None:
                info["verdict"] = result.verdict
        reward = 0.0 if result.reward is None else result.reward
        info = self._marked(info, cut=result.observation_truncated)
        return observation, reward, result.terminated, result.truncated, info

    @staticmethod
    def _marked(info: dict[str, Any], *, cut: bool) -> dict[str, Any]:
        return {**info, "observation_truncated": True} if cut else info

    def _take_tools(self, tools: Any, choices: tuple[Choices, ...]) -> None:
        space = self.action_space
        if isinstance(space, AssistantSpace):
            space.tools = space.tools if tools is None else tuple(tools)
            space.choices = {(c.tool, c.parameter): c.values for c in choices}

    def _observed(self, observation: Any) -> Any:
        if isinstance(self.observation_space, MessageSpace):
            return tuple(observation)
        if observation is None:
            raise EnvFault("the env broke; its episode has no score")
        return from_wire(self.observation_space, observation)

    def _sent(self, action: Any) -> Any:
        if isinstance(self.action_space, AssistantSpace):
            if not self.action_space.contains(action):
                raise ActionError(
                    f"an action is a text or an assistant message, got {action!r:.200}"
                )
            return action if isinstance(action, str) else strict_json(action)
        return to_wire(self.action_space, action)

    def _running(self) -> int:
        self._check_open()
        if self._turn is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._turn

    def _check_open(self) -> None:
        if self._closed:
            raise ResetNeeded("the env was closed")


class _Lease:
    """A session, kept alive however long the policy thinks; it lives on the background loop.

    Args:
        client: Asks the service.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heart: asyncio.Task[None] | None = None
        self.session_id: str | None = None

    async def begin(self, ask: Mapping[str, Any]) -> SessionView:
        """Make a session, and keep it alive from now on."""
        self._loop = asyncio.get_running_loop()
        self._stop_heart()
        view = SessionView.model_validate(await self._client.ask("POST", "/sessions", body=ask))
        self.session_id = view.session_id
        self._heart = self._loop.create_task(self._beat(view.expires_in_s / 3))
        return view

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Ask about the session."""
        return await self._client.ask(method, f"/sessions/{self.session_id}{path}", body=body)

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            with contextlib.suppress(AgentGymError):  # gone, or out of reach: the next turn tells
                await self.ask("POST", "/keepalive", None)

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    async def aclose(self) -> None:
        """Close the session, as well as that goes, and the connection."""
        self._stop_heart()
        try:
            if self.session_id is not None:
                path = f"/sessions/{self.session_id}"
                await self._client.ask("DELETE", path, reconnect_s=_CLOSE_S)
        except ServiceError as error:
            if error.code != _GONE:
                logger.warning("the session is left to expire: %s", error)
        finally:
            await self._client.aclose()

    def let_go(self) -> None:
        """Stop the signs of life of an env that nobody has any more; from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            self.session_id = None
            loop.call_soon_threadsafe(lambda: loop.create_task(self.aclose()))


def _json_values(given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """A copy of what is to be sent.

    Raises:
        ConfigError: If JSON can't hold it.
    """
    values = dict(given or {})
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} of a remote env must be JSON values: {error}") from error
    return values


def _raise(error: ServiceError) -> NoReturn:
    """Raise what the env itself would have raised."""
    local = _LOCAL_ERRORS.get(error.code)
    if local is None:
        raise error
    raise local(str(error)) from error
