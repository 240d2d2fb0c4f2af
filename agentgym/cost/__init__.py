"""What a run costs: planned before it starts, and added up from what it left behind."""

from agentgym.cost.bill import Dollars, Volume
from agentgym.cost.plan import Plan, RolePlan, make_plan
from agentgym.cost.sensitivity import Sensitivity, sensitivity
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, RoleLoad, Serving, Workload
from agentgym.cost.workload_file import read_workload, workload_text

__all__ = [
    "Dollars",
    "EpisodeTokens",
    "Plan",
    "PolicyLoad",
    "RoleLoad",
    "RolePlan",
    "Sensitivity",
    "Serving",
    "Volume",
    "Workload",
    "make_plan",
    "read_workload",
    "sensitivity",
    "workload_text",
]
