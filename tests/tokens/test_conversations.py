"""What is kept of a session between its turns."""

from __future__ import annotations

import copy
import functools

import pytest
from template_zoo import byte_tokenizer, stop_ids

from agentgym.errors import EndpointError
from agentgym.tokens import conversations as module
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations, TokenPrompt
from agentgym.types import Message

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OPENING: list[Message] = [{"role": "user", "content": "find shoes"}]
SAID: Message = {"role": "assistant", "content": "which?"}


@functools.cache
def codec_of(*, allow_breaks: bool = False) -> ChatCodec:
    tokenizer = byte_tokenizer("qwen2_5")
    stops = stop_ids(tokenizer, "qwen2_5")
    return ChatCodec(tokenizer, stop_ids=stops, allow_breaks=allow_breaks)


def begun(codec: ChatCodec) -> tuple[Conversations, TokenPrompt, list[Message]]:
    conversations = Conversations(codec)
    prompt = conversations.prompt("s", OPENING, [])
    conversations.answered("s", prompt, [7, codec.stop_ids[0]])
    return conversations, prompt, [*OPENING, SAID, {"role": "user", "content": "red ones"}]


def test_messages_are_told_apart_by_what_they_say() -> None:
    conversations, first, history = begun(codec_of())
    decoded = copy.deepcopy(history)  # as a client has them that gets its history as JSON
    decoded[0]["note"] = "not sent"
    second = conversations.prompt("s", decoded, [])
    assert second.ids == conversations.prompt("s", history, []).ids
    assert second.ids[: len(first.ids)] == first.ids


@pytest.mark.parametrize("where", [0, 1])
def test_conversation_that_was_rewritten_is_refused(where: int) -> None:
    """Its prompt would still have the old words, and nobody would know."""
    conversations, _, history = begun(codec_of())
    second = conversations.prompt("s", history, [])
    conversations.answered("s", second, [7])
    history = [*history, SAID, {"role": "user", "content": "size 9"}]
    assert conversations.prompt("s", history, [])
    history[where] = {**history[where], "content": "[shortened]"}
    with pytest.raises(EndpointError, match="earlier messages of a session have changed") as caught:
        conversations.prompt("s", history, [])
    assert not caught.value.retryable


def test_conversation_that_was_rewritten_is_rendered_anew_where_breaks_are_allowed() -> None:
    codec = codec_of(allow_breaks=True)
    conversations, _, history = begun(codec)
    history[0] = {"role": "user", "content": "[shortened]"}
    for kept in (history, history[-1:]):
        assert conversations.prompt("s", kept, []).ids == tuple(codec.prompt_ids(kept, []))


def test_sessions_that_nobody_releases_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "_MOST_IDS", 1_000)
    conversations = Conversations(codec_of(), clock=lambda: now)
    for number in range(10):
        now = 1_000.0 * number
        prompt = conversations.prompt(str(number), OPENING, [])
        conversations.answered(str(number), prompt, [7] * 300)
    assert len(conversations) == 4  # as old as an hour at most, though they are too many
    conversations.answered("6", prompt, [7])
    for session in map(str, range(10)):
        conversations.forget(session)
    assert (len(conversations), conversations._size) == (0, 0)
