"""Asking in messages: what every OpenAI-compatible server understands."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.client import Completion, Endpoint, SamplingParams, public_url
from agentgym.clients.prompts import Prompts
from agentgym.clients.question import Question
from agentgym.clients.reasoning import KeptReasoning
from agentgym.clients.reply import read_reply, read_usage
from agentgym.clients.transport import Transport
from agentgym.clients.wire import check_answered, request_body
from agentgym.tokens.calls.reading import TAG
from agentgym.types import Message, ToolSpec, Usage

logger = logging.getLogger(__name__)

HELLO: Message = {"role": "user", "content": "Hi"}


class ChatWire:
    """A `Wire` of chat completions.

    Args:
        endpoint: Model and dialect.
        before: The one of the process that this one was forked from.
    """

    path = "/chat/completions"

    def __init__(self, endpoint: Endpoint, before: ChatWire | None = None) -> None:
        self._model = endpoint.model
        self._where = public_url(endpoint.base_url)
        self._told_of_tags = False
        self._dialect = endpoint.dialect
        self._reasoning: KeptReasoning = KeptReasoning(
            self._dialect, before._reasoning if before is not None else None
        )
        self._prompts = Prompts(self._dialect)

    def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        session: str | None,
    ) -> Question:
        """Put a call into a request."""
        sent = self._reasoning.put_back(session, messages)
        check_answered(sent)
        conversation = self._prompts.messages(session, sent)
        listed = self._prompts.tools(tools) if tools else ()
        body = request_body(self._model, conversation, listed, sampling, self._dialect)
        return Question(body, session, messages)

    def hellos(self, tools: Sequence[ToolSpec]) -> Sequence[Question]:
        """One tiny request."""
        # Some hosted models refuse fewer tokens, and temperature 0.
        question = self.ask([HELLO], tools, SamplingParams(max_tokens=16), None)
        question.is_hello = True
        return (question,)

    def fit(
        self, question: Question, body: Mapping[str, Any], server: Transport
    ) -> Mapping[str, Any]:
        """As it is: only the server knows how many tokens it makes."""
        return body

    async def learn(self, question: Question, server: Transport) -> None:
        """There is nothing to know."""

    def trimmed(self, data: bytes, question: Question) -> bytes:
        """All of it."""
        return data

    def read(self, reply: Any, sent: Mapping[str, Any], question: Question) -> Completion:
        """Read a reply."""
        completion = read_reply(reply, sent)
        if "tools" in sent and not self._told_of_tags:
            self._tell_of_tags(completion.message)
        return completion

    def _tell_of_tags(self, message: Message) -> None:
        """Warn, once, of calls that the server left in the text, where they pass for an answer."""
        tag = None if message.get("tool_calls") else TAG.search(str(message.get("content") or ""))
        if tag is not None:
            self._told_of_tags = True
            logger.warning(
                "%s (model %r) leaves tool calls in the text (%r), where they call nothing: start "
                "vLLM with --enable-auto-tool-choice and the --tool-call-parser of that model, or "
                "ask it in ids (the endpoint's tokens)",
                self._where,
                self._model,
                tag.group(),
            )

    def usage_of_part(self, question: Question, message: Message) -> Usage:
        """Tokens of an answer that broke off; estimated."""
        return read_usage({}, question.body, message)

    def greeted(self, questions: Sequence[Question]) -> None:
        """Any answer will do."""

    def keep(self, question: Question, completion: Completion) -> None:
        """Keep the reasoning, where the server wants it back."""
        self._reasoning.keep(question.session, question.messages, completion)

    def forget(self, session: str) -> None:
        """Drop what is kept of a session."""
        self._reasoning.forget(session)
        self._prompts.forget(session)
