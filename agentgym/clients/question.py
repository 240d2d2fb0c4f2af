"""What is asked of a server, and how: the seam between calls and the two ways of asking.

Retries, money, slots, pace, deadlines and replicas are the same whether a server is asked in
messages or in token ids (`calling`). What differs is here: the route, the request's body, what fits
into it, how the reply is read, and what is kept between an episode's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentgym.client import Completion, SamplingParams
from agentgym.clients.transport import Transport
from agentgym.types import Message, ToolSpec, Usage


@dataclass(eq=False, slots=True)
class Question:
    """One call as it is asked, whichever server it goes to."""

    body: dict[str, Any]
    """The request, before the server's dialect."""
    session: str | None
    messages: Sequence[Message]
    """The conversation, as it was given."""
    prompt_tokens: int | None = None
    """Where they are known; None estimates them from the request's length."""
    is_hello: bool = False
    """Whether it is a preflight's."""


class Wire(Protocol):
    """A way of asking."""

    @property
    def path(self) -> str:
        """The route below the base URL."""
        ...

    def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        session: str | None,
    ) -> Question:
        """Put a call into a request.

        Raises:
            BadReply: If it can't be written.
            EndpointError: If it can't be asked.
            ContextOverflow: If it is known that no server has room for an answer.
        """
        ...

    def hellos(self, tools: Sequence[ToolSpec]) -> Sequence[Question]:
        """Tiny requests that show whether a server is the right one, to be made in this order.

        Raises:
            EndpointError: If none can be right.
        """
        ...

    def fit(
        self, question: Question, body: Mapping[str, Any], server: Transport
    ) -> Mapping[str, Any] | None:
        """The body as a server has room for it; the same object if nothing changes.

        Returns:
            None if that isn't known of the server yet, and `learn` has to be called.

        Raises:
            ContextOverflow: If it has no room for an answer.
        """
        ...

    async def learn(self, question: Question, server: Transport) -> None:
        """Find out what `fit` needs to know of a server.

        Raises:
            BadReply: If the server doesn't tell, or is the wrong one.
        """
        ...

    def trimmed(self, data: bytes, question: Question) -> bytes:
        """A reply's bytes without what need not be decoded."""
        ...

    def read(self, reply: Any, sent: Mapping[str, Any], question: Question) -> Completion:
        """Read a reply.

        Args:
            reply: The decoded JSON.
            sent: The request as it was sent.
            question: What was asked.

        Raises:
            BadReply: If it is no answer to that.
        """
        ...

    def usage_of_part(self, question: Question, message: Message) -> Usage:
        """Tokens of an answer that broke off; estimated."""
        ...

    def greeted(self, questions: Sequence[Question]) -> None:
        """A server has answered all `hellos`; see whether the answers make sense together.

        Raises:
            BadReply: If they don't.
        """
        ...

    def keep(self, question: Question, completion: Completion) -> None:
        """The caller has this answer; the session's next question may build on it."""
        ...

    def forget(self, session: str) -> None:
        """Drop what is kept of a session."""
        ...
