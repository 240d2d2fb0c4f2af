"""A server that is asked in ids, where the template may break the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
from template_zoo import BROKEN, byte_tokenizer, template_text

from agentgym.client import Completion, Endpoint, SamplingParams, TokenPath
from agentgym.clients import ChatClient
from agentgym.errors import EndpointError
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.types import Message

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STOP = "<|im_end|>"


async def two_turns(
    folder: Path, family: str, template: str, *, allow_breaks: bool
) -> tuple[list[Completion], list[list[int]]]:
    """Two answers in plain text, a user message between them; and the prompts that were sent."""
    tokenizer = byte_tokenizer(family, template)
    tokenizer.save_pretrained(folder)
    path = TokenPath(tokenizer=str(folder), allow_breaks=allow_breaks)
    script = [f"<think>\nhello\n</think>\n\none{STOP}", f"two{STOP}"]
    model = TokenModel(len(tokenizer))
    async with TokenServer(model, script=script, tokenizer=tokenizer) as server:
        client = ChatClient(Endpoint(base_url=server.url, model="policy", tokens=path))
        history: list[Message] = [{"role": "user", "content": "a"}]
        answers = []
        for _ in script:
            answer = await client.complete(history, (), SamplingParams(), session="s")
            answers.append(answer)
            history += [answer.message, {"role": "user", "content": "b"}]
        await client.aclose()
        return answers, [request["prompt"] for request in server.requests]


async def test_breaks_are_allowed_by_the_endpoint(tmp_path: Path) -> None:
    (first, _), (before, after) = await two_turns(
        tmp_path, "qwen3", template_text("qwen3"), allow_breaks=True
    )
    assert after[: len(before) + 1] != [*before, (first.completion_ids or ())[0]]


async def test_else_the_form_for_training_is_asked_with(tmp_path: Path) -> None:
    (first, _), (before, after) = await two_turns(
        tmp_path, "qwen3", template_text("qwen3"), allow_breaks=False
    )
    known = [*before, *(first.completion_ids or ())]
    assert after[: len(known)] == known


async def test_or_the_endpoint_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    template, _ = BROKEN["thinking stripped"]
    with pytest.raises(EndpointError, match="allow_breaks"):
        await two_turns(tmp_path, "qwen2_5", template, allow_breaks=False)
