"""Rollouts: many episodes at once, each with a trace."""

from agentgym.rollout.budget import BudgetStatus, Cap, RunBudget
from agentgym.rollout.canary import Canary, CanaryCheck
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.engine import Engine
from agentgym.rollout.enough import Enough
from agentgym.rollout.garbage import collecting_seldom
from agentgym.rollout.ledger import Ledger
from agentgym.rollout.limits import Limits
from agentgym.rollout.progress import Progress
from agentgym.rollout.request import EpisodeRequest, derived_seed
from agentgym.rollout.retry import Retry
from agentgym.rollout.stages import Stages
from agentgym.rollout.status import EngineStatus
from agentgym.rollout.summary import Summary, summarize

__all__ = [
    "BudgetStatus",
    "Canary",
    "CanaryCheck",
    "Cap",
    "Cluster",
    "Engine",
    "EngineStatus",
    "Enough",
    "EpisodeRequest",
    "Ledger",
    "Limits",
    "Progress",
    "Retry",
    "RunBudget",
    "Stages",
    "Summary",
    "collecting_seldom",
    "derived_seed",
    "summarize",
]
