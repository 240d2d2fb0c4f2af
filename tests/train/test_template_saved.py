"""A chat template that was swapped for training goes with the model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_policy
from template_zoo import byte_tokenizer, stop_ids, template_text

from agentgym.train import rollout

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_the_trainers_tokenizer_gets_the_template_that_is_trained_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer("qwen3")
    source = SimpleNamespace(check=lambda codec, probe: None)
    monkeypatch.setattr(rollout, "policy_source_of", lambda trainer: source)
    trainer = SimpleNamespace(
        reward_func_names=["episode_reward"],
        processing_class=tokenizer,
        eos_token_ids=stop_ids(tokenizer, "qwen3"),
        train_dataset={"prompt": ["guess/0"]},
    )
    rollout.rollout_func(tiny_policy.ENV_ID)._prepare(trainer)
    assert tokenizer.chat_template == template_text("qwen3", training=True)
