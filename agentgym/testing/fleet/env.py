"""The environment of a simulated fleet: a tool that takes its time, and a judge that may."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.core import AgentEnv
from agentgym.errors import UnknownTaskError
from agentgym.judge import Score
from agentgym.testing.fleet.workload import Workload
from agentgym.tools import Tool
from agentgym.types import Episode, Message, Task


class WorkloadJudge:
    """Says whether the policy answered, after as long as the workload has judging take.

    Args:
        workload: How long that is.
        speed: Virtual seconds per second.
    """

    def __init__(self, workload: Workload, speed: float) -> None:
        self.inline = workload.judge_median_s == 0
        self._workload = workload
        self._speed = speed

    async def score(self, episode: Episode) -> Score:
        """Score one episode."""
        if not self.inline:
            number = number_of(episode.task.task_id)
            await asyncio.sleep(self._workload.judge_s(number) / self._speed)
        return Score(total=float(episode.terminated), correct=episode.terminated)


class WorkloadEnv(AgentEnv):
    """Plays a `Workload`: `look_up(query)` waits as long as the turn says; any text ends it.

    Args:
        workload: The same as the fleet's.
        speed: Virtual seconds per second, the same as the fleet's.
        tasks: How many there are: `workload/0` and so on, one for each episode of the workload.
        max_turns: See `AgentEnv`.
    """

    def __init__(
        self,
        *,
        workload: Workload | Mapping[str, Any] | None = None,
        speed: float = 1.0,
        tasks: int = 1024,
        max_turns: int | None = None,
    ) -> None:
        if not isinstance(workload, Workload):
            workload = Workload(**(workload or {}))
        self._workload = workload
        self._speed = speed
        self._tasks = tasks
        self._number = 0
        self._turn = 0
        super().__init__(
            tools=[Tool(self.look_up)],
            judge=WorkloadJudge(workload, speed),
            max_turns=max_turns,
        )

    def task_ids(self) -> Sequence[str]:
        """One per episode of the workload."""
        return tuple(f"workload/{number}" for number in range(self._tasks))

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """The task named in the options, or one drawn evenly."""
        task_id = options.get("task_id")
        if task_id is None:
            task_id = f"workload/{int(self.np_random.integers(self._tasks))}"
        number = str(task_id).removeprefix("workload/")
        if not number.isdecimal() or int(number) >= self._tasks:
            raise UnknownTaskError(
                f"no task {task_id!r}; there are workload/0 to workload/{self._tasks - 1}"
            )
        return Task(task_id=task_id, split="train")

    async def start(self, task: Task) -> Sequence[Message]:
        """Open the episode."""
        self._number, self._turn = number_of(task.task_id), 0
        return self._workload.opening(self._number)

    async def look_up(self, query: str) -> str:
        """Look something up.

        Args:
            query: What.
        """
        turn, self._turn = self._turn, self._turn + 1
        await asyncio.sleep(self._workload.turn(self._number, turn).tool_s / self._speed)
        return self._workload.observation(self._number, turn)


def number_of(task_id: str) -> int:
    """The workload's episode that a task stands for."""
    return int(task_id.removeprefix("workload/"))
