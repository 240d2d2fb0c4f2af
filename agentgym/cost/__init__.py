"""What a run costs: planned before it starts, and added up from what it left behind."""

from agentgym.cost.actual import Actual, RoleActual, actual_of, priced_by
from agentgym.cost.against import Against, against
from agentgym.cost.bill import Dollars, Volume
from agentgym.cost.bills import bills_of
from agentgym.cost.calibrate import calibrate
from agentgym.cost.plan import Plan, RolePlan, make_plan
from agentgym.cost.predict import Prediction, predict
from agentgym.cost.sample import sample_of
from agentgym.cost.sensitivity import Sensitivity, sensitivity
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, RoleLoad, Serving, Workload
from agentgym.cost.workload_file import read_workload, workload_text

__all__ = [
    "Actual",
    "Against",
    "Dollars",
    "EpisodeTokens",
    "Plan",
    "PolicyLoad",
    "Prediction",
    "RoleActual",
    "RoleLoad",
    "RolePlan",
    "Sensitivity",
    "Serving",
    "Volume",
    "Workload",
    "actual_of",
    "against",
    "bills_of",
    "calibrate",
    "make_plan",
    "predict",
    "priced_by",
    "read_workload",
    "sample_of",
    "sensitivity",
    "workload_text",
]
