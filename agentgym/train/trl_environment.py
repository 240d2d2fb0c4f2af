"""One environment in the hands of TRL's tool loop, and what that loop leaves to it.

TRL resets an instance with the columns of a dataset row, calls its methods as the policy asks, and
takes the reward from `get_reward`. It has no signal that an episode is over and no time-outs, never
closes anything, and doesn't tell an environment what the policy says in plain text. So here:

- Tools that are called after the end answer that the episode is over.
- Judging starts when the episode ends, beside the episodes that go on; `get_reward` waits for it.
- A masked episode has reward None, and so has one whose environment broke or took too long.
- What was said last in plain text is kept for the end, if somebody hands it over
  (`agentgym.train.final_messages`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

from agentgym.errors import ConfigError, TrainingError
from agentgym.rollout.limits import Limits
from agentgym.rollout.pool import EnvHandle
from agentgym.rollout.request import derived_seed
from agentgym.rollout.source import EnvSource
from agentgym.sync import run_inline, run_on_background_loop, start_on_background_loop
from agentgym.types import Message, Verdict

logger = logging.getLogger(__name__)
T = TypeVar("T")

OVER = "The episode is over. Answer without calling a tool."
"""What tools answer after the end."""
BROKEN = "Error: the environment failed. The episode is over; answer without calling a tool."


class MadeClass(type):
    """The type of the classes that TRL gets: pickled by what they were made from."""

    _made_from: tuple[Any, ...]


class TrlEnvironment(metaclass=MadeClass):
    """One environment in TRL's hands; `environment_factory` makes the classes that TRL gets.

    TRL takes every public method for a tool, so what isn't one has a name with an underscore.
    """

    _source: ClassVar[EnvSource]
    _tools: ClassVar[frozenset[str]] = frozenset()
    """The environment's own tools that are methods here."""
    _talking: ClassVar[str | None] = None
    """The tool that says something, if there is one beside the environment's own."""

    def __init__(self) -> None:
        self._open()
        self._limits = Limits()
        self._asked: list[tuple[str, dict[str, Any], asyncio.Future[str]]] = []
        self._turns = 0
        self._over = False
        self._stale = "reset was never called"
        self._fault: str | None = None
        self._verdict: Verdict | None = None
        self._judging: Future[Verdict] | None = None
        self._settling: asyncio.Task[Verdict] | None = None
        self._text: str | None = None

    def reset(self, task_id: str | None = None, seed: int | None = None, **row: Any) -> str:
        """Start the episode of a dataset row.

        Args:
            task_id: The task. The rollouts of a group share their row, and so their task.
            seed: Fixes what the environment draws; without it, that follows from the task.
            **row: The other columns. If `prompt` brings a system message, it stands in for the
                environment's own.

        Returns:
            The opening, which TRL appends to the prompt's last message.

        Raises:
            TrainingError: If the row names no task, or a seed that is none.
            UnknownTaskError: If there is no such task.
        """
        if not isinstance(task_id, str):
            raise TrainingError(
                f"the dataset needs a column task_id, a str (got {task_id!r:.60}): without one "
                "every rollout of a group would draw a task of its own; "
                "agentgym.train.task_rows makes such rows"
            )
        if self._judging is not None:
            self._judging.cancel()
        if self._fault is not None:  # nobody knows what state it is in
            self._close()
            self._open()
        self._asked, self._turns, self._over = [], 0, False
        self._stale = ""
        self._fault = self._verdict = self._judging = self._settling = self._text = None
        seed = derived_seed(0, task_id) if seed is None else _seed(seed)
        options = {"task_id": task_id, "judging": "deferred"}
        start = self._handle.reset(seed=seed, options=options)
        try:
            if self._inline:
                opening, info = run_inline(start)
            else:
                limited = asyncio.wait_for(start, self._limits.init_timeout_s)
                opening, info = run_on_background_loop(limited)
        except ConfigError:  # there is no such task
            raise
        except Exception as error:  # a user simulator that can't open the conversation, say
            self._fail(error)
            return BROKEN
        offered = {str(spec["function"]["name"]) for spec in info["tools"]}
        if missing := sorted(offered - self._tools):
            raise TrainingError(
                f"the task {task_id!r} has tools that the class was made without "
                f"({', '.join(missing)}); pass the dataset: environment_factory(env_id, dataset)"
            )
        text = _opening_text(opening, row.get("prompt"))
        if offered != self._tools:  # the prompt offers the tools of all tasks
            usable = [*sorted(offered), *filter(None, [self._talking])]
            text += f"\n\nTools of this task: {', '.join(usable) or 'none'}."
        return text

    async def get_reward(self) -> float | None:
        """The episode's reward; None if it is masked.

        Raises:
            TrainingError: If the trainer didn't reset the environment for this rollout.
        """
        if self._stale:
            raise TrainingError(
                f"the trainer did not reset the environment ({self._stale}); rollouts would run "
                "in the state of the episode before"
            )
        verdict = await self._settled()
        self._stale = "get_reward was already called"
        return verdict.reward

    # --- inside -------------------------------------------------------------------------------

    def _open(self) -> None:
        env = self._source.make()
        core: Any = env.unwrapped
        self._handle = EnvHandle(env)
        self._close = weakref.finalize(self, self._handle.close)  # TRL closes nothing
        self._inline = not (core.awaits or core.toolbox.needs_loop or not core.scoring.inline)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Do one call; those that a message makes together are one turn of the environment."""
        if self._stale:
            self._stale = "a tool was called after get_reward, without reset"
            return BROKEN
        if self._over:
            return OVER
        mine: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append((tool, arguments, mine))
        await asyncio.sleep(0)  # the calls of a message start in the same round of the loop
        if self._asked:
            asked, self._asked = self._asked, []
            calls = [(name, given) for name, given, _ in asked]
            try:
                answers = await self._turn(_calling(calls, self._turns), len(calls))
            except BaseException:
                for _, _, theirs in asked:
                    theirs.cancel()
                raise
            for (_, _, theirs), answer in zip(asked, answers, strict=True):
                theirs.set_result(answer)
        return await mine

    async def _say(self, message: str) -> str:
        """Say something in plain text, as the environment's own loop would take it."""
        if self._stale or self._over:
            return OVER
        (answer,) = await self._turn({"role": "assistant", "content": message}, 1)
        return answer

    async def _turn(self, action: Message, answers: int) -> list[str]:
        """Take one turn, and return so many answers; whatever breaks masks the episode."""
        self._turns += 1
        try:
            async with asyncio.timeout(self._limits.turn_timeout_s):
                replies, over, info = await self._on_its_loop(self._handle.step(action))
        except Exception as error:
            self._fail(error)
            return [BROKEN] * answers
        texts = [str(reply.get("content") or "") for reply in replies]
        if len(texts) != answers:  # text is answered by any number of messages
            texts = ["\n\n".join(texts)] + [""] * (answers - 1)
        if over:
            self._end(info)
            texts[-1] = f"{texts[-1]}\n\n{OVER}".lstrip()
        return texts

    def _end(self, info: Mapping[str, Any]) -> None:
        """The episode is over: start judging it."""
        self._over = True
        verdict = self._handle.scoring.verdict(info["episode_record"])
        if self._handle.scoring.inline:
            self._verdict = run_inline(verdict)
        else:
            self._judging = start_on_background_loop(
                asyncio.wait_for(verdict, self._limits.eval_timeout_s)
            )

    def _fail(self, error: BaseException) -> None:
        self._over = True
        self._fault = f"{type(error).__name__}: {error}"
        logger.warning("an episode is masked: its environment failed: %s", self._fault)

    async def _settled(self) -> Verdict:
        """The verdict, once there is one; whoever asks first has the episode ended."""
        if self._verdict is not None and self._over:
            return self._verdict
        if self._settling is None:
            self._settling = asyncio.ensure_future(self._settle())
        return await asyncio.shield(self._settling)

    async def _settle(self) -> Verdict:
        """End what is still running, and wait for the judge."""
        if not self._over and self._text is not None:
            await self._turn({"role": "assistant", "content": self._text}, 1)
        if not self._over:  # the policy stopped calling tools, or TRL's limits cut it
            try:
                self._end(await self._on_its_loop(self._handle.truncate("turns")))
            except Exception as error:
                self._fail(error)
        if self._judging is not None and self._verdict is None:
            try:
                self._verdict = await asyncio.wrap_future(self._judging)
            except TimeoutError:
                late = f"no verdict within {self._limits.eval_timeout_s:g} s"
                self._verdict = _masked("judge", late)
        if self._verdict is None:
            self._verdict = _masked("env", self._fault or "the episode left no record")
        return self._verdict

    async def _on_its_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what may wait on the loop that outlives the trainer's, where its clients belong."""
        if self._inline:
            return await work
        return await asyncio.wrap_future(start_on_background_loop(work))


def _seed(given: Any) -> int:
    """A seed as a dataset has it: maybe as a float."""
    try:
        seed = int(given)
    except (TypeError, ValueError, OverflowError):
        seed = -1
    if seed < 0 or seed != given:
        raise TrainingError(
            f"the dataset's column seed has {given!r:.60}, and a seed is a whole number from 0 on; "
            "leave the column out, and seeds follow from the tasks"
        )
    return seed


def _calling(calls: Sequence[tuple[str, dict[str, Any]]], turn: int) -> Message:
    """The assistant message that makes some calls."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{turn}_{number}",
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }
            for number, (tool, arguments) in enumerate(calls)
        ],
    }


def _opening_text(opening: Sequence[Message], prompt: Any) -> str:
    """The opening as one text; without its system message, if the row's prompt brings one."""
    has_system = isinstance(prompt, list) and any(m.get("role") == "system" for m in prompt)
    told = [m for m in opening if not (has_system and m["role"] == "system")]
    return "\n\n".join(str(message.get("content") or "") for message in told)


def _masked(failure_class: Any, reason: str) -> Verdict:
    return Verdict(failure_class=failure_class, masked=True, reward=None, reason=reason,
                   judge_failed=failure_class == "judge")  # fmt: skip
