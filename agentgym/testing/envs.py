"""Small environments that behave, for tests, examples and trying things out.

They are real: nothing in them is mocked, and `check_agent_env` passes on each. They aren't
registered with Gymnasium; `gymnasium.register("mine/Counter-v0", CounterEnv)` does it where needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from agentgym.core import AgentEnv
from agentgym.errors import ToolError, UnknownTaskError
from agentgym.judge import GateSpec, Score
from agentgym.tools import Tool
from agentgym.types import Episode, Message, Task

Milliseconds = Annotated[int, Field(ge=0, le=5)]


class ReachedTarget:
    """Verifier of `CounterEnv`: 1.0 for handing in the target, less the further off it is."""

    inline = True

    async def score(self, episode: Episode) -> Score:
        """Compare the final value with the task's target."""
        value, target = episode.outcome["value"], episode.task.reference
        correct = episode.terminated and value == target
        nearness = max(0.0, 1.0 - abs(value - target) / target)
        return Score(
            total=1.0 if correct else 0.0,
            components={"reached": float(correct), "nearness": nearness},
            correct=correct,
        )


class CounterEnv(AgentEnv):
    """Bring a counter to a target number and hand it in.

    Tools: `add(amount)`, `read()`, `reset_to(value, note)` which refuses negative values, and
    `submit()`, which ends the episode. No tool waits, and episodes can be snapshotted.

    Args:
        targets: One task per number; all at least 1.
        max_turns: See `AgentEnv`.
        gates: See `AgentEnv`.
        render_mode: See `AgentEnv`.
    """

    supports_snapshot: ClassVar[bool] = True

    def __init__(
        self,
        *,
        targets: Sequence[int] = tuple(range(1, 21)),
        max_turns: int | None = 8,
        gates: Iterable[GateSpec] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.value = 0
        self._targets = {f"counter/{target}": target for target in targets}
        super().__init__(
            tools=self.make_tools(),
            judge=ReachedTarget(),
            max_turns=max_turns,
            gates=gates,
            render_mode=render_mode,
        )

    def make_tools(self) -> list[Tool]:
        """The tools of an instance."""
        functions = (self.add, self.read, self.reset_to, self.submit)
        return [Tool(function, inline=True) for function in functions]

    def task_ids(self) -> Sequence[str]:
        """One task per target."""
        return tuple(self._targets)

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """The task named in the options, or one drawn evenly."""
        task_id = options.get("task_id")
        if task_id is None:
            task_id = self.task_ids()[int(self.np_random.integers(len(self._targets)))]
        if task_id not in self._targets:
            known = ", ".join(self.task_ids()[:5])
            raise UnknownTaskError(f"no task {task_id!r}; there are {known}, …")
        return Task(task_id=task_id, split="train", reference=self._targets[task_id])

    async def start(self, task: Task) -> Sequence[Message]:
        """Set the counter to 0 and say what is wanted."""
        self.value = 0
        text = f"Bring the counter from 0 to {task.reference}, then submit."
        return (
            {"role": "system", "content": "You operate a counter."},
            {"role": "user", "content": text},
        )

    def outcome(self) -> dict[str, Any]:
        """Where the counter stands."""
        return {"value": self.value}

    def snapshot(self) -> int:
        """The counter's value."""
        return self.value

    def restore(self, state: int) -> None:
        """Take back the counter's value."""
        self.value = state

    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much; may be negative.
        """
        self.value += amount
        return f"The counter stands at {self.value}."

    def read(self) -> dict[str, int]:
        """Read the counter."""
        return {"value": self.value}

    def reset_to(self, value: int, note: str = "") -> str:
        """Set the counter to a value.

        Args:
            value: New value, not negative.
            note: Why.
        """
        if value < 0:
            raise ToolError(f"Error: the counter can't be set to {value}; use 0 or more.")
        self.value = value
        return f"The counter was set to {self.value}. {note}".strip()

    def submit(self) -> str:
        """Hand in the counter as it stands. This ends the episode."""
        self.finish("submitted")
        return f"Submitted {self.value}."


class SlowCounterEnv(CounterEnv):
    """A counter with tools that wait: `add_soon` (async) and `add_slowly` (blocking, timed out).

    Args:
        timeout_s: Longest wait for `add_slowly`, seconds.
        kwargs: See `CounterEnv`.
    """

    def __init__(self, *, timeout_s: float = 5.0, **kwargs: Any) -> None:
        self._timeout_s = timeout_s
        super().__init__(**kwargs)

    def make_tools(self) -> list[Tool]:
        """The tools of an instance."""
        slow = [Tool(self.add_soon), Tool(self.add_slowly, timeout_s=self._timeout_s)]
        return [*super().make_tools(), *slow]

    async def add_soon(self, amount: int) -> str:
        """Add to the counter, after giving way to others.

        Args:
            amount: How much.
        """
        await asyncio.sleep(0)
        return self.add(amount)

    def add_slowly(self, amount: int, milliseconds: Milliseconds = 0) -> str:
        """Add to the counter, after blocking for a while.

        Args:
            amount: How much.
            milliseconds: How long to block first.
        """
        time.sleep(milliseconds / 1000)
        return self.add(amount)


CAPITALS = {
    "Australia": "Canberra",
    "Brazil": "Brasília",
    "Canada": "Ottawa",
    "Kenya": "Nairobi",
    "Morocco": "Rabat",
    "Peru": "Lima",
    "Türkiye": "Ankara",
    "Viet Nam": "Hanoi",
}


class ExactAnswer:
    """Verifier of `QuizEnv`: 1.0 if the answer names the capital and nothing else."""

    inline = True

    async def score(self, episode: Episode) -> Score:
        """Compare the answer with the reference."""
        answer = (episode.answer or "").strip().rstrip(".").casefold()
        correct = answer == str(episode.task.reference).casefold()
        return Score(
            total=float(correct),
            components={"exact": float(correct)},
            correct=correct,
            completed=bool(answer),
        )


class QuizEnv(AgentEnv):
    """Name a country's capital: any message that calls no tool is the final answer.

    Tool: `first_letter()`, a hint. The opening message is the same for the same task; the answer is
    the task's hidden reference.

    Args:
        max_turns: See `AgentEnv`.
        gates: See `AgentEnv`.
        render_mode: See `AgentEnv`.
    """

    def __init__(
        self,
        *,
        max_turns: int | None = 4,
        gates: Iterable[GateSpec] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._capital = ""
        super().__init__(
            tools=[Tool(self.first_letter, inline=True)],
            judge=ExactAnswer(),
            max_turns=max_turns,
            gates=gates,
            render_mode=render_mode,
        )

    def task_ids(self) -> Sequence[str]:
        """One task per country."""
        return tuple(f"quiz/{country}" for country in CAPITALS)

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """The country named in the options (`quiz/Peru`), or one drawn evenly."""
        task_id = options.get("task_id")
        if task_id is None:
            task_id = self.task_ids()[int(self.np_random.integers(len(CAPITALS)))]
        country = str(task_id).removeprefix("quiz/")
        if country not in CAPITALS:
            known = ", ".join(self.task_ids())
            raise UnknownTaskError(f"no task {task_id!r}; there are {known}")
        return Task(task_id=task_id, reference=CAPITALS[country])

    async def start(self, task: Task) -> Sequence[Message]:
        """Ask."""
        self._capital = task.reference
        country = task.task_id.removeprefix("quiz/")
        text = f"What is the capital of {country}? Answer with its name only."
        return ({"role": "user", "content": text},)

    def first_letter(self) -> str:
        """Get the first letter of the answer."""
        return self._capital[0]
