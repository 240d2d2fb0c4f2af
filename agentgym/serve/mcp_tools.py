"""An episode in MCP's words: tools, calls, contents, the task as a prompt.

MCP knows no turns, rewards or users. So every call is one turn of one call; a message that calls
nothing goes through a tool of its own, where the environment listens to such messages at all; and
what the environment says back, a simulated user included, is the call's result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from mcp_types import (
    CallToolResult,
    ContentBlock,
    ImageContent,
    PromptMessage,
    TextContent,
    TextResourceContents,
    Tool,
)

from agentgym.remote.session_schema import TurnResult
from agentgym.serve.session_env import SessionEnv
from agentgym.types import Message

TASK_URI = "episode://task"
TASK_PROMPT = "task"

_TEXT_TOOLS = {
    "answer": (
        "final_answer",
        "Give your final answer. It ends the episode, so give it once, when you have it.",
    ),
    "talk": ("send_message", "Say something to the user, and get the user's reply."),
}
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,(.+)", re.DOTALL)


def tools_of(env: SessionEnv) -> list[Tool]:
    """The episode's tools, and the one that speaks if the env listens to plain text."""
    found = [_tool(spec["function"]) for spec in env.tools]
    name = text_tool(env)
    if name is not None:
        schema = {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What you say."}},
            "required": ["text"],
            "additionalProperties": False,
        }
        _, about = _TEXT_TOOLS[str(env.hears_text)]
        found.append(Tool(name=name, description=about, input_schema=schema))
    return found


def text_tool(env: SessionEnv) -> str | None:
    """The name of the tool that sends plain text; None where the env has no use for it."""
    heard = env.hears_text
    if heard is None:
        return None
    name, _ = _TEXT_TOOLS[heard]
    taken = {spec["function"]["name"] for spec in env.tools}
    while name in taken:
        name = f"episode_{name}"
    return name


def _tool(function: Mapping[str, Any]) -> Tool:
    schema = {"type": "object", **function.get("parameters", {})}
    return Tool(name=function["name"], description=function.get("description"), input_schema=schema)


def as_action(name: str, arguments: Mapping[str, Any] | None, *, turn: int) -> Message:
    """The assistant message with one call."""
    text = json.dumps(arguments or {}, ensure_ascii=False)
    call = {
        "id": f"mcp_{turn}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def as_result(result: TurnResult) -> CallToolResult:
    """What a turn caused, as a call's result; the reward is not the agent's business."""
    contents = [block for message in result.observation for block in _blocks(message)]
    if result.over:
        contents.append(TextContent(text="The episode is over."))
    meta = {
        "agentgym/turn": result.turn,
        "agentgym/terminated": result.terminated,
        "agentgym/truncated": result.truncated,
    }
    return CallToolResult(content=contents, is_error=bool(result.failed_calls), _meta=meta)


def refusal(text: str) -> CallToolResult:
    """A call that was no turn."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def as_prompt(opening: Iterable[Message]) -> list[PromptMessage]:
    """The opening messages; MCP has no system role, so the user says those, too."""
    return [
        PromptMessage(role="assistant" if m.get("role") == "assistant" else "user", content=block)
        for m in opening
        for block in _blocks(m)
    ]


def as_resource(opening: Iterable[Message]) -> TextResourceContents:
    """The opening messages as one text."""
    texts = [block.text for m in opening for block in _blocks(m) if isinstance(block, TextContent)]
    return TextResourceContents(uri=TASK_URI, mime_type="text/plain", text="\n\n".join(texts))


def _blocks(message: Message) -> list[ContentBlock]:
    content = message.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [TextContent(text=content)]
    return [_block(part) for part in content]


def _block(part: Any) -> ContentBlock:
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return TextContent(text=part["text"])
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
        if found is not None:
            return ImageContent(mime_type=found[1], data=found[2])
    return TextContent(text=json.dumps(part, ensure_ascii=False))
