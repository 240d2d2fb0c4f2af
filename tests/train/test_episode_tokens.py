"""The limit of tokens per episode (F08), from the training config to the episodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_policy
from fake_policy import FakePolicyServer, FakeSync

from agentgym.rollout import EpisodeRequest
from agentgym.tokens.codec import ChatCodec
from agentgym.train.config import SamplingSettings, TrainConfig
from agentgym.train.rollout import Rollout
from agentgym.train.served import ServedPolicy
from agentgym.train.sync import Weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
EPISODE = 5


@pytest.mark.parametrize("limit", [None, EPISODE])
def test_episode_ends_when_its_tokens_are_used_up(limit: int | None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tiny_policy.make_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    codec = ChatCodec(tokenizer, stop_ids=[tokenizer.eos_token_id])
    rollout = Rollout(
        tiny_policy.ENV_ID, env_kwargs={"max_turns": 50}, max_turn_tokens=4,
        max_episode_tokens=limit, seed=0, traces=None, check_every=1, limits=None,
        template_kwargs={}, seeded_sampling=True,
    )  # fmt: skip
    trainer: Any = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
                                   repetition_penalty=1.0,
                                   model=SimpleNamespace(name_or_path=str(tmp_path)))  # fmt: skip
    with FakePolicyServer(tokenizer) as server:
        policy = ServedPolicy([server.root], sync=FakeSync())
        policy.connect(SimpleNamespace(is_main_process=True, num_processes=1))
        policy.push(Weights(None, lambda: ()))
        rollout._codec, rollout._source = codec, policy
        rollout._engine = rollout._new_engine(8, trainer)
        traces = rollout._engine.run_blocking([EpisodeRequest(seed=k) for k in range(8)])
        rollout.close()
    generated = [sum(len(t.completion_ids or ()) for t in trace.turns) for trace in traces]
    if limit is None:
        assert max(generated) > EPISODE
    else:
        assert max(generated) == EPISODE
        for trace, tokens in zip(traces, generated, strict=True):
            assert (trace.truncation_reason == "tokens") == (tokens == EPISODE)


@pytest.mark.e2e
def test_training_config_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentgym.train import grpo

    asked: dict[str, Any] = {}

    def caught(env_id: str, **options: Any) -> None:
        asked.update(options)
        raise InterruptedError

    monkeypatch.setattr(grpo, "rollout_func", caught)
    model = tiny_policy.save_policy(tmp_path / "model")
    limits = SamplingSettings(max_turn_tokens=4, max_episode_tokens=EPISODE, max_context=96)
    config = TrainConfig(env=tiny_policy.ENV_ID, model=str(model), out=tmp_path / "out",
                         sampling=limits)  # fmt: skip
    with pytest.raises(InterruptedError):
        grpo.make_trainer(config)
    assert (asked["max_turn_tokens"], asked["max_episode_tokens"]) == (4, EPISODE)
