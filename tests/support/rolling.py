"""What the tests of the engine share: environments and judges that do as they are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from agentgym.clients import ScriptedClient
from agentgym.judge import Score
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.rollout.plan import plan_requests
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """An assistant message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


ADD, SUBMIT = call("add", amount=1), call("submit")


class Hooked(CounterEnv):
    """A counter that runs a test's coroutine functions in `start` and `step`."""

    awaits = True

    def __init__(self, *, judge: Any = None, **hooks: Callable[[Any], Any]) -> None:
        super().__init__()
        self.hooks = hooks
        self.closed = False
        if judge is not None:
            self.scoring = self.scoring.model_copy(update={"judge": judge})

    async def start(self, task: Any) -> Any:
        if "start" in self.hooks:
            await self.hooks["start"](self)
        return await super().start(task)

    async def astep(self, action: Any) -> Any:
        if "step" in self.hooks:
            await self.hooks["step"](self)
        return await super().astep(action)

    def close(self) -> None:
        self.closed = True
        super().close()


class Maker:
    """Makes hooked environments and remembers them."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters
        self.made: list[Hooked] = []

    def __call__(self) -> Hooked:
        self.made.append(Hooked(**self.parameters))
        return self.made[-1]

    @property
    def all_closed(self) -> bool:
        return all(env.closed for env in self.made)


class Judge:
    """Scores by a function of the episode, after a coroutine function of a test."""

    inline = False

    def __init__(self, hook: Any = None, total: Callable[[Any], float] = lambda _: 1.0) -> None:
        self.hook = hook
        self.total = total
        self.calls = 0

    async def score(self, episode: Any) -> Score:
        self.calls += 1
        if self.hook is not None:
            await self.hook(episode)
        return Score(total=self.total(episode))


class RankingJudge:
    """Scores by place in the group, and remembers the groups."""

    inline = False

    def __init__(self, hook: Any = None) -> None:
        self.groups: list[list[str]] = []
        self.hook = hook

    async def score_group(self, episodes: Any) -> Any:
        self.groups.append([episode.task.task_id for episode in episodes])
        if self.hook is not None:
            await self.hook()
        return [Score(total=index / 10) for index in range(len(episodes))]


async def never(*_: Any) -> None:
    """Wait forever, but let go when cancelled."""
    await asyncio.get_running_loop().create_future()


class Deaf:
    """A coroutine function that swallows every cancellation until it is let go."""

    def __init__(self) -> None:
        self.told = 0
        self.let_go = asyncio.Event()
        self.entered = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.entered.set()
        gives_up_at = asyncio.get_running_loop().time() + 60  # or a failed test's loop never closes
        while not self.let_go.is_set():
            try:
                async with asyncio.timeout_at(gives_up_at):
                    await self.let_go.wait()
            except asyncio.CancelledError:
                self.told += 1
            except TimeoutError:
                return


def groups(tasks: int, size: int, **fields: Any) -> list[EpisodeRequest]:
    """Requests for whole groups."""
    planned = plan_requests([f"counter/{n + 1}" for n in range(tasks)], samples=size)
    return [request.model_copy(update=fields) for request in planned]


def singles(count: int) -> list[EpisodeRequest]:
    """Requests for single episodes."""
    return [EpisodeRequest(seed=seed) for seed in range(count)]


async def read(engine: Engine, requests: Any, **options: Any) -> list[Trace]:
    """All traces of one run."""
    return [trace async for trace in engine.run(requests, **options)]


async def settle(turns: int = 50) -> None:
    """Let everything that can go on do so."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let others go on until something is so, and then until nothing moves."""
    async with asyncio.timeout(30):
        for _ in range(10**9):
            if condition():
                break
            await asyncio.sleep(0)
    await settle(300)


def submits(**kwargs: Any) -> ScriptedClient:
    """A policy that submits at once."""
    return ScriptedClient([SUBMIT], **kwargs)
