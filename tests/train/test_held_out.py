from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_policy
from synthetic_runs import score_of as synthetic_score

from agentgym.errors import ConfigError, TrainingError
from agentgym.trace import Trace
from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import read_config
from agentgym.train.monitors.scores import HeldOutScore, read_scores
from agentgym.types import Verdict

held_out = pytest.importorskip("agentgym.train.held_out", reason="needs the training stack")


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    values = {"env": tiny_policy.ENV_ID, "model": "m", "out": tmp_path, "eval.every": 2,
              "eval.tasks": 3, "steps": 6}  # fmt: skip
    return read_config({**values, **changes})


def traces_of(success: float, tasks: Any, samples: int) -> list[Trace]:
    """Episodes of which that share solves its task, the first ones."""
    names = [(task, sample) for task in tasks for sample in range(samples)]
    solved = round(success * len(names))
    return [
        Trace(
            trace_id=f"{task}{sample}", env_spec="{}", started_at="now", task_id=task,
            sample=sample, terminated=True,
            verdict=Verdict(reward=0.9, correct=i < solved, completed=True),
        )
        for i, (task, sample) in enumerate(names)
    ]  # fmt: skip


class Run:
    """A trainer that plays with a given success, step by step, and what it was told."""

    def __init__(self, config: TrainConfig, success: dict[int, float]) -> None:
        self.lines: list[str] = []
        self.scores: list[HeldOutScore] = []
        self.logged: list[dict[str, float]] = []
        self.played: list[dict[str, Any]] = []
        self.success = success
        self.trainer = SimpleNamespace(
            accelerator=SimpleNamespace(process_index=0, num_processes=1),
            rollout_func=object(),
            log=self.logged.append,
            _metrics={"train": defaultdict(list)},
        )
        self.state = SimpleNamespace(
            global_step=0, max_steps=config.steps, is_world_process_zero=True, best_metric=None,
            best_global_step=None, best_model_checkpoint=None,
        )  # fmt: skip
        self.control = SimpleNamespace(should_save=False, should_training_stop=False)
        self.callback = held_out.HeldOut(
            self.trainer, config, held_out.HeldOutTasks({"k": 1}, ("a", "b", "c")),
            tell=self.lines.append, listener=self.scores.append, play=self.play,
        )  # fmt: skip

    def play(self, trainer: Any, env_id: str, **options: Any) -> list[Trace]:
        self.played.append(options)
        random.random()  # an evaluation may draw
        success = self.success[self.state.global_step]
        return traces_of(success, options["tasks"], options["samples"])

    def go(self, first: int, last: int) -> None:
        """Training steps, with what the trainer calls around them."""
        self.state.global_step = first
        self.callback.on_train_begin(None, self.state, self.control)
        for step in range(first + 1, last + 1):
            self.state.global_step = step
            self.control.should_training_stop = step == self.state.max_steps
            self.callback.on_step_end(None, self.state, self.control)


def test_evaluates_before_the_first_step_every_n_and_after_the_last(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path, steps=5), {0: 0.0, 2: 1 / 3, 4: 1.0, 5: 2 / 3})
    run.go(0, 5)
    assert [score.step for score in run.scores] == [0, 2, 4, 5]
    assert [round(score.success, 2) for score in run.scores] == [0.0, 0.33, 1.0, 0.67]
    assert read_scores(tmp_path / "evaluations.jsonl") == run.scores
    assert run.scores[1].tasks == {"a": (1, 1), "b": (0, 1), "c": (0, 1)}
    assert all("held-out at step" in line for line in run.lines)


def test_score_is_correctness_and_not_the_training_reward(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 0.0})
    run.callback.on_train_begin(None, run.state, run.control)
    assert (run.scores[0].success, run.scores[0].reward) == (0.0, pytest.approx(0.9))


def test_same_tasks_and_seed_every_time(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"eval.samples": 2, "sampling.max_episode_tokens": 99})
    run = Run(config, dict.fromkeys(range(7), 0.5))
    run.go(0, 6)
    kept = [{k: v for k, v in options.items() if k != "traces"} for options in run.played]
    assert all(options == kept[0] for options in kept)
    assert (kept[0]["samples"], kept[0]["max_episode_tokens"]) == (2, 99)
    assert len({options["traces"] for options in run.played}) == 4


def test_training_draws_the_same_with_and_without(tmp_path: Path) -> None:
    import numpy as np
    import torch

    def draws() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    def seed() -> None:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    seed()
    without = draws()
    seed()
    run = Run(config_of(tmp_path), dict.fromkeys(range(7), 0.5))
    run.go(0, 2)
    assert draws() == without


def test_best_checkpoint_is_saved_and_kept(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 1 / 3, 2: 1 / 3, 4: 1.0, 6: 2 / 3})
    run.go(0, 2)
    assert not run.control.should_save  # no better than before training
    run.go(2, 4)
    assert run.control.should_save
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    run.control.should_save = False
    run.go(4, 6)
    assert not run.control.should_save
    assert run.state.best_global_step == 4
    assert [score.best for score in run.scores] == [True, False, True, False]


def test_trackers_get_the_score_with_the_step_it_belongs_to(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 0.0, 2: 1.0})
    run.go(0, 2)
    assert run.logged[0]["agentgym/held_out/success"] == 0.0
    assert run.trainer._metrics["train"]["agentgym/held_out/success"] == [1.0]


def test_resumed_run_goes_on_without_repeating(tmp_path: Path) -> None:
    success = {0: 2 / 3, 2: 1 / 3, 4: 1 / 3, 6: 1.0}
    first = Run(config_of(tmp_path), success)
    first.go(0, 4)
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 6, "torn')
    resumed = Run(config_of(tmp_path), success)
    resumed.go(2, 6)  # from a checkpoint before the last evaluation
    assert [score.step for score in resumed.scores] == [4, 6]
    assert [score.best for score in resumed.scores] == [False, True]  # the best was at step 0
    assert [s.step for s in read_scores(tmp_path / "evaluations.jsonl")] == [0, 2, 4, 6]


def test_a_fresh_start_trusts_no_baseline_of_another_attempt(tmp_path: Path) -> None:
    Run(config_of(tmp_path), {0: 1.0, 2: 1.0}).go(0, 2)
    again = Run(config_of(tmp_path), {0: 0.0, 2: 1 / 3})
    again.go(0, 2)
    assert [(score.step, score.best) for score in again.scores] == [(0, True), (2, True)]
    assert [round(s.success, 2) for s in read_scores(tmp_path / "evaluations.jsonl")] == [0.0, 0.33]


def test_an_interrupted_step_is_not_evaluated(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 0.5})
    run.callback.on_train_begin(None, run.state, run.control)
    run.state.global_step, run.control.should_training_stop = 2, True
    run.callback.on_step_end(None, run.state, run.control)
    assert [score.step for score in run.scores] == [0]


def test_a_judge_that_is_away_costs_an_evaluation_and_not_the_run(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 0.5})
    run.callback.on_train_begin(None, run.state, run.control)

    def unscored(*_: Any, **options: Any) -> list[Trace]:
        lost = Verdict(reward=None, masked=True, failure_class="judge", judge_failed=True)
        traces = traces_of(1.0, options["tasks"], 1)
        return [trace.model_copy(update={"verdict": lost}) for trace in traces]

    run.callback._play = unscored
    run.state.global_step = 2
    run.callback.on_step_end(None, run.state, run.control)
    assert [score.step for score in run.scores] == [0]
    assert "failed: 0 of 3 evaluation episodes were scored" in run.lines[-1]
    run.state.global_step = 0
    (tmp_path / "evaluations.jsonl").unlink()
    with pytest.raises(TrainingError, match="0 of 3"):  # at the start there is something to mend
        run.callback.on_train_begin(None, run.state, run.control)


def test_a_few_easy_tasks_are_not_the_best(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 1 / 3, 2: 2 / 3, 4: 1.0})
    run.callback._held_out = held_out.HeldOutTasks({}, tuple("abcdef"))
    run.go(0, 2)
    whole = run.callback._play

    def most_masked(*args: Any, **options: Any) -> list[Trace]:
        lost = Verdict(reward=None, masked=True, failure_class="infra")
        first, second, *others = whole(*args, **options)
        return [first, second, *(t.model_copy(update={"verdict": lost}) for t in others)]

    run.callback._play = most_masked
    run.go(2, 4)
    assert [score.success for score in run.scores] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [score.best for score in run.scores] == [True, True, False]


def test_a_resume_makes_up_for_the_last_evaluation(tmp_path: Path) -> None:
    config = config_of(tmp_path, steps=5)
    first = Run(config, dict.fromkeys(range(6), 0.5))
    first.go(0, 4)  # interrupted in the evaluation after step 5
    resumed = Run(config, dict.fromkeys(range(6), 0.5))
    resumed.go(5, 5)
    assert [score.step for score in resumed.scores] == [5]
    again = Run(config, dict.fromkeys(range(6), 0.5))
    again.go(5, 5)
    assert again.scores == []


def test_a_judge_that_is_away_at_a_resume_ends_nothing(tmp_path: Path) -> None:
    run = Run(config_of(tmp_path), {0: 0.5, 1: 0.5})
    run.go(0, 1)
    run.callback._play = lambda *_, **__: []
    run.go(2, 2)
    assert "held-out evaluation at step 2 failed: 0 of 0" in run.lines[-1]


def test_tasks_are_kept_from_training_where_there_are_no_splits(tmp_path: Path) -> None:
    from agentgym.train.grpo import held_out_of

    config = config_of(tmp_path, env_kwargs={"tasks": 8})
    kept = held_out_of(config)
    assert len(kept.tasks) == 3
    assert held_out_of(config.model_copy(update={"seed": 7})).tasks == kept.tasks
    few = config_of(tmp_path, env_kwargs={"tasks": 3})
    with pytest.raises(ConfigError, match="too few to keep some"):
        held_out_of(few)
    assert held_out_of(config_of(tmp_path, **{"eval.every": None})) is None


def test_split_is_validation_and_must_not_be_the_one_trained_on(tmp_path: Path) -> None:
    from agentgym.train.grpo import held_out_of

    config = config_of(tmp_path, env="agentgym/SupportDesk-v0", **{"eval.tasks": 5})
    kept = held_out_of(config)
    assert kept.env_kwargs["split"] == "validation"
    assert len(kept.tasks) == 5
    same = config.model_copy(update={"env_kwargs": {"split": None}})
    with pytest.raises(
        ConfigError, match=r"held-out tasks are trained on, too.* eval\.env_kwargs$"
    ):
        held_out_of(same)


def test_settings_are_checked() -> None:
    base = {"env": "e", "model": "m", "out": "o"}
    assert read_config({**base, "stop_on": ["no_signal", "gate:truncated"]}).stop_on
    with pytest.raises(ConfigError, match="unknown alarm 'no_signals'; did you mean 'no_signal'"):
        read_config({**base, "stop_on": ["no_signals"]})
    with pytest.raises(ConfigError, match="eval.every"):
        read_config({**base, "eval.every": 0})
    assert read_config({**base, "monitors": {"min_steps": 3}}).monitors.min_steps == 3


def test_a_line_of_the_file_is_one_evaluation(tmp_path: Path) -> None:
    from synthetic_runs import HEALTHY

    score = synthetic_score(HEALTHY, 4)
    (tmp_path / "e.jsonl").write_text(score.model_dump_json() + "\n")
    assert read_scores(tmp_path / "e.jsonl") == [score]
    assert json.loads((tmp_path / "e.jsonl").read_text())["step"] == 4
