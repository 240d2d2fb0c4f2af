"""Rollouts behind HTTP: the service, and the engine's and an environment's twins that talk to it.

`agentgym.serve.RemoteEngine` and `RemoteEnv` need no more than the plain install; the service
itself (`agentgym.serve.app`) needs the `serve` extra.
"""

from agentgym.serve.remote import RemoteEngine
from agentgym.serve.remote_http import ServiceError
from agentgym.serve.session_client import RemoteEnv

__all__ = ["RemoteEngine", "RemoteEnv", "ServiceError"]
