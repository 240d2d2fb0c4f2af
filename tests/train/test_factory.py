"""Environments in TRL's own tool loops, played by hand as those loops play them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import pytest
import tiny_policy
from datasets import Dataset

import agentgym  # noqa: F401  # registers the environments
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError, SimulatorError, TrainingError, UnknownTaskError
from agentgym.judge import Score
from agentgym.tools import Tool
from agentgym.train.factory import environment_factory, task_rows
from agentgym.train.final_messages import final_messages
from agentgym.train.trl_environment import BROKEN, OVER
from agentgym.types import Episode, Message, Task

WEBSHOP = "agentgym/WebShop-v0"
TINY: dict[str, Any] = {"difficulty": "tiny", "max_turns": 4}
EMPTY = [{"role": "user", "content": ""}]


class Rows(list[dict[str, Any]]):
    """As much of a `datasets.Dataset` as is looked at."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


class Judge:
    """Answers when it is let, and notes whom it has begun to judge."""

    inline = False
    begun: ClassVar[queue.Queue[str]] = queue.Queue()

    def __init__(self, gate: threading.Event | None) -> None:
        self._gate = gate

    async def score(self, episode: Episode) -> Score:
        self.begun.put(episode.task.task_id)
        if self._gate is not None:
            await asyncio.to_thread(self._gate.wait, 10)
        return Score(total=0.25 * len(episode.turns), correct=True)


class DeskEnv(AgentEnv):
    """Two tools, one that ends the episode and one that breaks; text is the final answer."""

    closed: ClassVar[list[int]] = []

    def __init__(self, *, gate: threading.Event | None = None, judge: Any = None) -> None:
        super().__init__(
            tools=[Tool(self.look, inline=True), Tool(self.stop), self.crash],
            judge=judge or Judge(gate),
            max_turns=5,
            gates=(),
        )

    def task_ids(self) -> Sequence[str]:
        return [f"desk/{n}" for n in range(100)]

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        return Task(task_id=options["task_id"])

    async def start(self, task: Task) -> Sequence[Message]:
        if task.task_id == "desk/shut":
            raise SimulatorError("nobody is at the desk")
        return ({"role": "user", "content": f"this is {task.task_id}"},)

    def look(self, at: str) -> str:
        """Look.

        Args:
            at: Where.
        """
        return f"you see {at}"

    async def stop(self) -> str:
        """End it."""
        self.finish()
        return "stopped"

    def crash(self) -> str:
        """Crash."""
        raise RuntimeError("boom")

    def close(self) -> None:
        self.closed.append(id(self))
        super().close()


class TextOnlyEnv(DeskEnv):
    """Actions are words, and there are no tools."""

    def __init__(self) -> None:
        super().__init__()
        self.use_tools([])

    def parse_text(self, text: str) -> None:
        return None


for name, entry in (("Desk-v0", DeskEnv), ("TextOnly-v0", TextOnlyEnv)):
    if f"agentgym-tests/{name}" not in gym.registry:
        gym.register(f"agentgym-tests/{name}", entry_point=entry)
DESK = "agentgym-tests/Desk-v0"


def tools_as_trl_lists_them(environment: Any) -> dict[str, Any]:
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    other = ("reset", "get_reward")
    names = [name for name, _ in members if name not in other and not name.startswith("_")]
    return {name: getattr(environment, name) for name in names}


async def called(environment: Any, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """The calls of one message, as `GRPOTrainer._tool_call_loop` makes them."""
    tools = tools_as_trl_lists_them(environment)
    assert all(inspect.iscoroutinefunction(tool) for tool in tools.values())
    return await asyncio.gather(*(tools[name](**arguments) for name, arguments in calls))


def first_task(env_id: str, **kwargs: Any) -> str:
    with gym.make(env_id, **kwargs) as env:
        return str(env.unwrapped.task_ids()[0])  # type: ignore[attr-defined]


async def test_episode_is_what_the_environments_own_loop_plays() -> None:
    task = first_task(WEBSHOP, **TINY)
    environment = environment_factory(WEBSHOP, **TINY)()
    opening = environment.reset(task_id=task, prompt=EMPTY)
    with gym.make(WEBSHOP, **TINY) as env:
        messages, info = env.reset(options={"task_id": task})
        assert opening == "\n\n".join(m["content"] for m in messages)
        (page,) = await called(environment, ("search", {"query": "shirt"}))
        (own,), *_ = env.step(_calls(("search", {"query": "shirt"})))
        assert page == own["content"]
        *_, info = env.step(_calls(("search", {"query": "shirt"})))
        await called(environment, ("search", {"query": "shirt"}))
        target = info["available_actions"]["clickables"][-1]
        (page,) = await called(environment, ("click", {"target": target}))
        (own,), *_ = env.step(_calls(("click", {"target": target})))
        assert page == own["content"]
        (page,) = await called(environment, ("click", {"target": "buy now"}))
        (own,), reward, terminated, *_ = env.step(_calls(("click", {"target": "buy now"})))
        assert terminated
        assert page == f"{own['content']}\n\n{OVER}"
    assert await called(environment, ("search", {"query": "more"})) == [OVER]
    assert await environment.get_reward() == pytest.approx(reward)


def _calls(*calls: tuple[str, dict[str, Any]]) -> Message:
    entries = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": entries}


async def test_calls_of_one_message_are_one_turn_in_order() -> None:
    environment = environment_factory(DESK)()
    environment.reset(task_id="desk/1")
    calls = [("look", {"at": str(n)}) for n in range(3)]
    assert await called(environment, *calls) == ["you see 0", "you see 1", "you see 2"]
    answers = await called(environment, ("stop", {}), ("look", {"at": "late"}))
    assert answers[0] == "stopped"
    assert answers[1].endswith(OVER)
    assert await environment.get_reward() == pytest.approx(0.5)  # two turns, not five


async def test_wrong_arguments_are_the_environments_to_explain() -> None:
    environment = environment_factory(WEBSHOP, **TINY)()
    environment.reset(task_id=first_task(WEBSHOP, **TINY))
    (answer,) = await called(environment, ("search", {"words": "shirt"}))
    assert "query is missing" in answer
    (answer,) = await called(environment, ("search", {"self": "shirt"}))
    assert "self is not a parameter" in answer
    assert await environment.get_reward() == pytest.approx(-0.8)  # truncated, malformed


async def test_judges_work_side_by_side_from_the_end_of_each_episode() -> None:
    gate = threading.Event()
    Judge.begun.queue.clear()
    made = environment_factory(DESK, gate=gate)
    environments = [made() for _ in range(3)]
    for number, environment in enumerate(environments):
        environment.reset(task_id=f"desk/{number}")
        await called(environment, ("stop", {}))
    # Nobody has asked for a reward yet.
    begun = [await asyncio.to_thread(Judge.begun.get, timeout=10) for _ in environments]
    assert begun == ["desk/0", "desk/1", "desk/2"]
    gate.set()
    assert [await e.get_reward() for e in environments] == [0.25] * 3


async def test_masked_episode_has_no_reward() -> None:
    environment = environment_factory(tiny_policy.ENV_ID, unscored=["guess/3"])()
    environment.reset(task_id="guess/3")
    await called(environment, ("say", {"text": "yes stop"}))
    assert await environment.get_reward() is None
    environment.reset(task_id="guess/4")
    await called(environment, ("say", {"text": "yes stop"}))
    assert await environment.get_reward() == 0.0


async def test_broken_environment_masks_its_episode_and_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = environment_factory(DESK)()
    environment.reset(task_id="desk/0")
    assert await called(environment, ("crash", {})) == [BROKEN]
    assert await environment.get_reward() is None
    assert "boom" in caplog.text
    DeskEnv.closed.clear()
    environment.reset(task_id="desk/1")
    assert len(DeskEnv.closed) == 1
    await called(environment, ("stop", {}))
    assert await environment.get_reward() == pytest.approx(0.25)


async def test_episode_that_can_not_begin_is_masked() -> None:
    environment = environment_factory(DESK)()
    assert environment.reset(task_id="desk/shut") == BROKEN
    assert await called(environment, ("look", {"at": "it"})) == [OVER]
    assert await environment.get_reward() is None
    assert environment.reset(task_id="desk/0") == "this is desk/0"


async def test_episodes_do_not_share_state_and_the_second_starts_afresh() -> None:
    made = environment_factory(DESK)
    one, other = made(), made()
    one.reset(task_id="desk/0")
    other.reset(task_id="desk/0")
    await called(one, ("stop", {}))
    assert await called(other, ("look", {"at": "it"})) == ["you see it"]
    one.reset(task_id="desk/0")
    assert await called(one, ("look", {"at": "it"})) == ["you see it"]


async def test_trainer_that_does_not_reset_is_found_out() -> None:
    environment = environment_factory(DESK)()
    with pytest.raises(TrainingError, match="did not reset"):
        await environment.get_reward()
    environment.reset(task_id="desk/0")
    await called(environment, ("stop", {}))
    await environment.get_reward()
    assert await called(environment, ("look", {"at": "it"})) == [BROKEN]
    with pytest.raises(TrainingError, match="without reset"):
        await environment.get_reward()


def test_rows_that_name_no_task_or_none_that_exists_are_refused() -> None:
    good = Rows(task_rows(DESK, ["desk/1"]))
    assert environment_factory(DESK, good).__name__ == "Desk"
    with pytest.raises(ConfigError, match=r"'desk/l'.*'desk/0' to 'desk/99'"):
        environment_factory(DESK, Rows([*good, {"task_id": "desk/l", "prompt": EMPTY}]))
    with pytest.raises(ConfigError, match="no column task_id, only prompt"):
        environment_factory(DESK, Rows([{"prompt": EMPTY}]))
    with pytest.raises(ConfigError, match="no rows"):
        environment_factory(DESK, [])
    environment = environment_factory(WEBSHOP, **TINY)()
    with pytest.raises(UnknownTaskError, match="webshop"):
        environment.reset(task_id="webshop/hunam/1")
    with pytest.raises(TrainingError, match="column task_id"):
        environment.reset(prompt=EMPTY)


def test_dataset_may_be_plain_rows_or_several_splits() -> None:
    good = task_rows(DESK, ["desk/1"])
    wrong = [*good, {"task_id": "desk/l", "prompt": EMPTY}]
    for make in (
        list,
        Rows,
        Dataset.from_list,
        lambda rows: Dataset.from_list(rows).to_iterable_dataset(),
    ):
        assert environment_factory(DESK, make(good)).__name__ == "Desk"
        for dataset in (make(wrong), {"train": make(good), "test": make(wrong)}):
            with pytest.raises(ConfigError, match=r"1 unknown tasks, such as 'desk/l'"):
                environment_factory(DESK, dataset)


@pytest.mark.parametrize("seed", [-1, 0.5, float("nan"), "3"])
def test_seed_that_is_none_is_refused_and_masks_nothing(seed: Any) -> None:
    environment = environment_factory(DESK)()
    with pytest.raises(TrainingError, match="column seed"):
        environment.reset(task_id="desk/0", seed=seed)
    assert environment.reset(task_id="desk/0", seed=3.0) == "this is desk/0"  # type: ignore[arg-type]


async def test_user_simulator_answers_through_a_tool() -> None:
    env_id = "agentgym/SupportDesk-v0"
    task = first_task(env_id)
    environment = environment_factory(env_id)()
    assert "say" in tools_as_trl_lists_them(environment)
    environment.reset(task_id=task, seed=7)
    with gym.make(env_id) as env:
        env.reset(seed=7, options={"task_id": task})
        (reply,), *_ = env.step("Could you give me your name and zip code?")
    (heard,) = await called(
        environment, ("say", {"message": "Could you give me your name and zip code?"})
    )
    assert heard == reply["content"]
    assert await environment.get_reward() is not None


async def test_final_text_reaches_the_environment_if_it_is_handed_over() -> None:
    logged: dict[str, float] = {}
    made = environment_factory(DESK)
    environments = [made() for _ in range(3)]
    for environment in environments:
        environment.reset(task_id="desk/0")
    completions = [
        [{"role": "assistant", "content": "It is 7."}],
        [{"role": "assistant", "content": "", "tool_calls": [{}]}],  # cut by TRL's limits
        [{"role": "assistant"}, {"role": "tool", "content": "too long for the context"}],
    ]
    nothing = await final_messages(
        completions, environments=environments, log_metric=logged.__setitem__
    )
    assert nothing == [None] * 3
    records = [e._handle._core.running for e in environments]  # type: ignore[attr-defined]
    assert [record.answer for record in records if record] == ["It is 7.", None, None]
    assert [r.truncation_reason for r in records if r] == [None, "turns", "turns"]
    assert [await e.get_reward() for e in environments] == [0.25, 0.0, 0.0]
    assert logged["agentgym/completed"] == pytest.approx(1 / 3)
    assert logged["agentgym/masked"] == 0


async def test_final_answer_can_be_a_tool() -> None:
    environment = environment_factory(DESK)()
    environment.reset(task_id="desk/0")
    assert await called(environment, ("final_answer", {"message": "7"})) == [OVER]
    (told,) = await called(environment, ("final_answer", {"text": "7"}))
    assert "message" in told
    assert await environment.get_reward() == pytest.approx(0.25)


def test_grammar_of_text_actions_needs_no_talking_tool() -> None:
    environment = environment_factory(WEBSHOP, **TINY)()
    assert set(tools_as_trl_lists_them(environment)) == {"search", "click"}


def test_environment_without_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tools.*rollout_func"):
        environment_factory("agentgym-tests/TextOnly-v0")


def test_judge_that_compares_is_refused() -> None:
    class Comparing:
        inline = True

        async def score_group(self, episodes: Sequence[Episode]) -> list[Score]:
            return [Score(total=0.0) for _ in episodes]

    with pytest.raises(ConfigError, match="rollout_func"):
        environment_factory(DESK, judge=Comparing())


def test_tools_of_all_tasks_are_methods_and_the_opening_names_those_of_its_own() -> None:
    env_id = "agentgym/ToolWorld-v0"
    kwargs: dict[str, Any] = {"tasks_per_family": 1}
    rows = Rows(task_rows(env_id, **kwargs)[::8])
    environment = environment_factory(env_id, rows, **kwargs)()
    offered = set(tools_as_trl_lists_them(environment)) - {"final_answer"}
    with gym.make(env_id, **kwargs) as env:
        for row in rows:
            _, info = env.reset(options={"task_id": row["task_id"]})
            own = {spec["function"]["name"] for spec in info["tools"]}
            assert own < offered
            opening = environment.reset(**row)
            tools = ", ".join([*sorted(own), "final_answer"])
            assert opening.endswith(f"Tools of this task: {tools}.")


def test_prompts_own_system_message_stands_in_for_the_environments() -> None:
    (row,) = task_rows(WEBSHOP, [first_task(WEBSHOP, **TINY)], **TINY)
    system, user = row["prompt"]
    assert system["role"] == "system"
    assert user == EMPTY[0]
    environment = environment_factory(WEBSHOP, **TINY)()
    assert environment.reset(**row).startswith("WebShop [SEP]")
    assert environment.reset(row["task_id"], prompt=EMPTY).startswith(system["content"])


async def test_class_can_be_pickled_for_a_process_of_the_trainers() -> None:
    made = pickle.loads(pickle.dumps(environment_factory(WEBSHOP, **TINY)))
    environment = made()
    environment.reset(task_id=first_task(WEBSHOP, **TINY))
    assert "[SEP]" in (await called(environment, ("search", {"query": "shirt"})))[0]


def test_making_the_class_asks_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: Any, task: Task) -> Sequence[Message]:
        raise AssertionError("a hosted simulator would have been asked")

    monkeypatch.setattr(DeskEnv, "start", start)
    monkeypatch.setattr(DeskEnv, "awaits", True)
    rows = Rows(task_rows(DESK, ["desk/1"]))
    assert rows[0]["prompt"] == EMPTY
    assert "look" in tools_as_trl_lists_them(environment_factory(DESK, rows)())


def test_environment_is_closed_when_the_trainer_lets_go_of_it() -> None:
    DeskEnv.closed.clear()
    environment = environment_factory(DESK)()
    DeskEnv.closed.clear()
    inside = id(environment._handle._core)
    del environment
    gc.collect()
    assert DeskEnv.closed == [inside]
