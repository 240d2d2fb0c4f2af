"""The environment contract: multi-turn conversations as a Gymnasium environment.

`reset` returns the task's opening messages, `step` takes one assistant message and returns what it
caused: one tool message per call, or a reply, or the end with a reward. A subclass says what its
tasks, tools and scoring are; ids, argument checking, caps, the episode record and the verdict are
done here once, so every environment treats a policy the same way.

The core is async, because tools, simulators and judges may wait on the network while thousands of
other episodes run. `step` is that same code run to completion: driven by hand where nothing can
wait (microseconds), on a background event loop where something may.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, get_args

import gymnasium
from pydantic import ValidationError

from agentgym.actions import TextCall, read_action
from agentgym.calls import cut_off_reply, run_text_calls, run_tool_calls
from agentgym.errors import (
    ActionError,
    ConfigError,
    EnvFault,
    MalformedCall,
    ResetNeeded,
    SimulatorError,
)
from agentgym.judge import GateSpec, Judge, Scoring, resolve_gates
from agentgym.metering import metered
from agentgym.running import RunningEpisode, TurnRecord
from agentgym.spaces import AssistantSpace, MessageSpace, is_message
from agentgym.sync import run_inline, run_on_background_loop
from agentgym.tools import Tool, ToolBox
from agentgym.types import (
    Action,
    Message,
    Messages,
    Task,
    TruncationReason,
    Verdict,
    in_one_line,
)

StepResult = tuple[Messages, float, bool, bool, dict[str, Any]]


class AgentEnv(gymnasium.Env[Messages, Action]):
    """A Gymnasium environment whose observations and actions are chat messages.

    A subclass calls `super().__init__` with its tools and judge, and implements `choose_task` and
    `start`; `task_ids`, `parse_text`, `reply`, `outcome`, `extra_info` and `snapshot`/`restore` as
    needed. A tool ends the episode by calling `finish`.

    An action may carry what is known of how it was made, beside `role`, `content` and `tool_calls`:
    `finish_reason`, `cut_off`, `reasoning` (or `reasoning_content`), `usage`, `policy_s`,
    `attempts`, `prompt_ids`, `completion_ids`, `logprobs`. That goes into the episode's record and
    never back into the conversation.

    Args:
        tools: A `ToolBox`, or the tools for one.
        judge: Scores finished episodes.
        max_turns: Assistant messages allowed per episode, however many calls each makes; None is
            no limit.
        gates: See `agentgym.judge.resolve_gates`.
        reward_range: Lowest and highest reward; None takes `(-1, 1)`, or a higher top where the
            judge's own scores go above 1.
        render_mode: `"ansi"` for the conversation as text, or None.

    Raises:
        ConfigError: If a parameter is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as Gymnasium has it
    supports_snapshot: ClassVar[bool] = False
    """Whether `get_state`/`set_state` work."""
    awaits: bool = False
    """Whether `start` or `reply` await anything, so that `step` needs an event loop; set it on the
    class, or on the instance before `super().__init__`."""
    option_keys: ClassVar[frozenset[str]] = frozenset({"task_id", "max_turns", "judging"})
    """Keys that `reset(options=…)` takes."""

    def __init__(
        self,
        *,
        tools: ToolBox | Iterable[Tool],
        judge: Judge,
        max_turns: int | None = None,
        gates: Iterable[GateSpec] | None = None,
        reward_range: tuple[float, float] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.render_mode = render_mode
        self.toolbox = tools if isinstance(tools, ToolBox) else ToolBox(tools)
        self.max_turns = _checked_cap(max_turns)
        bounds = {} if reward_range is None else {"reward_range": reward_range}
        try:
            self.scoring = Scoring(judge=judge, gates=resolve_gates(gates), **bounds)
        except ValidationError as error:
            raise ConfigError(in_one_line(error)) from error
        self.observation_space = MessageSpace()
        self.action_space: AssistantSpace = AssistantSpace(self.toolbox.specs)
        self._needs_loop = self.awaits or self.toolbox.needs_loop or not self.scoring.inline
        self._driven_inline = False
        self._state: RunningEpisode | None = None

    # --- what a subclass says -----------------------------------------------------------------

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Choose the task of the next episode: `options["task_id"]`, or a draw by `self.np_random`.

        Raises:
            UnknownTaskError: If there is no such task.
        """
        raise NotImplementedError(f"{type(self).__name__} must say which task comes next")

    def task_ids(self) -> Sequence[str]:
        """Every task of the env's split, in a fixed order, without repetition.

        Raises:
            ConfigError: If the env's tasks can't be listed.
        """
        raise ConfigError(f"the tasks of {type(self).__name__} can't be listed")

    async def start(self, task: Task) -> Sequence[Message]:
        """Set up a fresh episode and return its opening messages."""
        raise NotImplementedError(f"{type(self).__name__} must say how a task starts")

    def parse_text(self, text: str) -> Sequence[TextCall] | None:
        """Find calls in a message without `tool_calls`, in envs that have a text grammar.

        Returns:
            The calls, answered together by one user message; None if the text is no call.

        Raises:
            MalformedCall: If the text was meant as a call and can't be read; the env answers with
                the error's text and the turn counts as malformed.
        """
        return None

    async def reply(self, message: Message) -> Sequence[Message]:
        """Answer a message that calls nothing; by default it is the final answer.

        Raises:
            SimulatorError: If a user simulator can't answer; the episode is masked.
        """
        self.finish("answered", answer=message.get("content") or "")
        return ()

    def outcome(self) -> dict[str, Any]:
        """The env's final state, for the judge."""
        return {}

    def extra_info(self) -> dict[str, Any]:
        """More keys for `info` after `reset` and every `step`; never anything hidden."""
        return {}

    def snapshot(self) -> Any:
        """A copy of the subclass's episode state, for `get_state`."""
        raise NotImplementedError(f"{type(self).__name__} can't be snapshotted")

    def restore(self, state: Any) -> None:
        """Take back what `snapshot` gave; called with a copy that is the env's to keep."""
        raise NotImplementedError(f"{type(self).__name__} can't be snapshotted")

    @property
    def messages(self) -> Messages:
        """The conversation so far, without the turn in progress.

        Raises:
            ResetNeeded: If no episode is running.
        """
        return tuple(self._running().messages)

    @property
    def running(self) -> RunningEpisode | None:
        """The episode in progress or just over, to look at; None before `reset`, after `close`."""
        return self._state

    def use_tools(self, tools: ToolBox | Iterable[Tool]) -> None:
        """Exchange the tools, in `start`, for envs whose tasks come with tools of their own."""
        self.toolbox = tools if isinstance(tools, ToolBox) else ToolBox(tools)
        self.action_space.tools = self.toolbox.specs

    def finish(self, reason: str = "finished", *, answer: str | None = None) -> None:
        """End the episode after the current call; for tools and `reply`."""
        running = self._running()
        running.ended = reason
        running.answer = answer

    # --- Gymnasium's face ---------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Messages, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Fixes this and all following task choices.
            options: `task_id` picks a task; `max_turns` tightens this episode's cap;
                `judging="deferred"` leaves scoring to the caller: the last step's `info` then has
                `episode_record` instead of `verdict`.

        Returns:
            The opening messages, and `info` with `tools` (OpenAI list), `task_id`, `split`,
            `turns_left`.

        Raises:
            ConfigError: On unknown options.
            UnknownTaskError: If there is no such task.
        """
        result: tuple[Messages, dict[str, Any]] = self._run(self.areset(seed=seed, options=options))
        return result

    def step(self, action: Action) -> StepResult:
        """Take one assistant message.

        Returns:
            The messages it caused; the reward (0.0 until the end, and 0.0 for a masked episode);
            terminated; truncated; `info`, with `verdict` at the end.

        Raises:
            ActionError: If the action is not an assistant message.
            ResetNeeded: If no episode is running.
            EnvFault: If a tool crashed.
        """
        result: StepResult = self._run(self.astep(action))
        return result

    def render(self) -> str | None:
        """The conversation so far as text, if `render_mode` is `"ansi"`."""
        if self.render_mode != "ansi" or self._state is None:
            return None
        return "\n\n".join(_as_text(m) for m in self._state.messages)

    def close(self) -> None:
        """Forget the episode; a subclass frees what it holds and calls this."""
        self._state = None

    # --- the async core -----------------------------------------------------------------------

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Messages, dict[str, Any]]:
        """`reset`, on the caller's event loop."""
        super().reset(seed=seed)
        chosen = self._checked_options(options)
        judging = chosen.get("judging", "immediate")
        if judging not in ("immediate", "deferred"):
            raise ConfigError(f"judging must be 'immediate' or 'deferred', got {judging!r}")
        task = self.choose_task(chosen)
        self._state = running = RunningEpisode(task, deferred=judging == "deferred")
        running.max_turns = _tightest(self.max_turns, _checked_cap(chosen.get("max_turns")))
        try:
            with metered(running.meter):
                opening = _messages(await self.start(task), "start()")
        except BaseException:
            self._state = None  # half set up: nothing to step
            raise
        running.messages.extend(opening)
        return _copies(opening), self._info(running)

    async def astep(self, action: Action) -> StepResult:
        """`step`, on the caller's event loop."""
        running = self._running()
        if not self.action_space.contains(action):
            raise ActionError(
                "an action is a str or an assistant message "
                f'{{"role": "assistant", "content": …, "tool_calls": […]}}, got {action!r:.200}'
            )
        message, annotations = read_action(action)
        started = time.perf_counter()
        record = TurnRecord(message, annotations)
        try:
            with metered(running.meter):
                record.replies = _messages(await self._advance(running, record), "reply()")
        except SimulatorError as error:
            running.fail_by_simulator(error)
        except BaseException:
            running.over = True  # nobody knows how far the step got, so it can't be continued
            raise
        record.env_s = time.perf_counter() - started
        running.add(record)
        if running.at_cap:
            running.truncation_reason = "turns"
        return await self._result(running, tuple(record.replies))

    async def atruncate(self, reason: TruncationReason) -> StepResult:
        """Cut the running episode short because a limit outside the env was reached.

        Args:
            reason: Which limit: `tokens`, `context` or `time`.
        """
        running = self._running()
        if reason not in get_args(TruncationReason):
            allowed = ", ".join(get_args(TruncationReason))
            raise ConfigError(f"no truncation reason {reason!r}; allowed: {allowed}")
        running.truncation_reason = reason
        return await self._result(running, ())

    def truncate(self, reason: TruncationReason) -> StepResult:
        """`atruncate`, run to completion."""
        result: StepResult = self._run(self.atruncate(reason))
        return result

    def get_state(self) -> Any:
        """Everything needed to continue this episode from here, in this or another instance.

        Raises:
            ConfigError: If the env doesn't offer snapshots.
        """
        self._check_snapshots()
        state = (self._running(), self.snapshot(), self.np_random.bit_generator.state)
        return copy.deepcopy(state)

    def set_state(self, state: Any) -> None:
        """Continue from `get_state`'s result, which stays usable.

        Raises:
            ConfigError: If the env doesn't offer snapshots.
        """
        self._check_snapshots()
        running, own, rng = copy.deepcopy(state)
        self._state = running
        self.np_random.bit_generator.state = rng
        self.restore(own)

    # --- inside -------------------------------------------------------------------------------

    def _checked_options(self, given: Any) -> Mapping[str, Any]:
        if given is None:
            return {}
        if isinstance(given, dict | Mapping) and self.option_keys.issuperset(given):
            return given
        allowed = ", ".join(sorted(self.option_keys))
        if not isinstance(given, Mapping):
            raise ConfigError(f"options must be a dict, got {given!r:.100}; allowed: {allowed}")
        unknown = ", ".join(repr(k) for k in given if k not in self.option_keys)
        raise ConfigError(f"reset takes no option {unknown}; allowed: {allowed}")

    def _check_snapshots(self) -> None:
        if not self.supports_snapshot:
            raise ConfigError(f"{type(self).__name__} offers no snapshots (supports_snapshot)")

    def _run(self, coroutine: Any) -> Any:
        if self._needs_loop:
            return run_on_background_loop(coroutine)
        self._driven_inline = True
        try:
            return run_inline(coroutine)
        finally:
            self._driven_inline = False

    def _running(self) -> RunningEpisode:
        state = self._state
        if state is None:
            raise ResetNeeded("no episode is running: call reset() first")
        if state.over:
            raise ResetNeeded("the episode is over: call reset() before the next step")
        return state

    async def _advance(self, running: RunningEpisode, record: TurnRecord) -> Sequence[Message]:
        """Do what the message asks for, and return the messages it caused."""
        message = record.message
        on_loop = not self._driven_inline
        if message.get("tool_calls"):
            return await run_tool_calls(self.toolbox, running, record, on_loop=on_loop)
        text = message["content"]
        try:
            calls = self.parse_text(text)
        except MalformedCall as error:
            if record.cut_off:
                return (cut_off_reply(),)
            record.malformed_text = True
            return ({"role": "user", "content": str(error)},)
        if calls is not None:
            return await run_text_calls(self.toolbox, running, record, calls, on_loop=on_loop)
        if record.cut_off:
            return (cut_off_reply(),)
        return await self.reply(message)

    async def _result(self, running: RunningEpisode, replies: Messages) -> StepResult:
        terminated = running.ended is not None and running.truncation_reason is None
        truncated = running.truncation_reason is not None
        info = self._info(running)
        replies = _copies(replies)
        if not (terminated or truncated):
            return replies, 0.0, False, False, info
        running.over = True
        episode = running.freeze(
            env_id=self.spec.id if self.spec else type(self).__name__,
            tools=self.toolbox.specs,
            outcome=self.outcome(),
        )
        reward = 0.0
        if running.deferred:
            info["episode_record"] = episode
        else:
            verdict: Verdict = await self.scoring.verdict(episode)
            info["verdict"] = verdict
            reward = 0.0 if verdict.reward is None else verdict.reward
        info["termination_reason"] = episode.termination_reason
        info["truncation_reason"] = episode.truncation_reason
        return replies, reward, terminated, truncated, info

    def _info(self, running: RunningEpisode) -> dict[str, Any]:
        info = {
            "tools": list(self.toolbox.specs),
            "task_id": running.task.task_id,
            "split": running.task.split,
            "turns_left": running.turns_left,
        }
        info.update(self.extra_info())
        return info


def _checked_cap(cap: Any) -> int | None:
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise ConfigError(f"max_turns must be a whole number of at least 1, or None, got {cap!r}")
    return cap


def _tightest(*caps: int | None) -> int | None:
    given = [cap for cap in caps if cap is not None]
    return min(given) if given else None


def _messages(given: Any, source: str) -> Messages:
    """What a hook of a subclass returned, if it is messages.

    Raises:
        EnvFault: If it isn't.
    """
    found = tuple(given) if isinstance(given, list | tuple) else None
    if found is None or not all(map(is_message, found)):
        raise EnvFault(
            f"{source} must return a list or tuple of messages such as "
            f'{{"role": "user", "content": "…"}}, got {given!r:.200}'
        )
    return found


def _copies(messages: Messages) -> Messages:
    """Messages for the caller to keep and change, which the episode's record doesn't notice."""
    return tuple(message.copy() for message in messages)


def _as_text(message: Message) -> str:
    calls = "".join(
        f"\n→ {c['function']['name']}({c['function']['arguments']})"
        for c in message.get("tool_calls") or ()
    )
    return f"[{message['role']}] {message.get('content') or ''}{calls}"
