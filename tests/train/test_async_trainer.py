"""TRL's asynchronous trainer with our worker, as far as that goes without CUDA.

The worker's process, its queues, the batches and the optimiser step are TRL's own. What stands in:
a server that samples from a table instead of vLLM, and plain attention for the one kernel of the
trainer that needs a GPU.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny_policy

from agentgym.client import Endpoint, TokenPath
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.train.async_worker import EpisodeSettings, EpisodeWorker

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's own
]


class PlainAttention:
    """`flash_attn_varlen_func` in plain torch, for causal attention over packed sequences."""

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *_: Any, **options: Any
    ) -> Any:
        import torch

        out = torch.zeros_like(q)
        heads = q.shape[1] // k.shape[1]
        for n in range(len(starts_q) - 1):
            at_q = slice(int(starts_q[n]), int(starts_q[n + 1]))
            at_k = slice(int(starts_k[n]), int(starts_k[n + 1]))
            keys = k[at_k].repeat_interleave(heads, 1)
            values = v[at_k].repeat_interleave(heads, 1)
            scores = torch.einsum("qhd,khd->hqk", q[at_q], keys) * options["softmax_scale"]
            late = scores.shape[2] - scores.shape[1]  # queries stand at the end of the keys
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(late + 1)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out[at_q] = torch.einsum("hqk,khd->qhd", weights, values)
        return out


class NoTransfer:
    """Weights go nowhere: the table has none."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


def test_trainer_takes_optimiser_steps_on_our_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset
    from trl.experimental.async_grpo import (
        AsyncGRPOConfig,
        AsyncGRPOTrainer,
        async_grpo_trainer,
        packing,
    )

    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1e12)
    monkeypatch.setattr(packing, "_flash_attn", lambda: PlainAttention)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the worker's process: the env
    model = tiny_policy.save_policy(tmp_path / "model")
    tokenizer = tiny_policy.make_tokenizer()
    table = TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 3.0})
    tasks = tuple(f"guess/{n}" for n in range(4))
    with TokenServer(table, tokenizer=tokenizer, max_model_len=96) as server:
        endpoint = Endpoint(
            base_url=server.url, model="policy", tokens=TokenPath(tokenizer=str(model))
        )
        worker = EpisodeWorker(
            EpisodeSettings(
                env=f"tiny_policy:{tiny_policy.ENV_ID}",
                tasks=tasks,
                endpoints=(endpoint,),
                group_size=4,
                concurrency=8,
                max_turn_tokens=8,
            ),
            queue_maxsize=64,
        )
        trainer = AsyncGRPOTrainer(
            str(model),
            args=AsyncGRPOConfig(
                output_dir=str(tmp_path / "out"),
                max_steps=2,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=1,
                num_generations=4,
                token_budget=0,
                dtype="float32",
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                learning_rate=1e-3,
                logging_steps=1,
                save_strategy="steps",
                save_steps=2,
                report_to="none",
            ),
            train_dataset=Dataset.from_dict({"prompt": list(tasks)}),
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=NoTransfer(),
        )
        before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
        trainer.train()
    assert trainer.state.global_step == 2
    after = trainer.model.state_dict()
    assert any((before[name] != after[name]).any() for name in before)
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    assert all(math.isfinite(log["loss"]) for log in logs)
    rewards = [log["reward"] for log in logs]
    assert all(0 <= reward <= 1 for reward in rewards)
    assert any(key.startswith("agentgym/") for log in logs for key in log)
    assert worker._process is None  # it has ended
