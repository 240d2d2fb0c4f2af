"""A simulated fleet in a process of its own, so that a measured client has its core to itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.errors import AgentGymError
from agentgym.testing.fleet.replica import FleetStatistics, ReplicaSpec, replicas_of
from agentgym.testing.fleet.workload import Workload


class FleetProcess:
    """`SimulatedFleet` in another process; used with `with`.

    It ends when this process does, however that happens.

    Args:
        n: How many servers.
        replica: How fast and large each is; a sequence where they differ.
        workload: What is asked and answered.
        speed: Virtual seconds per second.

    Raises:
        AgentGymError: If it doesn't start.

    Examples:
        >>> with FleetProcess(16, speed=5) as fleet:
        ...     play(fleet.urls)
        ...     print(fleet.statistics().utilisation)
    """

    def __init__(
        self,
        n: int = 1,
        *,
        replica: ReplicaSpec | Sequence[ReplicaSpec] | None = None,
        workload: Workload | None = None,
        speed: float = 1.0,
    ) -> None:
        self.n = n
        self.replica = replicas_of(n, replica)
        """One spec per server."""
        self.workload = workload or Workload()
        self.speed = speed
        self.model = "simulated"
        self.urls: tuple[str, ...] = ()
        """The base URLs, once it runs."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> FleetProcess:
        command = [sys.executable, "-m", "agentgym.testing.fleet", "--speed", str(self.speed)]
        command += ["--replicas", *(spec.model_dump_json() for spec in self.replica)]
        command += ["--workload", self.workload.model_dump_json(), "--controlled"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.urls = tuple(self._answer()["urls"])
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    @property
    def pid(self) -> int:
        """The process."""
        return self._running().pid

    def statistics(self) -> FleetStatistics:
        """See `SimulatedFleet.statistics`."""
        return FleetStatistics.model_validate(self._ask("statistics"))

    def forget_statistics(self) -> None:
        """See `SimulatedFleet.forget_statistics`."""
        self._ask("forget_statistics")

    def kill(self, index: int) -> None:
        """See `SimulatedFleet.kill`."""
        self._ask("kill", index)

    def restart(self, index: int) -> None:
        """See `SimulatedFleet.restart`."""
        self._ask("restart", index)

    def pause(self, index: int) -> None:
        """See `SimulatedFleet.pause`."""
        self._ask("pause", index)

    def resume(self, index: int) -> None:
        """See `SimulatedFleet.resume`."""
        self._ask("resume", index)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise AgentGymError("the fleet isn't running; use `with FleetProcess(…)`")
        return self._process

    def _ask(self, name: str, *args: int) -> Mapping[str, Any]:
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps([name, *args]) + "\n")
        process.stdin.flush()
        return self._answer()

    def _answer(self) -> Mapping[str, Any]:
        process = self._running()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AgentGymError(f"the fleet's process ended with exit code {process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise AgentGymError(f"the fleet's process: {answer['error']}")
        return answer
