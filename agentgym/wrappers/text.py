"""Text in, text out, for code that only knows strings.

Much code around language models (sampling scripts, text-based agents, older trainers) passes plain
strings about. This wrapper gives it an agent environment as a text game and loses nothing that the
policy is meant to see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from agentgym.core import AgentEnv
from agentgym.types import Message, clean_text
from agentgym.wrappers.base import AgentWrapper, Step, agent_env

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')


class TextSpace(gymnasium.Space[str]):
    """All text that can be encoded, of any length and in any script.

    Gymnasium's own `Text` lists its characters one by one and has a maximum length.

    Args:
        source: Space of messages whose samples are rendered as text; None gives single words.
        seed: Seed of the sampler, where there is no source.
    """

    def __init__(
        self,
        source: gymnasium.Space[Any] | None = None,
        *,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.source = source

    @property
    def is_np_flattenable(self) -> bool:
        """False: texts have no fixed length."""
        return False

    def seed(self, seed: Any = None) -> Any:
        """Seed the sampler, and the one it draws from."""
        source = getattr(self, "source", None)
        return super().seed(seed) if source is None else source.seed(seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is text."""
        return isinstance(x, str) and clean_text(x) == x

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw a text; the arguments are Gymnasium's and not used."""
        if self.source is None:
            return str(self.np_random.choice(("red", "blue", "价格", "naïve", "two\nlines")))
        drawn = self.source.sample()
        if isinstance(drawn, tuple):
            return render_observation(drawn)
        return drawn if isinstance(drawn, str) else render_action(drawn)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[Any]:
        """Samples as JSON values."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Samples back from JSON values."""
        return list(sample_n)

    def __repr__(self) -> str:
        return "TextSpace()" if self.source is None else f"TextSpace({self.source})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.source == other.source

    __hash__ = None  # type: ignore[assignment]  # mutable through its generator, like every Space


class TextInTextOut(AgentWrapper, RecordConstructorArgs):
    """Makes observations and actions strings.

    An observation is the text of the new messages, blank lines between them. A tool's result stands
    in `<tool_response>` tags; a message of any other role stands as it is, so an env with a text
    grammar of its own, such as `search[red shoes]`, looks just as it does in its messages.

    An action is passed to the env as the text of an assistant message, which an env with a text
    grammar reads itself. Where it contains `<tool_call>` tags, each pair is a call of a tool, as
    Hermes and Qwen models write it; text around them is kept as the message's content:

        <tool_call>{"name": "search", "arguments": {"query": "red shoes"}}</tool_call>

    What is between the tags and can't be read reaches the env as a malformed call.

    Args:
        env: An agent environment.
        describe_tools: Whether the first observation begins with the tools' schemas and this
            format; None does so where the env has tools and no text grammar of its own.

    Raises:
        ConfigError: If `env` is not an agent environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], describe_tools: bool | None = None) -> None:
        RecordConstructorArgs.__init__(self, describe_tools=describe_tools)
        AgentWrapper.__init__(self, env)
        base = agent_env(env, wrapper="TextInTextOut", instead="its observations have no messages")
        if describe_tools is None:
            has_grammar = type(base).parse_text is not AgentEnv.parse_text
            describe_tools = len(base.toolbox) > 0 and not has_grammar
        self._describes = describe_tools
        self.observation_space = TextSpace(env.observation_space)
        self.action_space = TextSpace(env.action_space)

    def after_reset(self, observation: Any, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The opening messages as text."""
        text = render_observation(observation)
        if self._describes:
            text = f"{_describe(info['tools'])}\n\n{text}"
        return text, info

    def on_step(self, action: Any) -> Any:
        """The text as an assistant message; what isn't text is passed on as it is."""
        return read_action_text(action) if isinstance(action, str) else action

    def after_step(self, result: Step) -> Step:
        """The new messages as text."""
        observation, *rest = result
        return (render_observation(observation), *rest)


def render_observation(messages: Sequence[Message]) -> str:
    """New messages as one text."""
    return "\n\n".join(_render_message(message) for message in messages)


def _render_message(message: Message) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    if message.get("role") == "tool":
        return f"<tool_response>\n{content}\n</tool_response>"
    return content


def render_action(message: Message) -> str:
    """An assistant message as the text that `read_action_text` reads back."""
    parts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        name = json.dumps(function["name"], ensure_ascii=False)
        arguments = function["arguments"]
        parts.append(f'<tool_call>{{"name": {name}, "arguments": {arguments}}}</tool_call>')
    return "\n".join(parts)


def read_action_text(text: str) -> Message:
    """An assistant message from text, with the calls its `<tool_call>` tags hold."""
    blocks = _CALL.findall(text)
    if not blocks:
        return {"role": "assistant", "content": text}
    content = _CALL.sub("", text).strip()
    calls = [{"type": "function", "function": _read_call(block)} for block in blocks]
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def _read_call(block: str) -> dict[str, Any]:
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        # The name is a guess, so that the env can say what that tool takes; the arguments are
        # passed as the broken text they are.
        found = _NAME.search(block)
        return {"name": found.group(1) if found else "", "arguments": block.strip() or "{"}
    if not isinstance(call, Mapping):
        return {"name": "", "arguments": block}
    return {"name": call.get("name"), "arguments": call.get("arguments")}


def _describe(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these tools:\n<tools>\n{lines}\n</tools>\n"
        'Call one with <tool_call>{"name": <name>, "arguments": <object>}</tool_call>.'
    )
