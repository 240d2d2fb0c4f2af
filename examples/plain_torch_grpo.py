"""GRPO in plain torch on an agentgym environment: no TRL, no trainer class.

    python examples/plain_torch_grpo.py [MODEL]

The engine plays episodes on a vLLM in this process, `agentgym.train.batches` lays them out as numpy
arrays, and one function below is the whole training step. MODEL is a folder; the default is the
small policy that comes with the package, which gets visibly better at a few tasks in under a minute
on a CPU.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.client import SamplingParams
from agentgym.rollout import Engine, Limits
from agentgym.tokens.codec import ChatCodec
from agentgym.train.batches import PaddedBatch, group_requests, padded
from agentgym.train.colocated import ColocatedClient
from agentgym.train.tiny.demonstrations import ENV_ID, ENV_KWARGS  # the demo's small shop
from agentgym.train.tiny.learning import WARM_START  # the demo's small policy

CONTEXT, CLIP, MICRO_BATCH = 512, 0.2, 32


def sampler(folder: str) -> Any:
    """A vLLM engine in this process, with what a CPU needs (see agentgym.train.live_weights)."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM

    return LLM(
        folder,
        dtype="float32",
        max_model_len=CONTEXT,
        logprobs_mode="processed_logprobs",
        enforce_eager=True,
        enable_chunked_prefill=False,
        max_num_batched_tokens=4 * CONTEXT,
        block_size=32,
    )


def sync(model: Any, llm: Any) -> None:
    """Give the sampler the trainer's weights, and make it forget what it computed with the old."""
    sampled_from = llm.llm_engine.model_executor.driver_worker.model_runner.model
    sampled_from.load_weights(model.state_dict().items())
    assert llm.reset_prefix_cache()


def step(model: Any, optimizer: torch.optim.Optimizer, batch: PaddedBatch) -> float:
    """One GRPO step: the clipped ratio times the advantage, averaged over the sampled tokens.

    Returns:
        The largest difference between the trainer's log-probabilities and the sampler's.
    """
    mask = torch.from_numpy(batch.mask[:, 1:])
    old = torch.from_numpy(batch.logprobs[:, 1:])
    worth = torch.from_numpy(batch.advantages()).float()[:, None]
    count = mask.sum().clamp(min=1)  # where all episodes are masked there is nothing to learn
    gap = 0.0
    for rows in torch.arange(len(mask)).split(MICRO_BATCH):
        ids = torch.from_numpy(batch.ids)[rows]
        there = torch.from_numpy(batch.attention_mask)[rows].long()
        logits = model(ids, attention_mask=there).logits[:, :-1]
        new = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        change = (new - old[rows]) * mask[rows]
        gap = max(gap, float(change.detach().abs().max()))
        ratio = torch.exp(change)
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gain = torch.minimum(ratio * worth[rows], clipped * worth[rows])
        (-(gain * mask[rows]).sum() / count).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return gap


def main(folder: str = str(WARM_START), *, steps: int = 12, tasks: int = 4) -> list[float]:
    """Train on a few tasks, over and over.

    Returns:
        The share of each step's episodes that solved their task.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    llm = sampler(folder)
    codec = ChatCodec(tokenizer, stop_ids=[tokenizer.eos_token_id])
    engine = Engine(
        ENV_ID,
        env_kwargs={**ENV_KWARGS, "split": "train"},
        client=ColocatedClient(llm.llm_engine, codec=codec, max_context=CONTEXT),
        sampling=SamplingParams(temperature=1.0, max_tokens=12),
        limits=Limits(concurrency=256, init_concurrency=64, eval_concurrency=256),
    )
    shop: Any = gymnasium.make(ENV_ID, **ENV_KWARGS, split="train").unwrapped
    names = shop.task_ids()[:tasks]
    solved = []
    for number in range(steps):
        traces = engine.run_blocking(group_requests(names, group_size=16, seed=number))
        batch = padded(traces, pad_id=tokenizer.pad_token_id)
        gap = step(model, optimizer, batch)
        sync(model, llm)
        solved.append(float(np.mean([bool(trace.verdict.correct) for trace in traces])))
        reward = np.nanmean(batch.rewards)
        print(f"step {number:2}: solved {solved[-1]:.0%}, reward {reward:.2f}, gap {gap:.0e}")
    engine.close()
    return solved


if __name__ == "__main__":
    main(*sys.argv[1:])
