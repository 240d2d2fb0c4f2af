"""check_agent_env passes on honest environments and catches each kind of fault by its own check."""

from __future__ import annotations

import itertools
import random

import gymnasium
import pytest

from agentgym.errors import ConfigError
from agentgym.spaces import AssistantSpace
from agentgym.testing import EnvCheckError, check_agent_env
from agentgym.testing.check import CHECKS
from agentgym.testing.envs import CounterEnv, QuizEnv, SlowCounterEnv
from agentgym.tools import Tool
from agentgym.types import Task, Verdict


class ReturnsList(CounterEnv):
    async def areset(self, **kwargs):
        observation, info = await super().areset(**kwargs)
        return list(observation), info


class IgnoresCap(QuizEnv):
    async def start(self, task):
        opening = await super().start(task)
        self.running.max_turns = None
        return opening


class CountsInstances(CounterEnv):
    numbers = itertools.count()

    async def start(self, task):
        await super().start(task)
        return ({"role": "user", "content": f"Episode {next(self.numbers)}"},)


class OwnGenerator(CounterEnv):
    def __init__(self, **kwargs):
        self.rng = random.Random(1)
        super().__init__(**kwargs)

    def choose_task(self, options):
        return super().choose_task({"task_id": f"counter/{self.rng.randint(1, 20)}"})


class IgnoresTaskId(CounterEnv):
    def choose_task(self, options):
        return super().choose_task({})


class RepeatsTasks(CounterEnv):
    def task_ids(self):
        return (*super().task_ids(), "counter/1")


class InventsTasks(QuizEnv):
    def choose_task(self, options):
        return Task(task_id=options.get("task_id") or "quiz/Peru", reference="Lima")


class GlobalGenerator(CounterEnv):
    async def start(self, task):
        random.random()
        return await super().start(task)


class SharesState(CounterEnv):
    box = {"value": 0}  # noqa: RUF012

    @property
    def value(self):
        return self.box["value"]

    @value.setter
    def value(self, value):
        self.box["value"] = value


class KeepsState(CounterEnv):
    async def start(self, task):
        value = self.value
        opening = await super().start(task)
        self.value = value
        return opening


class TwoFaced(CounterEnv):
    def step(self, action):
        _, *rest = super().step(action)
        return (({"role": "user", "content": "plain"},), *rest)


class ForgetsInSnapshot(CounterEnv):
    def restore(self, state):
        self.value = -1


class SharesSnapshot(CounterEnv):
    """The copy taken is right, but what reset_to does isn't in it."""

    def snapshot(self):
        return min(self.value, 5)


class Registered(CounterEnv):
    instances = []  # noqa: RUF012

    def __init__(self, **kwargs):
        self.instances.append(self)
        super().__init__(**kwargs)


class ResetsItself(CounterEnv):
    async def astep(self, action):
        if self.running is None or self.running.over:
            await self.areset()
        return await super().astep(action)


class IgnoresOptions(CounterEnv):
    async def areset(self, *, seed=None, options=None):
        return await super().areset(seed=seed)


class SamplesWrongCalls(CounterEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

        def fly(height: int) -> str:
            return ""

        self.action_space = AssistantSpace([Tool(fly).spec])


class LoneSurrogate(CounterEnv):
    async def start(self, task):
        await super().start(task)
        return ({"role": "user", "content": "broken \ud83d"},)


class LateSystemMessage(QuizEnv):
    async def start(self, task):
        (question,) = await super().start(task)
        return (question, {"role": "system", "content": "Be brief."})


class ChangesHistory(CounterEnv):
    async def astep(self, action):
        self.running.messages[0]["content"] += "!"
        return await super().astep(action)


class CrashesOnText(CounterEnv):
    async def reply(self, message):
        int(message["content"])
        return await super().reply(message)


class HandsOutItsRecord(CounterEnv):
    async def areset(self, **kwargs):
        _, info = await super().areset(**kwargs)
        return tuple(self.running.messages), info


class RewardIsNan(CounterEnv):
    async def astep(self, action):
        observation, _, *rest = await super().astep(action)
        return (observation, float("nan"), *rest)


class RewardIsNotTheVerdicts(CounterEnv):
    async def astep(self, action):
        observation, reward, *rest = await super().astep(action)
        return (observation, reward + 1.0, *rest)


class TellsVerdictEarly(CounterEnv):
    def extra_info(self):
        return {"verdict": Verdict(reward=0.5)}


class LeaksInInfo(QuizEnv):
    def extra_info(self):
        return {"answer": self._capital}


class LeaksInText(QuizEnv):
    async def start(self, task):
        (question,) = await super().start(task)
        return ({**question, "content": f"{question['content']} (not {task.reference.upper()}?)"},)


class LeaksObject(QuizEnv):
    goal = {"name": 1}  # noqa: RUF012

    def choose_task(self, options):
        return Task(task_id=super().choose_task(options).task_id, reference=self.goal)

    async def start(self, task):
        return ({"role": "user", "content": "?"},)

    def extra_info(self):
        return {"debug": [self.goal]}


BUGGY = [
    ("gymnasium", ReturnsList),
    ("bounds", IgnoresCap),
    ("determinism", CountsInstances),
    ("seed_sequence", OwnGenerator),
    ("tasks", IgnoresTaskId),
    ("tasks", RepeatsTasks),
    ("tasks", InventsTasks),
    ("global_random", GlobalGenerator),
    ("isolation", SharesState),
    ("reset", KeepsState),
    ("async_face", TwoFaced),
    ("snapshot", ForgetsInSnapshot),
    ("snapshot", SharesSnapshot),
    ("close", Registered),
    ("order", ResetsItself),
    ("options", IgnoresOptions),
    ("sampled_actions", SamplesWrongCalls),
    ("observations", LoneSurrogate),
    ("conversation", LateSystemMessage),
    ("conversation", ChangesHistory),
    ("hostile_actions", CrashesOnText),
    ("returned_data", HandsOutItsRecord),
    ("verdict", RewardIsNan),
    ("verdict", RewardIsNotTheVerdicts),
    ("verdict", TellsVerdictEarly),
    ("hidden", LeaksInInfo),
    ("hidden", LeaksInText),
    ("hidden", LeaksObject),
]


@pytest.mark.parametrize("env_class", [CounterEnv, SlowCounterEnv, QuizEnv])
def test_honest_envs_pass(env_class):
    check_agent_env(env_class)


@pytest.mark.parametrize(("name", "env_class"), BUGGY, ids=lambda v: getattr(v, "__name__", v))
def test_each_fault_is_caught_by_its_own_check(name, env_class):
    with pytest.raises(EnvCheckError, match=f"check '{name}' failed: "):
        check_agent_env(env_class, skip=CHECKS.keys() - {name})
    with pytest.raises(EnvCheckError):
        check_agent_env(env_class)


def test_every_check_has_a_faulty_env():
    assert {name for name, _ in BUGGY} == CHECKS.keys()


def test_hidden_texts_can_be_named():
    with pytest.raises(EnvCheckError, match="hidden text 'capital of' shows"):
        check_agent_env(QuizEnv, hidden=lambda task: ["capital of"])
    check_agent_env(CounterEnv, hidden=lambda task: ["no such text", "abc"])


def test_ids_and_made_envs_are_checked_too():
    gymnasium.register("agentgym_tests/Checked-v0", "agentgym.testing.envs:CounterEnv")
    try:
        check_agent_env("agentgym_tests/Checked-v0")
        env = gymnasium.make("agentgym_tests/Checked-v0", max_turns=3)
        check_agent_env(env)
        with pytest.raises(EnvCheckError, match="check 'hidden'"):
            check_agent_env(env, hidden=lambda task: ["Bring the counter"])
    finally:
        del gymnasium.registry["agentgym_tests/Checked-v0"]


def test_what_cannot_be_checked_says_why():
    with pytest.raises(ConfigError, match="pass a function that makes it"):
        check_agent_env(CounterEnv())
    with pytest.raises(ConfigError, match="no check \\['speling'\\]; there are gymnasium, bounds"):
        check_agent_env(CounterEnv, skip=["speling"])
    with pytest.raises(ConfigError, match="got CartPoleEnv"):
        check_agent_env("CartPole-v1")
