"""The engine's and an environment's twins that ask a rollout service (`agentgym serve`) to play.

They need no more than the plain install. What both sides say to each other is in `schema` and
`session_schema`.
"""

from agentgym.remote.engine import RemoteEngine
from agentgym.remote.env import RemoteEnv
from agentgym.remote.http import ServiceError

__all__ = ["RemoteEngine", "RemoteEnv", "ServiceError"]
