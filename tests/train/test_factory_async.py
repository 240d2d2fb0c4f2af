"""A class of `environment_factory` in the worker of TRL's asynchronous trainer."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from template_zoo import byte_tokenizer

from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.train.factory import environment_factory, task_rows

pytestmark = pytest.mark.filterwarnings("default")  # TRL's own

ENV = "agentgym/WebShop-v0"
ENV_KWARGS: dict[str, Any] = {"difficulty": "tiny", "max_turns": 4}


def test_episodes_are_played_and_rewarded() -> None:
    from accelerate import PartialState
    from datasets import Dataset
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    PartialState(cpu=True)  # TRL's logger asks for it
    tokenizer = byte_tokenizer("qwen2_5")
    rows = task_rows(ENV, ["webshop/human/0"], **ENV_KWARGS)

    def answer(body: dict[str, Any]) -> str:
        turn = tokenizer.decode(body["prompt"]).count("<|im_start|>assistant\n")
        if turn > 2:
            return "Done.<|im_end|>"
        call = json.dumps({"name": "search", "arguments": {"query": f"shirt {turn}"}})
        return f"<tool_call>\n{call}\n</tool_call><|im_end|>"

    rows_out: queue.Queue[Any] = queue.Queue()
    model = TokenModel(len(tokenizer))
    with TokenServer(
        model, tokenizer=tokenizer, script=[answer] * 10_000, max_model_len=None
    ) as server:
        loop = _AsyncRolloutLoop(
            model_name="policy",
            dataset=Dataset.from_list(rows),
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            rollout_buffer=rows_out,
            model_version_value=SimpleNamespace(value=3),
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(),
            metrics_queue=queue.Queue(),
            environment_factory=environment_factory(ENV, **ENV_KWARGS),
            num_generations=2,
            max_inflight_tasks=2,
            vllm_server_url=server.root,
            max_tokens=128,
        )
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            found = [rows_out.get(timeout=60) for _ in range(4)]
        finally:
            loop._loop.call_soon_threadsafe(loop._stop_event.set)
            thread.join(60)
    for row in found:
        roles = [message["role"] for message in row.completion]
        assert roles == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert "[SEP] Page 1" in row.completion[1]["content"]
        assert row.metrics["rewards/WebShop"] == -0.5  # nothing bought: cut short
        assert row.model_version == 3
        assert row.completion_mask.sum() > 0
