"""The shop of the tiny policy, and scripted episodes in it as token ids."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.goals import PRICE_BOUNDS
from agentgym.envs.webshop.index import MAX_HITS
from agentgym.train.tiny.shopper import Shopper, Slips
from agentgym.train.tiny.tokenizer import PHRASES

ENV_ID = "agentgym/WebShop-v0"
ENV_KWARGS: dict[str, Any] = {
    "difficulty": "tiny",
    "num_products": 240,
    "page_size": 4,
    "prompt": "",
    "invalid_action": "silent",
    "max_turns": 6,
}
"""The environment the tiny policy is made for; only the split is left to choose."""


def make_shop(split: str | None = "train") -> Any:
    """The tiny policy's environment, unwrapped."""
    return gymnasium.make(ENV_ID, split=split, **ENV_KWARGS).unwrapped


def closed_vocabulary() -> Iterator[str]:
    """Texts that hold every word the policy can read or has to write.

    Pages of every product are in it, and the instructions of all splits: what the words are is
    known beforehand, what they are for is learned from the training split.
    """
    world = make_shop(None).world
    for goal in world.table.goals:
        yield pages.write_text(pages.start_page(goal.instruction))
    for product in world.shop.catalogue.products:
        yield pages.write_text(pages.item_page("", product, show_attrs=False))
        yield pages.write_text(pages.results_page("", number=2, total=1, shown=[product]))
        for tab in pages.SUB_PAGES[:3]:
            yield pages.write_text(pages.sub_page("", product, tab))
    pages_of_hits = -(-MAX_HITS // ENV_KWARGS["page_size"])
    for number in range(1, pages_of_hits + 2):
        yield f"Page {number}"
    for total in range(MAX_HITS + 1):
        yield f"(Total results: {total})"
    for bound in PRICE_BOUNDS[:20]:
        yield f"{bound:.2f} dollars"
    yield from PHRASES
    yield "search[ ] click[ ] description features reviews"


@dataclass(frozen=True)
class Demonstration:
    """One scripted episode as ids.

    Attributes:
        ids: The whole conversation, shape ``(T,)``.
        mask: 1 on the shopper's ids, which are to be learned, shape ``(T,)``.
        solved: Whether the shopper got it all right.
    """

    ids: list[int]
    mask: list[int]
    solved: bool


class Demonstrator:
    """Makes scripted episodes of training tasks.

    Args:
        tokenizer: The policy's.
        slips: How often the shopper gets it right.
        seed: Fixes everything.
    """

    def __init__(self, tokenizer: Any, *, slips: Slips | None = None, seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._slips = slips or Slips()
        self._env = make_shop("train")
        self._tasks = self._env.task_ids()
        self._rng = random.Random(seed)
        self._known: dict[str, list[int]] = {}

    def draw(self) -> Demonstration:
        """One more episode, of a random training task."""
        shopper = Shopper(self._rng, self._slips)
        task = self._rng.choice(self._tasks)
        messages, _ = self._env.reset(options={"task_id": task})
        ids: list[int] = []
        mask: list[int] = []
        ended = False
        info: dict[str, Any] = {}
        while not ended:
            read = self._encode(f"<|user|>{messages[-1]['content']}<|end|><|assistant|>")
            action = shopper(messages[-1]["content"])
            written = self._encode(f"{action}<|end|>")
            ids += read + written
            mask += [0] * len(read) + [1] * len(written)
            messages, _, terminated, truncated, info = self._env.step(action)
            ended = terminated or truncated
        return Demonstration(ids, mask, info["verdict"].correct is True)

    def _encode(self, text: str) -> list[int]:
        ids = self._known.get(text)
        if ids is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if len(self._known) < 100_000:
                self._known[text] = ids
        return ids
