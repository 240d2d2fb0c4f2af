"""Policies without a model: yardsticks for a score, and a first look at the environment.

Each is a callable ``policy(messages, info) -> action`` without memory of its own: what it does
follows from the conversation and ``info``, so one object serves any number of episodes at once.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from agentgym.client import SamplingParams
from agentgym.envs.webshop import pages
from agentgym.envs.webshop.env import WebShopEnv, read_action
from agentgym.envs.webshop.fuzzy import is_match
from agentgym.envs.webshop.goals import Goal
from agentgym.envs.webshop.reward import normalize_color
from agentgym.types import Action, Message

Policy: TypeAlias = Callable[[Sequence[Message], Mapping[str, Any]], Action]

_BUY = pages.BUY_NOW.lower()
_BACK = pages.BACK_TO_SEARCH.lower()
_NEXT = pages.NEXT_PAGE.lower()
_BUTTONS = frozenset(
    name.lower()
    for name in (
        *pages.SUB_PAGES,
        pages.BUY_NOW,
        pages.BACK_TO_SEARCH,
        pages.NEXT_PAGE,
        pages.PREVIOUS_PAGE,
        pages.SEARCH,
    )
)
_INSTRUCTION = re.compile(
    r"WebShop(?: \[SEP\] |\n)Instruction: ?(?:\[SEP\] |\n)(.*?)(?: \[SEP\] |\n\[button\] )Search",
    re.DOTALL,
)


def write_action(name: str, argument: str) -> Action:
    """Write an action as text, or as a tool call where the text would be read differently."""
    text = f"{name}[{argument}]"
    if read_action(text) == (name, argument):
        return text
    key = {"search": "query", "click": "target"}[name]
    function = {"name": name, "arguments": json.dumps({key: argument})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def instruction_in(messages: Sequence[Message]) -> str:
    """Read the instruction from the first page of a conversation."""
    for message in messages:
        found = _INSTRUCTION.search(message.get("content") or "")
        if message.get("role") == "user" and found:
            return found[1]
    return ""


def _links(clickables: Sequence[str]) -> list[str]:
    """The product links of a results page."""
    return [name for name in clickables if name not in _BUTTONS]


class RandomPolicy:
    """Clicks and searches at random.

    Args:
        seed: Together with the task and the turn it decides every action; where an engine plays,
            the turn's own seed does too, so that samples of a task differ.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def __call__(
        self,
        messages: Sequence[Message],
        info: Mapping[str, Any],
        sampling: SamplingParams | None = None,
    ) -> Action:
        """Click anything on the page, or now and then search for words of the instruction."""
        turn = "" if sampling is None or sampling.seed is None else f"/{sampling.seed}"
        rng = random.Random(f"{self._seed}/{info['task_id']}/{len(messages)}{turn}")
        available = info["available_actions"]
        targets = [name for name in available["clickables"] if name]
        if available["has_search_bar"] or not targets or rng.random() < 0.1:
            words = instruction_in(messages).split() or ["shoes"]
            return write_action("search", " ".join(rng.sample(words, min(4, len(words)))))
        return write_action("click", rng.choice(targets))


def rule_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Search for the whole instruction and buy the first hit, options untouched."""
    available = info["available_actions"]
    if available["has_search_bar"]:
        return write_action("search", " ".join(instruction_in(messages).split()) or "shoes")
    if _BUY in available["clickables"]:
        return write_action("click", _BUY)
    return write_action("click", next(iter(_links(available["clickables"])), _BACK))


def wanted_options(goal: Goal) -> dict[str, str]:
    """Choose the values of the goal's product that meet the goal's options, by group."""
    chosen: dict[str, str] = {}
    for option in goal.options:
        for group, values in goal.product.options.items():
            value = _best_value(option, group, values)
            if value is not None and group not in chosen:
                chosen[group] = value
                break
    return chosen


def _best_value(option: str | tuple[str, str], group: str, values: Sequence[str]) -> str | None:
    if not isinstance(option, str):
        return option[1] if option[0] == group and option[1] in values else None
    if option in values:
        return option
    wanted = str(normalize_color(option))
    return next((v for v in values if is_match(str(normalize_color(v)), wanted)), None)


class OraclePolicy:
    """Knows the goal and buys it: the upper bound of what a policy can reach.

    Args:
        env: Where the goals are looked up, by task id; nothing is read from observations.
    """

    def __init__(self, env: WebShopEnv) -> None:
        self._env = env

    def __call__(self, messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
        """Search for the product's name, open it, choose its options, buy."""
        goal = self._env.goal_of(info["task_id"])
        available = info["available_actions"]
        clickables = available["clickables"]
        if available["has_search_bar"]:
            return write_action("search", " ".join(goal.product.title.split()))
        if _BUY in clickables:
            return self._on_item(messages, goal, clickables)
        if goal.product.asin.lower() in clickables:
            return write_action("click", goal.product.asin.lower())
        if _links(clickables):
            return write_action("click", _NEXT)
        return write_action("search", f"<q> {goal.product.query}")

    def _on_item(
        self, messages: Sequence[Message], goal: Goal, clickables: Sequence[str]
    ) -> Action:
        done = {message.get("content") for message in messages if message["role"] == "assistant"}
        done |= {
            f"click[{json.loads(call['function']['arguments']).get('target')}]"
            for message in messages
            for call in message.get("tool_calls") or ()
        }
        for value in wanted_options(goal).values():
            if value in clickables and value not in _BUTTONS and f"click[{value}]" not in done:
                return write_action("click", value)
        return write_action("click", _BUY)


POLICIES: dict[str, Callable[[WebShopEnv, int], Policy]] = {
    "random": lambda env, seed: RandomPolicy(seed=seed),
    "rule": lambda env, seed: rule_policy,
    "oracle": lambda env, seed: OraclePolicy(env),
}
"""What ``agentgym rollout --policy`` finds: makers of a policy, from an environment and a seed."""
