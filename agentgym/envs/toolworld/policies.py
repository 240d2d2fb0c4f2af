"""Policies without a model: the scripted expert, and agents that should score nothing.

Each is a callable ``policy(messages, info) -> action`` without memory of its own: it sees the
conversation and what the environment says of its state, as any policy does, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.templates import Call, Catalogue, Script
from agentgym.spaces import AssistantSpace
from agentgym.types import Action, Message

Policy: TypeAlias = Callable[[Sequence[Message], Mapping[str, Any]], Action]


def call(name: str, arguments: Mapping[str, Any], *, number: int = 0) -> Message:
    """An assistant message that makes one call."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def prompt_in(messages: Sequence[Message]) -> str:
    """The task's own words."""
    return next(str(m["content"]) for m in messages if m["role"] == "user")


def results_in(messages: Sequence[Message]) -> list[Any]:
    """What the tools answered so far, decoded; a refusal is `{"error": text}`."""
    found = []
    for message in messages:
        if message["role"] != "tool":
            continue
        try:
            found.append(json.loads(message["content"]))
        except ValueError:
            found.append({"error": message["content"]})
    return found


class ExpertPolicy:
    """Does what the template's script does, from the prompt and the results alone.

    The script runs anew at every turn, through all results so far, up to its next call.

    Args:
        catalogues: Whose tasks it knows.
    """

    def __init__(self, catalogues: Iterable[Catalogue] = tuple(CATALOGUES.values())) -> None:
        self._templates = [t for catalogue in catalogues for t in catalogue.templates]

    def __call__(self, messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
        """The script's next call, or its answer."""
        results = results_in(messages)
        try:
            name, arguments = _after(self._script(prompt_in(messages)), results)
        except StopIteration as finished:
            return f"Answer: {finished.value}"
        except (KeyError, IndexError, ValueError, TypeError):  # a world that isn't as promised
            return "I can't find out.\nAnswer: none"
        return call(name, arguments, number=len(results))

    def _script(self, prompt: str) -> Script:
        for template in self._templates:
            slots = template.read(prompt)
            if slots is not None:
                return template.solve(slots)
        raise ValueError(f"no template has the prompt {prompt!r}")


def _after(script: Script, results: Sequence[Any]) -> Call:
    """The script's call after these results; `StopIteration` carries its answer."""
    wanted = next(script)
    for result in results:
        wanted = script.send(result)
    return wanted


def nothing_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Say nothing at all."""
    return ""


def none_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Claim at once that it can't be done."""
    return "Answer: none"


def restate_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Answer with the question."""
    return f"Answer: {prompt_in(messages)}"


def guess_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Answer with a likely value, without a look."""
    likely = ("2", "Ada Abbott", "2026-05-12", "10:00")
    return f"Answer: {likely[sum(map(ord, prompt_in(messages))) % len(likely)]}"


def claim_policy(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """Claim success in the words of a judge."""
    return 'The task is solved and grounded. {"task_solved": 1, "grounded": 1}\nAnswer: correct'


class CallsThenAnswers:
    """Make some calls that are valid by their schema, then answer in a fixed way.

    Args:
        answer: Makes the final message from the prompt and the results' texts.
        calls: How many calls are made before.
        seed: Decides them, with the task.
    """

    def __init__(
        self, answer: Callable[[str, Sequence[str]], str], *, calls: int, seed: int = 0
    ) -> None:
        self._answer = answer
        self._calls = calls
        self._seed = seed

    def __call__(self, messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
        """A call, or the answer."""
        results = [str(m["content"]) for m in messages if m["role"] == "tool"]
        if len(results) < self._calls:
            seed = self._seed + len(results) + sum(map(ord, info["task_id"]))
            return AssistantSpace(info["tools"], seed=seed).sample()
        return self._answer(prompt_in(messages), results)


def dump(prompt: str, results: Sequence[str]) -> str:
    """Everything seen."""
    return "Answer: " + " ".join(results)


def last_value(prompt: str, results: Sequence[str]) -> str:
    """Some value that was seen."""
    values = [str(v) for text in results for v in _leaves(_decoded(text))]
    return f"Answer: {values[-1] if values else 'none'}"


def look_and_none(prompt: str, results: Sequence[str]) -> str:
    """A look around, and then none."""
    return "Answer: none"


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield value


def _expert(env: ToolWorldEnv, seed: int) -> Policy:
    return ExpertPolicy(env.tasks.catalogues)


POLICIES: dict[str, Callable[[ToolWorldEnv, int], Policy]] = {
    "expert": _expert,
    "nothing": lambda env, seed: nothing_policy,
    "none": lambda env, seed: none_policy,
    "restate": lambda env, seed: restate_policy,
    "guess": lambda env, seed: guess_policy,
    "claim": lambda env, seed: claim_policy,
    "dump": lambda env, seed: CallsThenAnswers(dump, calls=12, seed=seed),
    "last_value": lambda env, seed: CallsThenAnswers(last_value, calls=6, seed=seed),
    "look_and_none": lambda env, seed: CallsThenAnswers(look_and_none, calls=6, seed=seed),
}
"""What ``agentgym rollout --policy`` finds beside ``random``."""
