"""Prometheus metrics of any number of engines, made when they are scraped.

    metrics = EngineMetrics()
    metrics.add(engine, env="agentgym/WebShop-v0")
    with start_metrics_server(9464, metrics) as server:  # http://127.0.0.1:9464/metrics
        ...  # roll out

A service that has a page of its own registers the metrics: `registry.register(metrics)`, and
`prometheus_client.generate_latest(registry)` writes them. Counters never fall, also when an engine
is taken out: what it had counted stays. No label holds a task, an episode or a URL of a request, so
the number of series follows from the number of engines' labels and replicas alone.

prometheus-client comes with `agentgym-envs[serve]` and is imported when it is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from agentgym.errors import ConfigError, MissingExtraError
from agentgym.rollout.combined import combined, history_of
from agentgym.rollout.metric_families import metrics_of
from agentgym.rollout.status import EngineStatus
from agentgym.types import clean_text

if TYPE_CHECKING:
    from prometheus_client import Metric


class HasStatus(Protocol):
    """What metrics can be made of; an `Engine` is one."""

    def status(self) -> EngineStatus:
        """What it is doing; any thread may ask."""


class EngineMetrics:
    """A Prometheus collector over engines.

    Args:
        labels: Names of the labels that tell engines apart. Engines with the same labels are added
            up.

    Raises:
        MissingExtraError: If prometheus-client isn't installed.
    """

    def __init__(self, labels: Sequence[str] = ("env",)) -> None:
        _prometheus()
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._engines: dict[int, tuple[tuple[str, ...], HasStatus]] = {}
        self._gone: dict[tuple[str, ...], EngineStatus] = {}

    def add(self, engine: HasStatus, **labels: str) -> None:
        """Report an engine from now on.

        Args:
            engine: An `Engine`, or whatever has such a `status()`.
            labels: A value for each of the labels; those left out are empty.

        Raises:
            ConfigError: If there is no label of such a name.
        """
        if unknown := set(labels) - set(self._labels):
            raise ConfigError(
                f"no label {min(unknown)!r}: these metrics have {', '.join(self._labels)}; "
                "name others in EngineMetrics(labels=…)"
            )
        values = tuple(clean_text(str(labels.get(name, ""))) for name in self._labels)
        with self._lock:
            self._engines[id(engine)] = (values, engine)

    def remove(self, engine: HasStatus) -> None:
        """Report an engine no longer; what it has counted stays in the counters."""
        last = history_of(engine.status())
        with self._lock:  # so that a scrape finds it in exactly one of the two
            values, _ = self._engines.pop(id(engine), (None, None))
            if values is not None:
                known = self._gone.get(values)
                self._gone[values] = last if known is None else combined([known, last])

    def describe(self) -> Iterator[Metric]:
        """Every metric, without a value; asked when the collector is registered."""
        return metrics_of(self._labels, {})

    def collect(self) -> Iterator[Metric]:
        """Every metric as it stands; asked at each scrape."""
        with self._lock:
            statuses = {values: [last] for values, last in self._gone.items()}
            engines = list(self._engines.values())
        for values, engine in engines:  # outside of the lock, which `add` may wait for on a loop
            statuses.setdefault(values, []).append(engine.status())
        together = {values: combined(each) for values, each in statuses.items()}
        return metrics_of(self._labels, together)


class MetricsServer:
    """A small HTTP server that Prometheus scrapes, in a thread of its own."""

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port
        """Where it listens."""

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def start_metrics_server(
    port: int, metrics: EngineMetrics, *, host: str = "127.0.0.1"
) -> MetricsServer:
    """Serve metrics of engines, and of the process, at /metrics.

    Anybody who reaches the port may read them, and there is no password: away from loopback only in
    a network that is trusted.

    Args:
        port: Where to listen; 0 takes any free port.
        metrics: What to serve.
        host: The address to listen on.

    Raises:
        ConfigError: If it can't listen there.
        MissingExtraError: If prometheus-client isn't installed.
    """
    prometheus = _prometheus()
    registry = prometheus.CollectorRegistry()
    registry.register(metrics)
    prometheus.ProcessCollector(registry=registry)
    try:
        server, thread = prometheus.start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"can't serve metrics on {host}:{port}: {reason}; choose another port, or 0 for any"
        ) from error
    return MetricsServer(server, thread)


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingExtraError(
            'metrics need prometheus-client: pip install "agentgym-envs[serve]"'
        ) from error
    return prometheus_client
