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
from aiohttp import web

from agentgym.client import Endpoint, TokenPath
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.train.async_transfer import SyncTransfer
from agentgym.train.async_worker import EpisodeSettings, EpisodeWorker
from agentgym.train.sync import FolderSync

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


class PolicyServer(TokenServer):
    """With vLLM's dev routes; it keeps the weights that it is told to load."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loaded: list[dict[str, Any]] = []
        self.steps: list[str] = []
        self.version = "default"

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/is_paused", self._is_paused)
        for step in ("pause", "collective_rpc", "update_weight_version", "resume"):
            app.router.add_post(f"/{step}", self._step)
        super().add_routes(app)

    async def _info(self, request: web.Request) -> web.Response:
        model = {"dtype": "torch.float32", "logprobs_mode": self.model.mode, "max_model_len": 96}
        return web.json_response({"vllm_config": {"model_config": model}})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _is_paused(self, request: web.Request) -> web.Response:
        moves = [step for step in self.steps if step in ("/pause", "/resume")]
        return web.json_response({"is_paused": moves[-1:] == ["/pause"]})

    async def _step(self, request: web.Request) -> web.Response:
        from safetensors.torch import load_file

        body = await request.json() if request.can_read_body else {}
        self.steps.append(request.path)
        self.version = body.get("new_version", self.version)
        if "kwargs" in body:
            files = Path(body["kwargs"]["weights_path"]).glob("*.safetensors")  # noqa: ASYNC240
            self.loaded.append({k: v for file in files for k, v in load_file(file).items()})
        return web.json_response({"results": [None]})

    async def _reset(self, request: web.Request) -> web.Response:
        self.steps.append(request.path)
        await super()._reset(request)
        return web.json_response({"success": True})


def test_trainer_takes_optimiser_steps_on_our_rows_and_its_weights_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    with PolicyServer(table, tokenizer=tokenizer, max_model_len=96) as server:
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
            weight_transfer=SyncTransfer(FolderSync(tmp_path / "weights"), (endpoint,)),
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
    assert worker._process is None
    assert "did not exit" not in caplog.text  # by itself, though nobody took its last rows
    assert server.steps[:5] == server.steps[-5:]
    assert server.steps[:5] == ["/pause", "/collective_rpc", "/reset_prefix_cache",
                                "/update_weight_version", "/resume"]  # fmt: skip
    first, *_, last = server.loaded
    for name, value in last.items():
        assert (value == after[name]).all(), name
    assert any((first[name] != last[name]).any() for name in first)
