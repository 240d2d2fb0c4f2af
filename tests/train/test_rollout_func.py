"""The rollout of one process over a stand-in for the engine: what ends a run, and what doesn't."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import pytest
import tiny_policy
from played import played

from agentgym.clients import ScriptedClient
from agentgym.errors import TrainingError
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.tokens.codec import ChatCodec
from agentgym.trace import Trace
from agentgym.traces import read_traces
from agentgym.train import rollout as rollout_module
from agentgym.train.preflight import preflight
from agentgym.train.rollout import Rollout
from agentgym.train.row_requests import row_requests
from agentgym.types import Message, Verdict

UNSCORED = Verdict(reward=None, masked=True, failure_class="infra")
BROKEN = played(None, verdict=UNSCORED).model_copy(update={"failure_class": "infra"})


class FakeEngine:
    """Answers every request with a copy of one trace, and writes it where the rollout says."""

    def __init__(self, rollout: Rollout, trace: Trace) -> None:
        self.sink, self.trace = rollout._traces, trace
        self.asked: list[EpisodeRequest] = []

    def run_blocking(self, requests: Iterable[EpisodeRequest]) -> list[Trace]:
        requests = list(requests)
        self.asked += requests
        found = [
            self.trace.model_copy(update={"group": r.group, "sample": r.sample}) for r in requests
        ]
        for trace in found:
            self.sink.write(trace)
        return found


def trainer_at(step: int) -> Any:
    return SimpleNamespace(
        state=SimpleNamespace(global_step=step),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(process_index=0, num_processes=1),
    )


def rollout_of(trace: Trace, *, traces: Path | None = None, check_every: int = 10) -> Rollout:
    rollout = Rollout(
        tiny_policy.ENV_ID, env_kwargs={}, max_turn_tokens=8, seed=0, traces=traces,
        check_every=check_every, limits=None, template_kwargs={}, seeded_sampling=True,
    )  # fmt: skip
    rollout._engine = FakeEngine(rollout, trace)  # type: ignore[assignment]
    rollout._source = SimpleNamespace(after_sync=lambda version: None)  # type: ignore[assignment]
    return rollout


def batch_of(rollout: Rollout, prompts: list[str], step: int) -> dict[str, Any]:
    """What the rollout gives a trainer with groups of two."""
    trainer = trainer_at(step)
    trainer.num_generations, trainer.eos_token_ids = 2, [3]
    rollout._codec, rollout.calls, rollout._next_check = object(), 1, 100  # type: ignore[assignment]
    rollout._source.stale = dict  # type: ignore[union-attr]
    return rollout(prompts, trainer)


REQUESTS = list(row_requests({0: "a", 1: "a"}, batch="0.0", seed=0, group_size=2))


def test_step_of_which_nothing_could_be_played_ends_the_run() -> None:
    rollout = rollout_of(BROKEN)
    with pytest.raises(TrainingError, match="none of the 2 episodes"):
        rollout._play(REQUESTS, trainer_at(0))


def test_round_of_refilling_of_which_nothing_could_be_played_does_not() -> None:
    rollout = rollout_of(BROKEN)
    assert len(rollout._play(REQUESTS, trainer_at(0), more=True)) == 2


def test_weights_are_checked_as_often_as_asked_where_a_batch_serves_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `num_iterations=3` a batch is played at every third step, never at 10 or 20."""
    checked: list[int] = []
    monkeypatch.setattr(
        rollout_module,
        "require_live_weights",
        lambda trainer, probe: checked.append(trainer.state.global_step),
    )
    rollout = rollout_of(played(1.0))
    for step in range(0, 34, 3):
        rollout._after_sync(trainer_at(step))
        rollout.calls += 1
    assert checked == [0, 12, 21, 30]


def test_traces_that_an_interrupted_attempt_left_are_kept_aside(tmp_path: Path) -> None:
    for attempt in range(2):
        rollout = rollout_of(played(1.0), traces=tmp_path)
        rollout._step = 4
        rollout._play(REQUESTS, trainer_at(4))
        rollout._play(REQUESTS, trainer_at(4), more=True)
        files = sorted(path.name for path in tmp_path.iterdir())
        aside = ["traces-step000004.unused1.jsonl"] * attempt
        assert files == ["traces-step000004.jsonl", *aside]
        assert all(len(list(read_traces(tmp_path / name))) == 4 for name in files)


def test_steps_between_those_that_are_kept_leave_no_file(tmp_path: Path) -> None:
    rollout = rollout_of(played(1.0), traces=tmp_path)
    rollout.keep_traces_every = 3
    for step in range(5):
        rollout._step = step
        rollout._play(REQUESTS, trainer_at(step))
    assert [p.name[-7:-6] for p in sorted(tmp_path.iterdir())] == ["0", "3"]


def test_rows_of_a_group_that_is_spread_over_processes_are_told_apart() -> None:
    asked = {"batch": "2.0", "seed": 5, "group_size": 4}
    whole = list(row_requests(dict.fromkeys(range(4), "a"), **asked))  # type: ignore[arg-type]
    halves = [
        list(row_requests(dict.fromkeys(rows, "a"), **asked))  # type: ignore[arg-type]
        for rows in (range(2), range(2, 4))
    ]
    together = [request for half in halves for request in half]
    assert [(r.group, r.seed, r.sample) for r in together] == [
        (r.group, r.seed, r.sample) for r in whole
    ]
    assert {r.group_size for r in together} == {2}  # a judge waits for those of its process
    again = list(row_requests({0: "a"}, **asked, round_=1))  # type: ignore[arg-type]
    assert again[0].group != whole[0].group
    assert again[0].seed != whole[0].seed


def test_prompts_are_repeated_already_and_each_is_one_row_and_one_episode() -> None:
    """F10: groups of two, two prompts in, two rows out. F11: each episode is asked for once."""
    rollout = rollout_of(played(1.0))
    found = [batch_of(rollout, ["guess/0", "guess/0"], step) for step in range(2)]
    for output in found:
        rows = {name: len(column) for name, column in output.items() if name != "batch_metrics"}
        assert set(rows.values()) == {2}
        assert {"prompt_ids", "completion_ids", "env_mask", "logprobs", "reward"} <= rows.keys()
    asked = rollout._engine.asked  # type: ignore[union-attr]
    assert len({(r.group, r.sample) for r in asked}) == len(asked) == 4


class CountedEnv(tiny_policy.GuessEnv):
    """Counts how often it is reset."""

    resets: ClassVar[list[str]] = []

    async def areset(self, **options: Any) -> Any:
        messages, info = await super().areset(**options)
        self.resets.append(info["task_id"])
        return messages, info


TASKS = ["guess/0", "guess/0", "guess/1", "guess/1"]


def _said(messages: Sequence[Message]) -> str:
    """Yes, yes and no more in the first task, the end at once in the second."""
    if str(messages[1]["content"]).startswith("w1"):
        return "stop"
    return "yes stop" if len(messages) > 5 else "yes"


async def test_each_rollout_resets_its_environment_once() -> None:
    """F11: over two steps of two groups of two. F16: what an episode is worth comes at its end."""
    CountedEnv.resets.clear()
    client = ScriptedClient(_said)
    requests = [
        list(row_requests(dict(enumerate(TASKS)), batch=f"{step}.0", seed=0, group_size=2))
        for step in range(2)
    ]
    async with Engine(CountedEnv, client=client) as engine:
        for step, asked in enumerate(requests, start=1):
            traces = [trace async for trace in engine.run(asked)]
            assert sorted(CountedEnv.resets) == sorted(TASKS * step)
            assert sorted((t.task_id, t.reward, len(t.turns)) for t in traces) == [
                *[("guess/0", 0.75, 3)] * 2, *[("guess/1", 0.0, 1)] * 2,
            ]  # fmt: skip


def test_rewards_of_steps_sum_to_the_last_one() -> None:
    """F16: nothing is lost by looking at the end alone."""
    env = CountedEnv()
    env.reset(options={"task_id": "guess/0"})
    steps = [
        env.step({"role": "assistant", "content": text}) for text in ("yes", "yes", "yes stop")
    ]
    rewards = [reward for _, reward, *_ in steps]
    assert rewards == [0.0, 0.0, 0.75]
    assert sum(rewards) == steps[-1][-1]["verdict"].reward


def test_task_that_a_dataset_misspells_is_told_before_anything_is_played() -> None:
    """F17, with the tasks that there are; an unknown environment is in test_learning_loop."""
    env = gymnasium.make(tiny_policy.ENV_ID)
    codec = ChatCodec(tiny_policy.make_tokenizer(), stop_ids=[3])
    message = r"1 unknown tasks, such as 'gess/1'; .* has 'guess/0' to 'guess/7'"
    with pytest.raises(TrainingError, match=message):
        preflight(env, codec, dataset={"prompt": ["guess/0", "gess/1"]})
    env.close()
