"""Which way an endpoint is asked."""

from __future__ import annotations

from agentgym.client import Endpoint
from agentgym.clients.chat_wire import ChatWire
from agentgym.clients.question import Wire
from agentgym.errors import MissingExtraError
from agentgym.tokens.loading import NEEDS_EXTRA


def wire_of(endpoint: Endpoint, before: Wire | None = None) -> Wire:
    """In token ids where the endpoint says so, else in messages.

    Args:
        endpoint: Which one.
        before: Its wire in the process that this one was forked from.

    Raises:
        ConfigError: If the endpoint's tokenizer can't be had.
        MissingExtraError: If what it takes isn't installed.
    """
    if endpoint.tokens is None:
        return ChatWire(endpoint, before if isinstance(before, ChatWire) else None)
    try:
        from agentgym.clients.token_wire import TokenWire  # for a path that most runs don't take
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("agentgym"):
            raise
        raise MissingExtraError(NEEDS_EXTRA) from error

    return TokenWire(endpoint, before if isinstance(before, TokenWire) else None)
