"""What the tests of an environment need, for agentgym's own and for everybody else's."""

from agentgym.testing.check import check_agent_env
from agentgym.testing.conversation import EnvCheckError, check_conversation

__all__ = ["EnvCheckError", "check_agent_env", "check_conversation"]
