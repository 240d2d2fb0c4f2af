"""Two processes train what one would: the same rows, advantages and loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.traces import read_traces
from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import read_config

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]

STEPS = 2
TASKS = 3
GROUP = 4
SCRIPT = Path(__file__).parent / "recorded_run.py"


def settings(model: Path, out: Path, **changes: Any) -> TrainConfig:
    """Three groups of four: the second one has half its rows in each process.

    Nobody can score the first task of either step, which the first process plays alone. The first
    step finds another in its place; what the second step draws, guess/2, can't be scored either.
    """
    return read_config(
        {
            "env": tiny_policy.ENV_ID,
            "env_kwargs": {"unscored": ["guess/3", "guess/5", "guess/2"], "max_turns": 2},
            "model": str(model),
            "out": out,
            "steps": STEPS,
            "seed": 1,
            "tasks_per_step": TASKS,
            "group_size": GROUP,
            "micro_batch": 6,
            "objective.algorithm": "dapo",
            "objective.refill": 1,
            "learning_rate": 1e-3,
            "sampling.max_turn_tokens": 24,
            "sampling.max_context": 128,
            "keep.checkpoints_every": 100,
            "policy.check_every": 1,
            "grpo": {"beta": 0.05},
            **changes,
        }
    )


def run(config: TrainConfig, *, processes: int) -> subprocess.CompletedProcess[str]:
    file = config.out.with_suffix(".json")
    file.write_text(config.model_dump_json())
    launcher = (
        [sys.executable]
        if processes == 1
        else [sys.executable, "-m", "torch.distributed.run", "--standalone",
              f"--nproc_per_node={processes}"]
    )  # fmt: skip
    variables = {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, str(SCRIPT), str(file)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=500,
    )


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Outcome:
    """What a run left in its folder and beside it."""

    def __init__(self, config: TrainConfig, *, processes: int) -> None:
        done = run(config, processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
        ranks = [json_lines(Path(f"{config.out}-rows-{rank}.jsonl")) for rank in range(processes)]
        here = TASKS * GROUP // processes
        self.rows = [
            [row for rank in ranks for row in rank[step * here : (step + 1) * here]]
            for step in range(STEPS)
        ]
        self.metrics = json_lines(config.out / "metrics.jsonl")
        self.out = config.out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    folder = tmp_path_factory.mktemp("processes")
    model = tiny_policy.save_policy(folder / "model")
    one = Outcome(settings(model, folder / "one"), processes=1)
    two = Outcome(settings(model, folder / "two"), processes=2)
    return one, two


def test_two_processes_train_the_rows_of_one(runs: tuple[Outcome, Outcome]) -> None:
    """Tasks, refilled ones too, the ids sampled, rewards and advantages, row by row."""
    one, two = runs
    for alone, together in zip(one.rows, two.rows, strict=True):
        assert len(alone) == TASKS * GROUP
        for row, same in zip(alone, together, strict=True):
            assert {**row, "advantage": 0} == {**same, "advantage": 0}
            assert same["advantage"] == pytest.approx(row["advantage"], abs=1e-6)


def test_group_spread_over_processes_is_compared_whole(runs: tuple[Outcome, Outcome]) -> None:
    """With half a group each, the advantages of each half would sum to 0."""
    _, two = runs
    groups = [rows[GROUP : 2 * GROUP] for rows in two.rows]
    assert all(abs(sum(row["advantage"] for row in group)) < 1e-5 for group in groups)
    halves = [sum(row["advantage"] for row in group[: GROUP // 2]) for group in groups]
    assert max(map(abs, halves)) > 1e-3


def test_masked_rows_of_one_process_leave_the_other_as_it_is(
    runs: tuple[Outcome, Outcome],
) -> None:
    _, two = runs
    replaced, masked = (rows[:GROUP] for rows in two.rows)
    assert {row["task"] for row in replaced} == {"guess/7"}
    assert all(row["reward"] is not None for row in replaced)
    assert all(row["reward"] is None and row["trained"] == [] for row in masked)
    assert all(row["trained"] for row in two.rows[1][GROUP:])
    assert two.metrics[1]["agentgym/refill/groups_played"] == 4


def test_loss_and_counts_are_those_of_one_process(runs: tuple[Outcome, Outcome]) -> None:
    one, two = runs
    assert len(one.metrics) == len(two.metrics) == STEPS  # the second process writes none
    exactly = ["episodes", "groups", "groups_equal", "groups_without_signal", "masked",
               "masked/judge", "reward/max", "reward/mean", "truncated", "refill/groups_kept",
               "refill/groups_played"]  # fmt: skip
    for alone, together in zip(one.metrics, two.metrics, strict=True):
        for name in exactly:
            key = f"agentgym/{name}"
            assert together[key] == pytest.approx(alone[key], rel=1e-5), name
        assert together["reward"] == pytest.approx(alone["reward"])
        for name in ("loss", "grad_norm"):
            assert together[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-5), name
        assert together["sampling/sampling_logp_difference/max"] < 1e-4


def test_only_traces_have_a_file_per_process(runs: tuple[Outcome, Outcome]) -> None:
    one, two = runs
    extra = {path.name for path in two.out.iterdir()} - {path.name for path in one.out.iterdir()}
    assert extra == {f"traces-step{step:06d}-rank1.jsonl" for step in range(STEPS)}
    played = [
        len(list(read_traces(path))) for path in sorted(two.out.glob("traces-step000000*.jsonl"))
    ]
    # With the groups that were left out.
    assert sum(played) == two.metrics[0]["agentgym/refill/groups_played"] * GROUP > TASKS * GROUP
    assert (two.out / "model" / "model.safetensors").exists()


def test_several_processes_need_a_folder_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentgym.cli import main

    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--env", tiny_policy.ENV_ID, "--model", "no/model"]) == 1
    assert "name it with --out" in capsys.readouterr().err
