"""Whether the purchase is exactly what was asked for: the shop's score for evaluations.

The reward is the original's, which pays for near misses and compares loosely: an "x-large" meets
"large", a product of another kind still earns something. A policy that is trained on it learns to
live on that. Here nothing is loose and nothing is partial, and none of the reward's code is used:
the receipt (which product, which options) is held against the goal, word by word.
"""

from __future__ import annotations

import re
from typing import Any

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.goals import Goal
from agentgym.envs.webshop.products import Product
from agentgym.judge import Score
from agentgym.trace import Trace

_WORD = re.compile(r"(?:(?<![^\W_])[+-](?=\d))?[^\W_]+")
"""Letters and digits of any script; a number's sign belongs to it, as in lenses of +2.00."""


def external_score(env: WebShopEnv, trace: Trace) -> Score:
    """1 if kind, every attribute, every option and the price are right, else 0.

    Args:
        env: Of the same data; its goals and products are looked up.
        trace: Only `task_id`, and of `outcome` the product and the options bought, are read.

    Raises:
        UnknownTaskError: If the task is not in the env's split.
    """
    goal = env.goal_of(trace.task_id or "")
    asin = trace.outcome.get("purchased")
    bought = None
    if asin is not None:
        bought = next((p for p in env.world.shop.catalogue.products if p.asin == asin), None)
    if bought is None:
        return Score(total=0.0, correct=False, completed=False)
    parts = {
        "kind": float(_is_of_kind(bought, goal.product)),
        "attributes": _share([_has(bought, name) for name in goal.attributes]),
        "options": _share(_options_met(goal, trace.outcome.get("options") or {})),
        "price": float(env.world.table.prices[bought.asin] <= goal.price_upper),
    }
    right = all(value == 1.0 for value in parts.values())
    return Score(total=float(right), components=parts, correct=right, completed=True)


def _share(met: list[bool]) -> float:
    """Share of what was asked for; all of nothing is all."""
    return sum(met) / len(met) if met else 1.0


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _is_of_kind(bought: Product, wanted: Product) -> bool:
    """Whether it is the product itself, or stands on the same shelf."""
    if bought.asin == wanted.asin:
        return True
    shelves = [product.product_category.rsplit("›", 1)[-1] for product in (bought, wanted)]
    return bought.query == wanted.query and _words(shelves[0]) == _words(shelves[1])


def _has(product: Product, attribute: str) -> bool:
    """Whether a product is labelled so, or its texts say it in so many words."""
    wanted = _words(attribute)
    if any(_words(own) == wanted for own in product.attributes):
        return True
    texts = (product.title, product.description, *product.bullets)
    return any(_stands_in(wanted, _words(text)) for text in texts)


def _stands_in(phrase: tuple[str, ...], words: tuple[str, ...]) -> bool:
    length = len(phrase)
    starts = range(len(words) - length + 1)
    return any(words[start : start + length] == phrase for start in starts)


def _options_met(goal: Goal, chosen: dict[str, Any]) -> list[bool]:
    """Which of the goal's options were chosen: the value itself, in its group if it has one."""
    values = {group: _words(str(value)) for group, value in chosen.items()}
    return [
        _words(option) in values.values()
        if isinstance(option, str)
        else values.get(option[0]) == _words(option[1])
        for option in goal.options
    ]
