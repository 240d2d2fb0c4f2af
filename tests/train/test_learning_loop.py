"""Real TRL on real vLLM with a real, tiny Llama."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.errors import ConfigError, TrainingError
from agentgym.trace import Trace
from agentgym.traces import read_traces
from agentgym.train import TrainConfig, make_trainer, train
from agentgym.train.config_reading import read_config
from agentgym.train.grpo import task_order
from agentgym.train.interrupt import stoppable
from agentgym.train.invariant import FLOAT32_TOLERANCE, measure_gap, require_live_weights
from agentgym.train.reward import episode_reward
from agentgym.train.rows import training_row

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]

STEPS = 4
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save_policy(tmp_path_factory.mktemp("model"))


def config_of(model: Path, out: Path, **changes: Any) -> TrainConfig:
    values = {
        "env": tiny_policy.ENV_ID,
        "env_kwargs": {"unscored": ["guess/3"], "max_turns": 4},
        "model": str(model),
        "out": out,
        "steps": STEPS,
        "tasks_per_step": 4,
        "group_size": 4,
        "micro_batch": 8,
        "learning_rate": 1e-2,
        "sampling.max_turn_tokens": 24,
        "sampling.max_context": 96,
        "keep.checkpoints_every": 2,
        "policy.check_every": 1,
        "grpo": {"beta": 0.05},
        **changes,
    }
    return read_config(values)


class Recorded:
    """A finished run, with what TRL was given at every step."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.trainer = make_trainer(config)
        self.batches: list[dict[str, Any]] = []
        self.prompts: list[list[str]] = []
        rollout = self.trainer.rollout_func

        def recording(prompts: list[str], trainer: Any) -> dict[str, Any]:
            batch = rollout(prompts, trainer)
            self.prompts.append(list(prompts))
            self.batches.append(batch)
            return batch

        self.trainer.rollout_func = recording
        self.trainer.train()

    def traces(self, step: int) -> list[Trace]:
        found = read_traces(self.config.out / f"traces-step{step:06d}.jsonl")
        return sorted(found, key=lambda t: (t.group, t.sample))

    def metric(self, name: str) -> list[float]:
        return [logs[name] for logs in self.trainer.state.log_history if name in logs]


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(config_of(model, tmp_path_factory.mktemp("run")))


def test_trained_ids_are_the_sampled_ids(run: Recorded) -> None:
    for step, batch in enumerate(run.batches):
        traces = run.traces(step)
        assert len(traces) == len(batch["prompt_ids"]) == 16
        for i, trace in enumerate(traces):
            row = training_row(trace, filler_id=0)
            assert batch["prompt_ids"][i] == row.prompt_ids
            assert batch["completion_ids"][i] == row.completion_ids
            ids = zip(row.completion_ids, row.env_mask, strict=True)
            sampled = [i for turn in trace.turns for i in turn.completion_ids or ()]
            voted = batch["reward"][i] is not None
            assert [i for i, mask in ids if mask] == (sampled if trace.scored else [])
            assert batch["env_mask"][i] == [m if voted else 0 for m in row.env_mask]


def test_each_prompt_is_one_row_and_each_group_one_task(run: Recorded) -> None:
    for prompts, batch in zip(run.prompts, run.batches, strict=True):
        assert len(batch["completion_ids"]) == len(prompts)
        groups = [set(prompts[i : i + 4]) for i in range(0, len(prompts), 4)]
        assert all(len(group) == 1 for group in groups)
    played = [group for prompts in run.prompts for group in prompts[::4]]
    tasks = [f"guess/{i}" for i in range(8)]
    assert played == task_order(tasks, STEPS * 4, seed=0)


def test_rollouts_of_a_group_share_the_task_and_differ(run: Recorded) -> None:
    traces = run.traces(0)
    group = [t for t in traces if t.group == traces[0].group]
    assert len({t.seed for t in group}) == 1
    assert len({t.turns[0].completion_ids for t in group}) > 1


def test_episodes_of_different_lengths_share_the_batch(run: Recorded) -> None:
    assert len({len(t.turns) for t in run.traces(0)}) > 1


def test_sampler_equals_trainer_after_every_optimiser_step(run: Recorded) -> None:
    gaps = run.metric("sampling/sampling_logp_difference/max")
    assert len(gaps) == STEPS
    assert max(gaps) < FLOAT32_TOLERANCE


def test_context_limit_truncates_before_the_engine_refuses(run: Recorded) -> None:
    assert sum(run.metric("agentgym/truncated/context")) > 0
    assert sum(run.metric("agentgym/masked/infra")) == 0
    for step in range(STEPS):
        for trace in run.traces(step):
            last = trace.turns[-1]
            assert len(last.prompt_ids or ()) + len(last.completion_ids or ()) <= 96


def test_masked_episodes_have_no_reward_no_mask_and_leave_the_loss_finite(run: Recorded) -> None:
    masked = 0
    for prompts, batch in zip(run.prompts, run.batches, strict=True):
        for prompt, reward, mask in zip(prompts, batch["reward"], batch["env_mask"], strict=True):
            if prompt == "guess/3":
                assert reward is None
            assert any(mask) == (reward is not None)
            masked += reward is None
    assert masked > 0
    assert sum(run.metric("agentgym/masked/judge")) == pytest.approx(masked / 16)
    assert all(math.isfinite(loss) for loss in run.metric("loss"))
    assert all(math.isfinite(kl) for kl in run.metric("kl"))


def test_weights_changed_without_a_sync_are_a_breach(run: Recorded) -> None:
    import torch

    trainer, probe = run.trainer, run.batches[0]["prompt_ids"][0]
    trainer.vllm_generation.sync_weights()
    assert not measure_gap(trainer, probe).breached
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1.05)
    with pytest.raises(TrainingError, match="does not sample with the weights that are trained"):
        require_live_weights(trainer, probe)
    trainer.vllm_generation.sync_weights()
    assert require_live_weights(trainer, probe).largest < FLOAT32_TOLERANCE


def test_fixed_sequence_has_the_same_logprobs_on_both_sides(run: Recorded) -> None:
    import torch
    from vllm import SamplingParams

    trainer = run.trainer
    trainer.vllm_generation.sync_weights()
    ids = [*run.batches[0]["prompt_ids"][0], *run.batches[0]["completion_ids"][0]][:64]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = trainer.vllm_generation.llm.generate(
        [{"prompt_token_ids": ids}], params, use_tqdm=False
    )
    theirs = [at[i].logprob for i, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
    tensor = torch.tensor([ids])
    with torch.no_grad():
        ours, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, tensor, torch.ones_like(tensor), len(ids) - 1
        )
    assert (ours[0] - torch.tensor(theirs)).abs().max() < FLOAT32_TOLERANCE


def test_interrupted_run_resumes_with_the_same_tasks_seeds_and_ids(
    run: Recorded, model: Path, tmp_path: Path
) -> None:
    config = config_of(model, tmp_path / "cut")
    trainer = make_trainer(config)
    rollout = trainer.rollout_func
    play = rollout._play

    def cut_in_the_fourth_step(requests: Any, trainer: Any, **how: Any) -> Any:
        if trainer.state.global_step == 3:
            rollout._open_traces(trainer)
            rollout._traces.close()
            raise KeyboardInterrupt
        return play(requests, trainer, **how)

    rollout._play = cut_in_the_fourth_step
    with pytest.raises(KeyboardInterrupt), stoppable(trainer):
        trainer.train()
    assert (config.out / "checkpoint-3").is_dir()
    assert len(list(read_traces(config.out / "traces-step000002.jsonl"))) == 16

    result = train(config, resume=True, progress=False)
    assert result.steps == STEPS
    assert (result.model / "model.safetensors").exists()
    for step in range(STEPS):
        found = sorted(
            read_traces(config.out / f"traces-step{step:06d}.jsonl"),
            key=lambda t: (t.group, t.sample),
        )
        wanted = run.traces(step)
        assert [(t.task_id, t.seed, t.sample) for t in found] == [
            (t.task_id, t.seed, t.sample) for t in wanted
        ]
        assert [t.turns[0].completion_ids for t in found] == [
            t.turns[0].completion_ids for t in wanted
        ]
    with pytest.raises(ConfigError, match="--resume"):
        train(config)
    with pytest.raises(ConfigError, match="another seed"):
        train(config.model_copy(update={"seed": 1}), resume=True)
    longer = train(config.model_copy(update={"steps": STEPS + 1}), resume=True, progress=False)
    (last,) = [each for each in longer.history if each["step"] == STEPS + 1 and "reward" in each]
    assert last["learning_rate"] == pytest.approx(config.learning_rate / (STEPS + 1))
    card = (config.out / "README.md").read_text(encoding="utf-8")
    assert f"fine-tuned version of the model in the local folder `{model.name}`" in card


def test_run_that_cannot_start_writes_nothing(model: Path, tmp_path: Path) -> None:
    values = {**config_of(model, tmp_path / "out").model_dump(), "env_kwargs": {"no_such": 1}}
    with pytest.raises(ConfigError):
        train(read_config(values))
    assert not (tmp_path / "out").exists()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="not a folder to write in"):
        train(config_of(model, file))


def test_reward_function_without_rollouts_says_what_is_missing() -> None:
    with pytest.raises(TrainingError, match="rollout_func"):
        episode_reward(["guess/0"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "agentgym-tests/Gues-v0"}, "Guess"),
        ({"env_kwargs": {"no_such": 1}}, "no_such"),
        ({"model": "no/such/model"}, "no folder 'no/such/model'"),
        ({"model": "./nowhere"}, "no folder './nowhere'"),
        ({"sampling.max_context": 4096}, "more than the 512"),
        ({"sampling.max_context": 16}, "not even one turn"),
        ({"grpo": {"bta": 0.1}}, "did you mean 'beta'"),
        ({"grpo": {"loss_type": "ppo"}}, "loss_type is one of grpo"),
        ({"grpo": {"beta": "much"}}, "beta: .*valid number"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_loaded(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    values = {**config_of(model, tmp_path).model_dump(), **changes}
    with pytest.raises((ConfigError, TrainingError), match=message) as caught:
        make_trainer(read_config(values))
    assert "\n" not in str(caught.value)


# --- processes of their own ---------------------------------------------------------------------


def python(*args: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *args],
        cwd=HERE,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


WITHOUT_THE_MEND = """
import sys, torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32")
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=64)
ids = list(range(4, 40))

def logprobs():
    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    return torch.tensor(
        [at[i].logprob for i, at in zip(ids[1:], output.prompt_logprobs[1:])]
    )

with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(1.5)
    logits = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    wanted = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
live = llm.llm_engine.model_executor.driver_worker.model_runner.model
try:
    live.load_weights(model.named_parameters())
except AttributeError as error:
    print("refused", error)
else:
    print("taken", float((logprobs() - wanted).abs().max()) < 1e-4)
"""


@pytest.mark.parametrize(("disabled", "outcome"), [("0", "taken True"), ("1", None)])
def test_new_weights_take_effect_only_with_the_mend(
    model: Path, disabled: str, outcome: str | None
) -> None:
    """When the second case fails, vLLM has learnt it and `live_weights` can go."""
    process = python(
        "-c", WITHOUT_THE_MEND, str(model),
        AGENTGYM_NO_LIVE_WEIGHTS=disabled, VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )  # fmt: skip
    out, err = process.communicate(timeout=300)
    said = [line for line in out.splitlines() if line.startswith(("taken", "refused"))]
    assert said, err
    assert (said[-1] == outcome) if outcome else (said[-1] != "taken True")


def command(model: Path, out: Path, *settings: str, **variables: str) -> subprocess.Popen[str]:
    """`agentgym train` on the tests' environment."""
    code = "import sys, tiny_policy; from agentgym.cli import main; sys.exit(main())"
    given = ("steps=500", "group_size=4", "tasks_per_step=2", "sampling.max_turn_tokens=8",
             "keep.checkpoints_every=1", *settings)  # fmt: skip
    flags = [flag for setting in given for flag in ("--set", setting)]
    return python("-c", code, "train", "--env", tiny_policy.ENV_ID, "--model", str(model),
                  "--out", str(out), *flags, **variables)  # fmt: skip


def test_training_without_the_mend_stops_with_the_reason(model: Path, tmp_path: Path) -> None:
    process = command(model, tmp_path / "out", AGENTGYM_NO_LIVE_WEIGHTS="1")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "agentgym_live_weights" in err.strip().splitlines()[-1]
    assert "Traceback" not in err


def test_ctrl_c_leaves_traces_and_checkpoint_and_exits_130(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = command(model, out)
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
    checkpoints = sorted(out.glob("checkpoint-*"))
    assert checkpoints
    assert all((folder / "trainer_state.json").exists() for folder in checkpoints)
    assert sum(len(list(read_traces(path))) for path in out.glob("traces-*.jsonl")) >= 24
