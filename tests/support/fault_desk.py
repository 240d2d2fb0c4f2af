"""An environment with a simulator and a judge of its own, and the server behind all three roles.

Everything a faultless episode comes to is known: one question to the customer, three turns, one
verdict, reward 1.0. So whatever faults are put between shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from agentgym.client import SamplingParams
from agentgym.clients import connect
from agentgym.errors import EndpointError, JudgeError, SimulatorError
from agentgym.judge import Score
from agentgym.testing.envs import CounterEnv
from agentgym.types import Message, Task

TURNS = 3
ROLES = {"player": "policy", "customer": "simulator", "critic": "judge"}
"""The models by name, and the role that each has."""


class AskingJudge:
    """Asks its model whether the episode was good; only a plain yes or no is a verdict."""

    inline = False

    def __init__(self, client: Any) -> None:
        self.client = client

    async def score(self, episode: Any) -> Score:
        ask = [{"role": "user", "content": f"Good? {episode.task.task_id}: {episode.outcome}"}]
        try:
            reply = await self.client.complete(ask, (), SamplingParams(seed=0))
        except EndpointError as error:
            raise JudgeError(str(error)) from error
        words = {"yes": 1.0, "no": 0.0}
        if reply.message["content"] not in words:
            raise JudgeError(f"no verdict in {reply.message['content']!r}")
        return Score(total=words[reply.message["content"]], correct=True)


class RankingJudge:
    """Asks its model once for all rollouts of a task."""

    inline = False

    def __init__(self, client: Any) -> None:
        self._alone = AskingJudge(client)

    async def score_group(self, episodes: Any) -> list[Score]:
        score = await self._alone.score(episodes[0])
        return [score for _ in episodes]


class FaultDesk(CounterEnv):
    """A counter whose customer says what is wanted.

    Args:
        simulator: The customer's endpoint.
        judge: The judge's endpoint.
        ranks: Whether the rollouts of a task are judged together.
        crashes: A folder in which each task notes that its first start has crashed; None for tasks
            that don't crash.
    """

    awaits = True

    def __init__(
        self, simulator: Any, judge: Any, *, ranks: bool = False, crashes: str | None = None
    ) -> None:
        super().__init__()
        self.customer = connect(simulator, role="simulator")
        critic = (RankingJudge if ranks else AskingJudge)(connect(judge, role="judge"))
        self.scoring = self.scoring.model_copy(update={"judge": critic})
        self._needs_loop = True
        self._crashes = crashes and Path(crashes)

    async def start(self, task: Task) -> list[Message]:
        opening = await super().start(task)
        ask = [{"role": "user", "content": f"What do you want of {task.task_id}?"}]
        try:
            reply = await self.customer.complete(ask, (), SamplingParams(seed=0))
        except EndpointError as error:
            raise SimulatorError(str(error)) from error
        if self._crashes is not None:
            mark = self._crashes / task.task_id.replace("/", "-")
            if not mark.exists():
                mark.touch()
                raise RuntimeError("the desk broke down")
        return [*opening, {"role": "user", "content": reply.message["content"]}]


if "FaultDesk-v0" not in gymnasium.registry:
    gymnasium.register("FaultDesk-v0", entry_point=FaultDesk)


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """What the server says, by the model's name; the preflight's questions cost nothing."""
    messages = body["messages"]
    message: dict[str, Any] = {"role": "assistant", "content": "yes"}
    if body["model"] == "player":
        turn = sum(m["role"] == "assistant" for m in messages)
        last = turn >= TURNS - 1
        function = {"name": "submit" if last else "add", "arguments": "{}" if last else ADD_ONE}
        calls = [{"id": f"c{turn}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    tokens = sum(len(str(m.get("content"))) for m in messages)
    asked = any("counter" in str(m.get("content")) for m in messages)
    usage = {"prompt_tokens": tokens, "completion_tokens": 5} if asked else {"prompt_tokens": 0}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


ADD_ONE = '{"amount": 1}'


def roles(url: str, **fields: Any) -> str:
    """The text of a roles file with one server for all."""
    more = "".join(f"{name} = {value}\n" for name, value in fields.items())
    tables = {"policy": "player", "simulator": "customer", "judge": "critic"}
    return "".join(
        f'[{role}]\nbase_url = "{url}"\nmodel = "{model}"\n{more}'
        "prices = {input = 1.0, output = 2.0}\n"
        for role, model in tables.items()
    )
