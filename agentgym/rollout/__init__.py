"""Rollouts: many episodes at once, each with a trace."""

from agentgym.rollout.engine import Engine
from agentgym.rollout.limits import Limits, RolloutStopped
from agentgym.rollout.progress import Progress
from agentgym.rollout.request import EpisodeRequest, derived_seed
from agentgym.rollout.summary import Summary, summarize

__all__ = [
    "Engine",
    "EpisodeRequest",
    "Limits",
    "Progress",
    "RolloutStopped",
    "Summary",
    "derived_seed",
    "summarize",
]
