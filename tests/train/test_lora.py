"""Training an adapter: refused where it can't be, and for real on colocated vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.cli import main
from agentgym.errors import ConfigError
from agentgym.traces import read_traces
from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import read_config
from agentgym.train.lora import LoraSettings, check_lora, merge_adapter

RANK = 8


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 0}, r"lora\.rank: .*greater than or equal to 1, got 0"),
        ({"rnk": 8}, r"lora\.rnk"),
        ({"alpha": -1}, r"lora\.alpha"),
        ({"quantize": "8bit"}, r"lora\.quantize: .*'4bit'"),
    ],
)
def test_setting_that_cannot_be_is_one_line(lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_config({"env": "e", "model": "m", "out": "o", "lora": lora})
    assert "\n" not in str(caught.value)


def test_adapter_as_the_model_names_its_base_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base/model"}')
    with pytest.raises(ConfigError, match="adapter of 'base/model'.*merge"):
        check_lora(str(tmp_path), None)


def test_folder_without_an_adapter_cannot_be_merged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only a run with lora leaves one"):
        merge_adapter(tmp_path, tmp_path / "merged")


@pytest.mark.filterwarnings("default")  # torch's own
def test_layer_that_the_model_has_not_is_named_before_it_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = str(tiny_policy.save_policy(tmp_path))
    check_lora(model, LoraSettings(targets=["q_proj", "mlp.up_proj"]))
    with pytest.raises(ConfigError, match=r"lora\.targets: unknown layer 'qproj'; .*'q_proj'"):
        check_lora(model, LoraSettings(targets=["v_proj", "qproj"]))
    with pytest.raises(ConfigError, match="unknown layer 'lm_head'"):
        check_lora(model, LoraSettings(targets=["lm_head"]))


e2e = pytest.mark.e2e
real = pytest.mark.filterwarnings("default")  # TRL's, vLLM's and torch's own


@e2e
@real
def test_quantized_weights_without_cuda_are_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        check_lora("m", LoraSettings(quantize="4bit"))


def values(model: Path, out: Path) -> dict[str, Any]:
    return {
        "env": tiny_policy.ENV_ID,
        "env_kwargs": {"max_turns": 2},
        "model": str(model),
        "out": str(out),
        "steps": 2,
        "tasks_per_step": 2,
        "group_size": 4,
        "learning_rate": 1e-2,
        "sampling.max_turn_tokens": 16,
        "sampling.max_context": 128,
        "keep.checkpoints_every": 1,
        "policy.check_every": 1,
        "objective.truncated": {"turns": "floor"},
        "lora": {"rank": RANK, "alpha": 16.0},
        "grpo": {"beta": 0.05},
    }


class Run:
    """One run of the command, two steps with a checkpoint after each."""

    def __init__(self, folder: Path) -> None:
        self.model = tiny_policy.save_policy(folder / "model")
        self.out = folder / "out"
        config = folder / "config.json"
        config.write_text(json.dumps(values(self.model, self.out)))
        self.status = main(["train", "--config", str(config), "--merge", "--quiet"])
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        self.metrics = [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("lora"))


@e2e
@real
def test_sampler_has_the_merged_weights_after_every_step(run: Run) -> None:
    """A sampler that kept the base weights would be off by about the KL, 0.02."""
    assert run.status == 0
    assert [m["sampling/sampling_logp_difference/max"] < 1e-4 for m in run.metrics] == [True] * 2
    assert run.metrics[0]["kl"] == pytest.approx(0, abs=1e-9)  # a new adapter adds nothing
    assert run.metrics[1]["kl"] > 1e-3


@e2e
@real
def test_importance_ratios_arrive_in_the_metrics(run: Run) -> None:
    for metrics in run.metrics:
        for name in ("min", "mean", "max"):
            ratio = metrics[f"sampling/importance_sampling_ratio/{name}"]
            assert ratio == pytest.approx(1, abs=1e-3)
        assert metrics["sampling/importance_sampling_ratio/dropped"] == 0.0


@e2e
@real
def test_truncated_episodes_are_trained_on_at_the_floor_of_the_range(run: Run) -> None:
    """The trace keeps what the judge said; the trainer got -1."""
    traces = list(read_traces(run.out / "traces-step000000.jsonl"))
    cut = [t for t in traces if t.truncated]
    assert 0 < len(cut) < len(traces)
    assert min(t.reward or 0.0 for t in traces) >= 0.0
    rewards = [-1.0 if t.truncated else t.reward or 0.0 for t in traces]
    assert run.metrics[0]["reward"] == pytest.approx(sum(rewards) / len(rewards))


@e2e
@real
def test_run_leaves_the_adapter_and_the_merged_model(run: Run) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    adapter = run.out / "model"
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == RANK
    assert not (adapter / "model.safetensors").exists()
    ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        beside = AutoPeftModelForCausalLM.from_pretrained(str(adapter))(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(str(run.out / "merged"))(ids).logits
        base = AutoModelForCausalLM.from_pretrained(str(run.model))(ids).logits
    assert (merged - beside).abs().max() < 1e-5
    assert (merged - base).abs().max() > 1e-2


@e2e
@real
def test_interrupted_run_resumes_to_the_same_adapter(run: Run, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file

    out = tmp_path / "out"
    shutil.copytree(run.out / "checkpoint-1", out / "checkpoint-1")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(values(run.model, out)))
    assert main(["train", "--config", str(config), "--resume", "--out", str(out), "--quiet"]) == 0
    wanted = load_file(run.out / "model" / "adapter_model.safetensors")
    found = load_file(out / "model" / "adapter_model.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() < 1e-5, name


@e2e
@real
def test_resume_with_another_rank_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = ["train", "--out", str(run.out), "--resume", "--set", "lora.rank=4", "--quiet"]
    assert main(other) == 1
    assert "can't resume" in (said := capsys.readouterr().err)
    assert f"'rank': {RANK}" in said


@e2e
@real
def test_merging_without_an_adapter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", tiny_policy.ENV_ID, "--model", "m", "--merge"]
    assert main(["train", *flags]) == 1
    assert "--merge is for runs with lora" in capsys.readouterr().err


def test_config_names_the_adapter(tmp_path: Path) -> None:
    config = read_config(values(tmp_path, tmp_path / "out"))
    assert config.lora == LoraSettings(rank=RANK, alpha=16.0)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
