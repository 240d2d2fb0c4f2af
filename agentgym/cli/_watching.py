"""Who else is told how a run goes: Prometheus, OpenTelemetry, and the log when nothing moves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.rollout.metrics import EngineMetrics
    from agentgym.traces.otel import OtelSink


def add_watching_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for progress, metrics and telemetry."""
    group = parser.add_argument_group("watching it")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument(
        "--stuck-after",
        type=float,
        metavar="S",
        help="warn, with where the episodes are, when nothing moves for so long (default: 60; "
        "0: never)",
    )
    group.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics on 127.0.0.1:PORT/metrics (0: any free port)",
    )
    group.add_argument(
        "--otel",
        action="store_true",
        help="send each episode as OpenTelemetry spans, to where OTEL_EXPORTER_OTLP_ENDPOINT says",
    )


def stuck_after_s(args: argparse.Namespace) -> float | None:
    """Seconds without movement before a warning; None for never.

    Raises:
        ConfigError: If it is negative.
    """
    if args.stuck_after is None:
        return 60.0
    if not args.stuck_after >= 0:
        raise ConfigError(f"--stuck-after must be 0 or more, got {args.stuck_after:g}")
    return args.stuck_after or None


class Watching:
    """Metrics and telemetry of a command, where they were asked for; close it after use.

    Whatever is wrong with them shows here, before a run has a folder.

    Args:
        args: The command line.
        secrets: Values that must not be sent.

    Raises:
        ConfigError: If the port can't be listened on.
        MissingExtraError: If what is needed isn't installed.
    """

    def __init__(self, args: argparse.Namespace, secrets: Iterable[str]) -> None:
        self.metrics_url: str | None = None
        """Where metrics are served, if they are."""
        self._env = args.env
        self._metrics: EngineMetrics | None = None
        self._telemetry: OtelSink | None = None
        with ExitStack() as opened:
            if args.otel:
                from agentgym.traces.otel import OtelSink

                self._telemetry = OtelSink(secrets=secrets)
                opened.callback(self._telemetry.close)
            if args.metrics_port is not None:
                from agentgym.rollout.metrics import EngineMetrics, start_metrics_server

                self._metrics = EngineMetrics()
                server = opened.enter_context(
                    start_metrics_server(args.metrics_port, self._metrics)
                )
                self.metrics_url = f"http://127.0.0.1:{server.port}/metrics"
            self._stack = opened.pop_all()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        if (sink := self._telemetry) is not None and sink.lost:
            told = f"OpenTelemetry got {sink.sent} of {sink.sent + sink.lost} episodes"
            print(f"agentgym: {told}; the trace file has all", file=sys.stderr, flush=True)

    def sees(self, engine: Any) -> None:
        """Report an engine from now on."""
        if self._metrics is not None:
            self._metrics.add(engine, env=self._env)

    def behind(self, sink: Any) -> Any:
        """A sink that traces go to, and telemetry's behind it."""
        if self._telemetry is None:
            return sink
        from agentgym.traces.tee import Tee

        return Tee(sink, self._telemetry)
