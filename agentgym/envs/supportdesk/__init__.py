"""A retail service desk as a Gymnasium environment: see README.md beside this file."""

from agentgym.envs.supportdesk.env import SupportDeskEnv

__all__ = ["SupportDeskEnv"]
