"""Environments that misbehave in every way a session must survive, and a service around them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from agentgym.core import AgentEnv
from agentgym.errors import SimulatorError
from agentgym.judge import Score
from agentgym.remote.session_schema import CreateSession, ResetEpisode
from agentgym.serve.access import Caller, Quota, Tokens
from agentgym.serve.faults import ServiceFault, render_faults
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.session_routes import session_router
from agentgym.serve.sessions import Sessions
from agentgym.testing.envs import CounterEnv, QuizEnv, SlowCounterEnv
from agentgym.types import Task

ME = Caller("me")
YOU = Caller("you")


class Clock:
    """Seconds that go on when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Proud:
    """A judge whose remark gives the reference away."""

    inline = True

    async def score(self, episode):
        return Score(total=1.0, correct=True, reason=f"it was {episode.task.reference}")


class StageEnv(AgentEnv):
    """Tools that succeed, crash, hang and say too much; what was done is counted."""

    made: ClassVar[list] = []
    closed: ClassVar[list] = []
    done: ClassVar[list] = []
    gone = threading.Event()

    def __init__(self, *, opens=True, bulk=0, judge=None):
        self._opens, self._bulk = opens, bulk
        self.gate = asyncio.Event()
        quick = (self.note, self.shout, self.crash)
        tools = (*quick, self.hang, self.cling, self.lose_user, self.wait_at_gate)
        StageEnv.made.append(self)
        super().__init__(tools=tools, judge=judge or Proud(), max_turns=20)

    def choose_task(self, options):
        return Task(task_id="stage/1", reference="SECRET-REFERENCE", metadata={"public": 1})

    async def start(self, task):
        if not self._opens:
            raise SimulatorError("nobody is there")
        return ({"role": "user", "content": "Play." + "x" * self._bulk},)

    def extra_info(self):
        return {"goal": "SECRET-GOAL", "available_actions": {"nan": float("nan")}}

    def note(self, text: str) -> str:
        """Take a note."""
        StageEnv.done.append(text)
        return f"noted {text}"

    def shout(self, size: int) -> str:
        """Say a lot."""
        return "ü" * size

    def crash(self) -> str:
        """Break."""
        raise RuntimeError("SECRET-TRACEBACK")

    async def hang(self) -> str:
        """Never come back."""
        await asyncio.Event().wait()

    async def lose_user(self) -> str:
        """Lose the simulator."""
        raise SimulatorError("SECRET-SIMULATOR")

    async def cling(self) -> str:
        """Not be stopped by anything but the gate."""
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()
        return "let go"

    async def wait_at_gate(self, text: str) -> str:
        """Wait until the gate is opened."""
        StageEnv.done.append(text)
        await self.gate.wait()
        return "through"

    def close(self):
        StageEnv.closed.append(self)
        StageEnv.gone.set()
        super().close()


class TalkEnv(QuizEnv):
    """A user answers what is said."""

    async def reply(self, message):
        if "bye" in message["content"]:
            self.finish("user_done")
            return ({"role": "user", "content": "Bye!"},)
        return ({"role": "user", "content": f"You said {message['content']}."},)


class Affine(gymnasium.Env):
    """An env of another package that belongs to the thread it was made in."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)
    closed: ClassVar[list] = []
    block = threading.Event()

    def __init__(self, nan_at=None, length=3):
        self._thread = threading.get_ident()
        self._nan_at, self._length = nan_at, length
        self._steps = 0

    def _check(self):
        assert threading.get_ident() == self._thread, "another thread"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._check()
        self._steps = 0
        return np.array([0, np.inf], np.float32), {"hidden": "SECRET-HIDDEN"}

    def step(self, action):
        self._check()
        if action == 4:
            Affine.block.wait()
        if action == 3:
            raise RuntimeError("broken")
        self._steps += 1
        reward = float("nan") if self._steps == self._nan_at else float(action)
        over = self._steps == self._length
        return np.array([self._steps, 1], np.float32), reward, over, False, {}

    def close(self):
        Affine.closed.append(threading.get_ident() == self._thread)


class Picture(gymnasium.Env):
    """Shows what is far too large to be sent."""

    observation_space = gymnasium.spaces.Box(0, 255, (4096, 4096, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((4096, 4096, 3), np.uint8), {}


class ThreadedStage(gymnasium.Wrapper):
    """A wrapper without an async face."""


ENVS = {
    "stage/Stage-v0": StageEnv,
    "stage/Counter-v0": CounterEnv,
    "stage/SlowCounter-v0": SlowCounterEnv,
    "stage/Quiz-v0": QuizEnv,
    "stage/Talk-v0": TalkEnv,
    "stage/Affine-v0": Affine,
    "stage/Picture-v0": Picture,
    "stage/Threaded-v0": lambda **kwargs: ThreadedStage(StageEnv(**kwargs)),
}


def register():
    """Register the envs, once."""
    for env_id, entry in ENVS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry)


def call(name, call_id="c", **arguments):
    """An assistant message with one call."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def app_of(sessions: Sessions, tokens: Tokens | None = None) -> FastAPI:
    """The sessions' part of the service."""
    app = FastAPI()
    render_faults(app)
    known = tokens or Tokens({})

    @app.middleware("http")
    async def who(request, respond):
        try:
            request.state.caller = known.caller(request.headers.get("authorization"))
        except ServiceFault as fault:
            return fault.response()
        return await respond(request)

    @app.post("/reap")
    async def reap():
        return await sessions.reap()

    app.include_router(session_router(sessions))
    return app


@contextlib.contextmanager
def served(app: FastAPI):
    """A real server on a free port, in a thread; yields its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def quota(most):
    """A caller who may have so many sessions."""
    return Caller("small", Quota(sessions=most))


STAGE = CreateSession(env="stage/Stage-v0")
AFFINE = CreateSession(env="stage/Affine-v0")


def with_limits(clock=None, **limits):
    return Sessions(SessionLimits(**limits), clock=clock or Clock())


async def refused(awaitable):
    with pytest.raises(ServiceFault) as caught:
        await awaitable
    return caught.value


async def playing(sessions, ask=STAGE, caller=ME):
    session = await sessions.create(ask, caller)
    await session.reset(ResetEpisode(seed=1))
    return session


async def asked(session):
    """Let the session's task come to where it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert session.busy


def fresh_stage():
    """The body of a fixture: nothing is on record before a test, and nothing blocks after it."""
    for record in (StageEnv.made, StageEnv.closed, StageEnv.done, Affine.closed):
        record.clear()
    Affine.block.clear()
    StageEnv.gone.clear()
    yield
    Affine.block.set()
