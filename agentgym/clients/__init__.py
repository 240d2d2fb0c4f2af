"""Model clients: hosted OpenAI-compatible endpoints, scripted policies, recordings and replays.

`ChatClient` and `BalancedClient` are imported at first use, since aiohttp takes a good part of a
second to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgym.clients.connect import connect
from agentgym.clients.record import RecordingClient, recording
from agentgym.clients.replay import ReplayClient, replaying
from agentgym.clients.scripted import ScriptedClient

if TYPE_CHECKING:
    from agentgym.clients.balanced import BalancedClient
    from agentgym.clients.chat import ChatClient

__all__ = [
    "BalancedClient",
    "ChatClient",
    "RecordingClient",
    "ReplayClient",
    "ScriptedClient",
    "connect",
    "recording",
    "replaying",
]


def __getattr__(name: str) -> Any:
    """Import the clients of servers at their first use (PEP 562)."""
    if name == "ChatClient":
        from agentgym.clients.chat import ChatClient

        return ChatClient
    if name == "BalancedClient":
        from agentgym.clients.balanced import BalancedClient

        return BalancedClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
