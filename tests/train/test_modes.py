"""A trainer whose policy is on a real vLLM server, asked directly and through a real service.

The tests of `direct` come first: once another run has brought weights the server is no longer its.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
from datasets import Dataset
from policy_server import RANK, SERVED_NAME
from service_process import ServiceProcess, free_port
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentgym.client import Endpoint
from agentgym.trace import Trace
from agentgym.traces import read_traces
from agentgym.train import TrainConfig, make_trainer
from agentgym.train.config_reading import read_config
from agentgym.train.evaluation import evaluate
from agentgym.train.invariant import FLOAT32_TOLERANCE, measure_gap
from agentgym.train.policy_source import policy_source_of
from agentgym.train.reward import episode_reward
from agentgym.train.rollout import rollout_func
from agentgym.train.served import ServedPolicy
from agentgym.train.sync import FolderSync, Weights

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]

HERE = Path(__file__).parent
STEPS = 2
CONTEXT = 96
"""Of the episodes; the server has more."""


@pytest.fixture(scope="module")
def model(tied_policy: Path) -> Path:
    return tied_policy


@pytest.fixture(scope="module")
def server(live_server: str) -> str:
    return live_server


def config_of(model: Path, out: Path, **changes: Any) -> TrainConfig:
    values = {
        "env": f"tiny_policy:{tiny_policy.ENV_ID}",
        "env_kwargs": {"max_turns": 4},
        "model": str(model),
        "out": out,
        "steps": STEPS,
        "tasks_per_step": 4,
        "group_size": 4,
        "micro_batch": 8,
        "learning_rate": 1e-2,
        "sampling.max_turn_tokens": 24,
        "sampling.max_context": CONTEXT,
        "policy.check_every": 1,
        **changes,
    }
    return read_config(values)


def said_in(traces: list[Trace]) -> list[Any]:
    """Tasks, seeds, rewards and ids."""
    return [
        (t.task_id, t.seed, t.reward, [(turn.prompt_ids, turn.completion_ids) for turn in t.turns])
        for t in traces
    ]


class Run:
    """Two training steps."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.trainer = make_trainer(config)
        self.trainer.train()

    def traces(self, step: int) -> list[Trace]:
        found = read_traces(self.config.out / f"traces-step{step:06d}.jsonl")
        return sorted(found, key=lambda t: (t.group, t.sample))

    def said(self) -> list[Any]:
        """Ids and rewards of every episode."""
        return [said_in(self.traces(step)) for step in range(STEPS)]

    def metric(self, name: str) -> list[float]:
        return [logs[name] for logs in self.trainer.state.log_history if name in logs]


def served(server: str, folder: Path) -> dict[str, Any]:
    return {"policy.servers": [server], "policy.sync_folder": folder / "weights"}


@pytest.fixture(scope="module")
def direct(model: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    out = tmp_path_factory.mktemp("direct")
    run = Run(config_of(model, out, **served(server, out)))
    yield run
    run.trainer.rollout_func.close()


def test_server_has_the_trainers_weights_after_every_sync(direct: Run) -> None:
    gaps = direct.metric("sampling/sampling_logp_difference/max")
    assert len(gaps) == STEPS
    assert max(gaps) < FLOAT32_TOLERANCE
    source = policy_source_of(direct.trainer)
    assert isinstance(source, ServedPolicy)
    assert [len(report.servers) for report in source.reports] == [1] * STEPS
    probe = direct.traces(0)[0].turns[0].prompt_ids or ()
    assert measure_gap(direct.trainer, probe).breached  # the last step is not there yet
    direct.trainer.vllm_generation.sync_weights()
    gap = measure_gap(direct.trainer, probe)
    assert gap.largest < FLOAT32_TOLERANCE
    assert gap.replica is not None


def test_importance_correction_stays_on(direct: Run) -> None:
    assert direct.trainer.use_vllm
    ratios = direct.metric("sampling/importance_sampling_ratio/mean")
    assert ratios == pytest.approx([1.0] * STEPS, abs=1e-3)


def test_traces_say_which_weights_answered(direct: Run) -> None:
    for step in range(STEPS):
        turns = [turn for trace in direct.traces(step) for turn in trace.turns]
        assert {turn.weight_version for turn in turns} == {str(step)}
        assert all(turn.replica and turn.completion_ids and turn.logprobs for turn in turns)


def test_evaluation_asks_the_same_servers(direct: Run) -> None:
    played = evaluate(direct.trainer, direct.config.env, tasks=["guess/0", "guess/1"], samples=2)
    assert len(played) == 4
    turns = [turn for trace in played for turn in trace.turns]
    assert all(turn.replica and turn.weight_version == str(STEPS) for turn in turns)


def test_server_samples_what_the_colocated_engine_does(
    direct: Run, model: Path, tmp_path: Path
) -> None:
    assert Run(config_of(model, tmp_path)).said() == direct.said()


def test_service_plays_the_same_episodes(
    direct: Run, model: Path, server: str, tmp_path: Path
) -> None:
    flags = ["--env", direct.config.env, "--allow-tokenizer", str(model)]
    path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with ServiceProcess(tmp_path, *flags, env={"PYTHONPATH": path}) as service:
        config = config_of(
            model, tmp_path / "out", **{"policy.service": service.url}, **served(server, tmp_path)
        )
        run = Run(config)
    assert run.said() == direct.said()
    assert max(run.metric("sampling/sampling_logp_difference/max")) < FLOAT32_TOLERANCE
    assert {t.turns[0].weight_version for t in run.traces(1)} == {"1"}


def test_adapter_is_served_under_the_name_of_its_version(
    model: Path, server: str, tmp_path: Path
) -> None:
    base = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    folder = FolderSync(tmp_path / "base")  # other tests have left other weights there
    folder.check([Endpoint(base_url=f"{server}/v1", model=SERVED_NAME)])
    pause = urllib.request.Request(f"{server}/pause?mode=wait", method="POST")
    urllib.request.urlopen(pause, timeout=30).close()  # as a killed run leaves it
    folder.push(Weights(base, base.named_parameters), version="base")
    lora = {"rank": RANK, "alpha": 16}
    run = Run(
        config_of(
            model, tmp_path / "out", lora=lora, **{"policy.sync": "lora"}, learning_rate=0.05,
            **served(server, tmp_path),
        )
    )  # fmt: skip
    source = policy_source_of(run.trainer)
    assert isinstance(source, ServedPolicy)
    names = [report.model for report in source.reports]
    assert len(set(names)) == STEPS
    assert max(run.metric("sampling/sampling_logp_difference/max")) < FLOAT32_TOLERANCE
    probe = run.traces(0)[0].turns[0].prompt_ids or ()
    assert measure_gap(run.trainer, probe).breached  # the last step is not there yet
    run.trainer.vllm_generation.sync_weights()
    assert measure_gap(run.trainer, probe).largest < FLOAT32_TOLERANCE
    run.trainer.rollout_func.close()


def test_trainer_of_ones_own_has_its_policy_on_servers(
    model: Path, server: str, tmp_path: Path
) -> None:
    args = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8, num_generations=4,
        use_vllm=True, vllm_mode="server", use_cpu=True, bf16=False, report_to="none",
        model_init_kwargs={"dtype": "float32"}, shuffle_dataset=False, logging_steps=1,
    )  # fmt: skip
    rollout = rollout_func(tiny_policy.ENV_ID, max_turn_tokens=8, check_every=1)
    policy = ServedPolicy([server], sync=FolderSync(tmp_path / "weights"))
    with policy.building_trainer():
        trainer = GRPOTrainer(
            model=str(model),
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["guess/0", "guess/1"]}),
            reward_funcs=episode_reward,
            rollout_func=rollout,
        )
    trainer.train()
    assert trainer.state.global_step == 1
    assert len(policy.reports) == 1
    rollout.close()
    assert not list((tmp_path / "weights").iterdir())


def test_two_processes_play_the_rows_of_one_and_the_first_brings_the_weights(
    direct: Run, model: Path, server: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = config_of(model, out, **served(server, tmp_path)).model_dump(mode="json")
    file = tmp_path / "train.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
            *("--master_port", str(free_port()), "-m", "agentgym"),
            *("train", "--config", str(file), "--out", str(out), "--quiet"),
        ],
        cwd=HERE,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for step in range(STEPS):
        found = [
            trace
            for rank in ("", "-rank1")
            for trace in read_traces(out / f"traces-step{step:06d}{rank}.jsonl")
        ]
        assert len(found) == 16
        found.sort(key=lambda t: (t.group, t.sample))
        assert said_in(found) == said_in(direct.traces(step))


def test_ctrl_c_leaves_nothing_running_on_the_server(
    direct: Run, model: Path, server: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "agentgym", "train", "--env", direct.config.env),
        *("--model", str(model), "--out", str(out), "--policy-server", server),
        *("--sync-folder", str(tmp_path / "weights")),
    ]
    for setting in (
        *("steps=500", "group_size=4", "tasks_per_step=2", "sampling.max_turn_tokens=8"),
        f"sampling.max_context={CONTEXT}",
    ):
        command += ["--set", setting]
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = []
    with process:
        for line in process.stderr:
            seen.append(line)
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, "".join(seen) + rest
    assert "--resume" in rest
    assert "Traceback" not in rest
    assert list(out.glob("checkpoint-*"))
    assert not list((tmp_path / "weights").iterdir())
    with urllib.request.urlopen(f"{server}/metrics", timeout=10) as answer:
        told = [line for line in answer.read().decode().splitlines() if "num_requests_r" in line]
    running = [float(line.split()[-1]) for line in told if line.startswith("vllm:")]
    assert running
    assert sum(running) == 0
