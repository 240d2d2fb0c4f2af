"""Which Ray cluster, and how its nodes are used."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentgym.types import Finite, Record


class Cluster(Record):
    """A Ray cluster, and how its nodes are used for rollouts.

    The driver runs on a node of the cluster (`ray job submit`, or a shell on the head).
    """

    address: str | None = None
    """`host:port` of the cluster; `auto` for the one that runs on this machine, `local` to start
    one here. None takes the one that this process is connected to, else the one that RAY_ADDRESS
    names, else one that runs here, else starts one."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that play episodes; None is as many as there is room for, on nodes that join later,
    too."""
    cpus_per_worker: Finite = Field(default=1.0, gt=0)
    """Cores that one reserves. Its event loop uses one; more where tools block in threads."""
    resources: dict[str, Finite] = Field(default_factory=dict)
    """Custom resources that one reserves, such as `{"rollout": 1}`, to choose the nodes."""
    episodes_per_worker: int = Field(default=1000, ge=1)
    """Episodes that are taking their turns, or wait to, in one worker at most."""
    runtime_env: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Ray's: code, packages and variables for the workers. Ray shows it to whoever can see the
    cluster; keys are safer in the environment of the nodes."""
    start_timeout_s: Finite = Field(default=120.0, gt=0)
    """Longest wait for the first worker to be ready, seconds."""
