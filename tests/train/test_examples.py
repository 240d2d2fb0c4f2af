from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentgym.train.config_reading import load_config
from agentgym.train.tiny.learning import learning_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_training_file_is_valid() -> None:
    config = load_config(EXAMPLES / "train_webshop.toml", model="m", out=Path("o"))
    assert config.env == "agentgym/WebShop-v0"
    assert config.accumulation_steps(1) == 16


def test_demo_as_a_file_is_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(EXAMPLES.parent)  # where its header says it is for
    config = load_config(EXAMPLES / "train_demo.toml", out=tmp_path)
    model = Path(config.model).resolve()
    assert config.model_copy(update={"model": str(model)}) == learning_config(tmp_path)


@pytest.mark.e2e
@pytest.mark.filterwarnings("default")
def test_own_trainer_trains(tmp_path: Path) -> None:
    from agentgym.train.tiny.demonstrations import closed_vocabulary
    from agentgym.train.tiny.model import new_model, save_policy
    from agentgym.train.tiny.tokenizer import make_tokenizer

    tokenizer = make_tokenizer(closed_vocabulary())
    save_policy(new_model(tokenizer, seed=0), tokenizer, tmp_path / "model")
    spec = importlib.util.spec_from_file_location("own_trainer", EXAMPLES / "own_trainer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trainer = module.main(str(tmp_path / "model"), steps=2, out=str(tmp_path / "out"))
    assert trainer.state.global_step == 2
    gaps = [
        logs["sampling/sampling_logp_difference/max"]
        for logs in trainer.state.log_history
        if "sampling/sampling_logp_difference/max" in logs
    ]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4
