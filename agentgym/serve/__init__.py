"""Rollouts behind HTTP: the service, and the engine's twin that talks to it.

`agentgym.serve.RemoteEngine` needs no more than the plain install; the service itself
(`agentgym.serve.app`) needs the `serve` extra.
"""

from agentgym.serve.remote import RemoteEngine
from agentgym.serve.remote_http import ServiceError

__all__ = ["RemoteEngine", "ServiceError"]
