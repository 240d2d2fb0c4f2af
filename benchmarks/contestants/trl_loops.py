"""TRL's own tool loops, by token ids against a vLLM server; the second argument says which.

`async`: the loop of its experimental asynchronous trainer's worker, in this process, one rollout a
group. `rounds`: `GRPOTrainer`'s with `environment_factory`: everybody asks, everybody calls tools,
in turn; its own `VLLMClient` sends each round. Both speak to one URL. Neither writes traces.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from contest import Contest, measured
from tokens import make_tokenizer

CONTEST = Contest.from_command_line()


class Environment:
    """One episode, as TRL's loops take it."""

    def reset(self, episode: int, **row: Any) -> None:
        """Start an episode."""
        self._episode, self._turn = episode, 0

    async def look_up(self, query: str) -> str:
        """Look something up.

        Args:
            query: What.
        """
        turn, self._turn = self._turn, self._turn + 1
        return await CONTEST.tool(self._episode, turn)

    def get_reward(self) -> float:
        """Whether every turn was played."""
        return float(self._turn == CONTEST.workload.turns(self._episode) - 1)


def rows() -> list[dict[str, Any]]:
    """A data set with every episode once."""
    return [
        {"prompt": list(CONTEST.workload.opening(number)), "episode": number}
        for number in range(CONTEST.episodes)
    ]


def play_async() -> None:
    """Play all episodes at once in the asynchronous trainer's loop."""
    from accelerate import PartialState
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    PartialState(cpu=True)  # its logger asks for it

    class Loop(_AsyncRolloutLoop):
        def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
            data = rows()
            for number, row in enumerate(data):
                if number == len(data) - 1:  # the loop would begin the data set again
                    self._stop_event.set()
                yield number, row

    tokenizer = make_tokenizer(CONTEST.workload)
    loop = Loop(
        model_name="simulated",
        dataset=rows(),
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        rollout_buffer=queue.Queue(),
        model_version_value=SimpleNamespace(value=0),
        heartbeat_value=SimpleNamespace(value=0.0),
        failed_event=threading.Event(),
        exception_info_queue=queue.Queue(),
        metrics_queue=queue.Queue(),
        environment_factory=Environment,
        num_generations=1,
        max_inflight_tasks=CONTEST.episodes,
        score_queue_maxsize=0,
        vllm_server_url=CONTEST.token_url,
        max_tokens=CONTEST.workload.max_completion,
        request_timeout=3600,
    )
    played: list[int] = []
    one = loop._generate_one

    async def counted(*args: Any, **kwargs: Any) -> Any:
        result = await one(*args, **kwargs)
        played.append(result[3] + 1)
        return result

    loop._generate_one = counted
    with measured(CONTEST):
        loop.run()
    assert len(played) == CONTEST.episodes
    assert sum(played) == CONTEST.turns, (sum(played), CONTEST.turns)


class Finished(Exception):
    """The rollout is over; what follows is training."""


def play_rounds() -> None:
    """Play all episodes in the rounds of `GRPOTrainer`."""
    import torch
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_client import VLLMClient

    tokenizer = make_tokenizer(CONTEST.workload)
    client = VLLMClient(base_url=CONTEST.token_url, connection_timeout=60)
    played: list[int] = []

    class Trainer(GRPOTrainer):
        def _generate_single_turn(
            self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
        ) -> tuple[list[list[int]], list[list[float]]]:
            """What it does with `vllm_mode="server"`, without the weight sync, which needs GPUs."""
            played.append(len(prompt_ids))
            output = client.generate(prompt_ids, max_tokens=CONTEST.workload.max_completion)
            logprobs = [[token[0] for token in sequence] for sequence in output["logprobs"]]
            return output["completion_ids"], logprobs

        def _generate(self, prompts: list[Any]) -> Any:
            super()._generate(prompts)
            raise Finished

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=2**20,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=LlamaForCausalLM(config).to(torch.float32),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=2,
                num_generations=2,
                max_completion_length=2**19,
                report_to="none",
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=Dataset.from_list(rows()),
            processing_class=tokenizer,
            environment_factory=Environment,
        )
        with measured(CONTEST), contextlib.suppress(Finished):
            trainer._generate_and_score_completions(rows())
    assert sum(played) == CONTEST.turns, (sum(played), CONTEST.turns)


if sys.argv[2] == "async":
    play_async()
else:
    play_rounds()
