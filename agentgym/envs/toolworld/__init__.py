"""ToolWorld as a Gymnasium environment: see README.md beside this file."""

from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.judge import AnswerVerifier
from agentgym.envs.toolworld.templates import Catalogue, Posed, Template

__all__ = ["AnswerVerifier", "Catalogue", "Posed", "Template", "ToolWorldEnv"]
