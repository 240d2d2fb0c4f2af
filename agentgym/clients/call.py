"""One call, and one request of it: what is asked, what has come of it, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.clients.budget import Reservation
from agentgym.clients.question import Question
from agentgym.clients.reply import BadReply
from agentgym.clients.stream import StreamedReply
from agentgym.types import Usage

_NO_USAGE = Usage(calls=0)


@dataclass(eq=False, slots=True)
class Call:
    """One call: what is asked, until when, and what it has cost so far."""

    question: Question
    ticket: int
    """Its place in every queue."""
    deadline: float
    only_at: str | None = None
    """The server that it is for, if not for any."""
    seat: Any = None
    """Where it was sent last."""
    tried: tuple[str, ...] = ()
    """Servers that it would rather not be sent to again."""
    said: dict[str, BadReply] | None = None
    """What servers said to it, by name."""
    sent: Mapping[str, Any] | None = None
    """The request as it was last sent, in the server's dialect."""
    attempts: int = 0
    failures: int = 0
    failed: bool = False
    usage: Usage = _NO_USAGE

    @property
    def session(self) -> str | None:
        """Whose it is."""
        return self.question.session

    @property
    def bill(self) -> Usage:
        """All attempts together."""
        retries = max(0, self.attempts - 1)
        if not retries and not self.failed:
            return self.usage
        counted = {"retries": retries, "failed_calls": int(self.failed)}
        return self.usage.model_copy(update=counted)


@dataclass(eq=False, slots=True)
class Attempt:
    """One request: what was sent, what has come of it, what it costs."""

    body: Mapping[str, Any]
    data: bytes
    """The same as JSON."""
    prompt_tokens: int
    """As estimated from its length."""
    reserved: Reservation
    streamed: StreamedReply | None = None
    """What has come of an answer that is streamed."""
    usage: Usage | None = None
    is_settled: bool = False
    """Whether what it was billed is known; it isn't while it is in flight."""

    def begin_stream(self) -> StreamedReply:
        """The answer turns out to be streamed."""
        self.streamed = StreamedReply()
        return self.streamed
