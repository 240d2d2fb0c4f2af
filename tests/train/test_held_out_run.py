"""Real training with evaluations, a tracker and traces of some steps only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.errors import TrainingError
from agentgym.traces import read_traces
from agentgym.train import TrainConfig, make_trainer, train
from agentgym.train.config_reading import read_config
from agentgym.train.grpo import fit
from agentgym.train.monitors import diagnose
from agentgym.train.monitors.scores import read_scores

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]


def config_of(model: Path, out: Path, **changes: Any) -> TrainConfig:
    values = {
        "env": tiny_policy.ENV_ID, "env_kwargs": {"tasks": 12, "max_turns": 4},
        "model": str(model), "out": out, "steps": 3, "tasks_per_step": 4, "group_size": 4,
        "micro_batch": 8, "learning_rate": 1e-2, "sampling.max_turn_tokens": 8,
        "sampling.max_context": 96, "keep.checkpoints_every": 100, "policy.check_every": 1,
        "eval.every": 2, "eval.tasks": 6, "eval.samples": 2,
        **changes,
    }  # fmt: skip
    return read_config(values)


def ids_of(out: Path, step: int) -> list[Any]:
    traces = read_traces(out / f"traces-step{step:06d}.jsonl")
    return sorted((t.task_id, t.sample, [turn.completion_ids for turn in t.turns]) for t in traces)


def test_evaluations_leave_the_training_as_it_is_and_reach_a_tracker(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    logged: list[dict[str, float]] = []

    class Tracker(TrainerCallback):
        """As tensorboard's, trackio's and W&B's are: told of all that is logged."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logged.append(dict(logs))

    model = tiny_policy.save_policy(tmp_path / "model")
    often = config_of(model, tmp_path / "often")
    trainer = make_trainer(often, callbacks=[Tracker()])
    fit(trainer, often, progress=False)
    trainer.rollout_func.close()
    seldom = config_of(model, tmp_path / "seldom", **{"eval.every": 100, "keep.traces_every": 2})
    train(seldom, progress=False)

    for step in (0, 2):
        assert ids_of(often.out, step) == ids_of(seldom.out, step)
    assert (often.out / "traces-step000001.jsonl").exists()
    assert not (seldom.out / "traces-step000001.jsonl").exists()

    scores = read_scores(often.out / "evaluations.jsonl")
    assert [score.step for score in scores] == [0, 2, 3]
    assert [s.step for s in read_scores(seldom.out / "evaluations.jsonl")] == [0, 3]
    trained = {t.task_id for step in (0, 1, 2) for t in read_traces(
        often.out / f"traces-step{step:06d}.jsonl")}  # fmt: skip
    assert trained.isdisjoint(scores[0].tasks)
    assert len(scores[0].tasks) == 6
    best = max(scores, key=lambda score: score.success)
    if best.step:
        assert (often.out / f"checkpoint-{best.step}").is_dir()

    steps = [logs for logs in logged if "reward" in logs]
    assert len(steps) == 3
    for logs in steps:  # TRL's metrics and ours, side by side
        assert {"entropy", "frac_reward_zero_std", "agentgym/groups_equal"} <= logs.keys()
        parts = [logs[f"agentgym/time_s/{name}"] for name in ("rollout", "judge", "sync", "update")]
        assert sum(parts) == pytest.approx(logs["agentgym/time_s/step"], rel=1e-6)
        assert min(parts) >= 0
        assert logs["agentgym/weights/lag"] == 0
    assert steps[1]["agentgym/held_out/success"] == pytest.approx(scores[1].success)
    written = [json.loads(s) for s in (often.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written] == [1, 2, 3]
    found = diagnose(often.out)
    assert found.held_out == tuple(scores)
    assert found.seconds["step"] > 0
    assert found.usage["policy"]["tokens_out"] > 0


def test_run_stops_on_the_alarm_chosen(tmp_path: Path) -> None:
    model = tiny_policy.save_policy(tmp_path / "model")
    config = config_of(
        model, tmp_path / "run", steps=9, **{"eval.every": None}, stop_on=["token_limit"],
        monitors={"min_steps": 2, "window": 4},
    )  # fmt: skip
    with pytest.raises(
        TrainingError, match="stopped at step 2 by the alarm token_limit: .*clipped"
    ):
        train(config, progress=False)
    assert (config.out / "checkpoint-2").is_dir()
    assert json.loads((config.out / "alarms.jsonl").read_text())["name"] == "token_limit"
