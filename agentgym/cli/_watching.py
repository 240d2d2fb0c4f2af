"""Who else is told how a run goes: Prometheus, OpenTelemetry, and the log when nothing moves."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from agentgym.errors import ConfigError


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


@contextmanager
def told_of(sink: Any, args: argparse.Namespace, secrets: Iterable[str]) -> Iterator[Any]:
    """The sink that traces go to, and telemetry's behind it where that was asked for.

    Args:
        sink: What keeps the traces.
        args: The command line.
        secrets: Values that must not be sent.
    """
    if not args.otel:
        yield sink
        return
    from agentgym.traces.otel import OtelSink
    from agentgym.traces.tee import Tee

    telemetry = OtelSink(secrets=secrets)
    try:
        yield Tee(sink, telemetry)
    finally:
        telemetry.close()


@contextmanager
def scraped(engine: Any, args: argparse.Namespace) -> Iterator[str | None]:
    """Serve an engine's metrics inside the block, where that was asked for; gives their URL."""
    if args.metrics_port is None:
        yield None
        return
    from agentgym.rollout.metrics import EngineMetrics, start_metrics_server

    with ExitStack() as stack:
        metrics = EngineMetrics()
        metrics.add(engine, env=args.env)
        server = stack.enter_context(start_metrics_server(args.metrics_port, metrics))
        yield f"http://127.0.0.1:{server.port}/metrics"
