"""How many sessions there are and were, for Prometheus; made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from agentgym.serve.sessions import Sessions


class SessionMetrics:
    """A Prometheus collector over the sessions of a service.

    Args:
        sessions: Whose.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        """The figures as they stand."""
        status = self._sessions.status()
        there = GaugeMetricFamily(
            "agentgym_sessions", "Open sessions: at a request, or idle.", labels=["state"]
        )
        there.add_metric(["active"], status.active)
        there.add_metric(["idle"], status.idle)
        yield there
        yield GaugeMetricFamily(
            "agentgym_sessions_stuck",
            "Environments in a call that nobody waits for any more.",
            value=status.stuck,
        )
        ended = CounterMetricFamily(
            "agentgym_sessions_ended", "Sessions that ended, by how.", labels=["how"]
        )
        ended.add_metric(["closed"], status.closed)
        ended.add_metric(["reaped"], status.reaped)
        yield ended
        for name, about, value in (
            ("created", "Sessions ever made; refused and failed ones are none.", status.created),
            ("refused", "Sessions not made for want of room.", status.refused),
            ("abandoned", "Environments ever left behind in a call.", status.abandoned),
        ):
            yield CounterMetricFamily(f"agentgym_sessions_{name}", about, value=value)
