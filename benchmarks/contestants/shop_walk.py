"""WebShop visits of given lengths, in tools that take their time.

The policy is scripted: what a request samples follows from its prompt, so that every loop plays
the same episodes with the same tokens, whatever the model's weights. The model computes all the
same; only its choice is taken from it, by a logits processor inside vLLM.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.train.invariant import PROBE_TOKENS
from agentgym.types import Message, Task

ENV_ID = "agentgym-benchmarks/ShopWalk-v0"
MOST_TURNS = 12
_PRODUCT = re.compile(r"\[SEP\] ([A-Z0-9]{10}) \[SEP\]")
_ASSISTANT = "<|im_start|>assistant\n"


def draw(*parts: Any) -> random.Random:
    """A generator that depends on the parts alone."""
    return random.Random(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())


class ShopWalkEnv(WebShopEnv):
    """WebShop whose tools take a log-normal time, and where text ends the visit.

    Args:
        latency_s: Median of the tools' latency, seconds; 0 for none at all.
        spread: Standard deviation of its logarithm.
        **kwargs: WebShop's.
    """

    visits: ClassVar[Counter[str]] = Counter()
    """Visits so far by task: each loop draws the same latencies for the k-th of a task."""

    def __init__(self, *, latency_s: float = 0.0, spread: float = 1.0, **kwargs: Any) -> None:
        self._latency_s, self._spread = latency_s, spread
        self._luck = random.Random()
        super().__init__(**kwargs)

    async def start(self, task: Task) -> Sequence[Message]:
        """Open the shop."""
        self._luck = draw(task.task_id, self.visits[task.task_id])
        self.visits[task.task_id] += 1
        return await super().start(task)

    async def search(self, query: str) -> str:
        """Search the shop.

        Args:
            query: Words to look for.
        """
        await self._wait()
        return super().search(query)

    async def click(self, target: str) -> str:
        """Click something on the current page.

        Args:
            target: What to click.
        """
        await self._wait()
        return super().click(target)

    async def _wait(self) -> None:
        if self._latency_s:
            await asyncio.sleep(self._latency_s * math.exp(self._spread * self._luck.gauss(0, 1)))

    def parse_text(self, text: str) -> None:
        """Text calls nothing: it is the answer."""
        return


class ScriptedPolicy(LogitsProcessor):
    """Has every request sample what the script says next; nothing happens until `use`."""

    tokenizer: ClassVar[Any] = None
    mode: ClassVar[str] = "buy"
    _written: ClassVar[dict[str, list[int]]] = {}

    @classmethod
    def use(cls, tokenizer: Any, mode: str) -> None:
        """Follow a script from now on.

        Args:
            tokenizer: The model's.
            mode: `buy`: search, open, buy. `walk`: 1 to 12 turns of searching, the last a text.
        """
        cls.tokenizer, cls.mode = tokenizer, mode

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._running: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """No: it decides."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take in new requests."""
        process_dict_updates(self._running, batch_update, self._script)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one choice per scripted row."""
        if not self._running:
            return logits
        rows = list(self._running)
        chosen = [script[min(len(out), len(script) - 1)] for script, out in self._running.values()]
        at = torch.tensor([rows, chosen], device=self._device)
        logits[at[0]] = -torch.inf
        logits[at[0], at[1]] = 0.0
        return logits

    def _script(
        self, params: Any, prompt: list[int] | None, output: list[int]
    ) -> tuple[list[int], list[int]] | None:
        if self.tokenizer is None or prompt is None or params.max_tokens <= PROBE_TOKENS:
            return None  # whoever looks whether vLLM has the trainer's weights
        text = message_after(self.tokenizer.decode(prompt), self.mode)
        ids = self._written.get(text)
        if ids is None:
            ids = self.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
            self._written[text] = ids
        return ids, output


def turns_of(instruction: str) -> int:
    """How many turns a walk takes: log-normal with median 3.1, between 1 and 12."""
    drawn = 3.1 * math.exp(0.75 * draw(instruction).gauss(0, 1))
    return min(MOST_TURNS, max(1, round(drawn)))


def message_after(prompt: str, mode: str) -> str:
    """What the scripted policy says next in a conversation.

    Args:
        prompt: The conversation as the template renders it, up to where the assistant starts.
        mode: See `ScriptedPolicy.use`.
    """
    turn = prompt.count(_ASSISTANT) - 1
    instruction = prompt.partition("Instruction: [SEP] ")[2].partition(" [SEP]")[0]
    words = instruction.split()
    if mode == "walk":
        if turn + 1 >= turns_of(instruction):
            return "I found nothing that fits."
        at = turn % max(1, len(words) - 3)
        return _call("search", {"query": " ".join(words[at : at + 3])})
    if turn == 0:
        return _call("search", {"query": " ".join(words[-8:-4])})
    shown = prompt.rpartition("<tool_response>")[2]
    if turn == 1 and (found := _PRODUCT.search(shown)):
        return _call("click", {"target": found[1].lower()})
    if turn == 2:
        return _call("click", {"target": "buy now"})
    return "Done."


def _call(tool: str, arguments: Mapping[str, str]) -> str:
    given = json.dumps(arguments)
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {given}}}\n</tool_call>'
