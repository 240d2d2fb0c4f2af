"""A simulated policy fleet, episodes to play on it, and what the best possible engine would take.

`SimulatedFleet` serves in this process, `FleetProcess` in one of its own, for measurements.
"""

from agentgym.testing.fleet.env import WorkloadEnv
from agentgym.testing.fleet.process import FleetProcess
from agentgym.testing.fleet.replica import FleetStatistics, ReplicaSpec, ReplicaStatistics
from agentgym.testing.fleet.server import SimulatedFleet
from agentgym.testing.fleet.workload import Workload

__all__ = [
    "FleetProcess",
    "FleetStatistics",
    "ReplicaSpec",
    "ReplicaStatistics",
    "SimulatedFleet",
    "Workload",
    "WorkloadEnv",
]
