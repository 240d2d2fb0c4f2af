"""Traces to several places at once: a file that must hold them, and telemetry that may fail.

    with Tee(TraceWriter("runs/x/traces.jsonl"), OtelSink()) as sink:
        Engine(…, writer=sink)

What the durable sink can't keep stops the run, since nothing else holds it. What telemetry can't
take is told of once and counted; it never costs an episode.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from agentgym.trace import Trace

logger = logging.getLogger(__name__)


class TraceSink(Protocol):
    """Where finished traces go; `TraceWriter` is one."""

    def write(self, trace: Trace) -> None:
        """Keep one trace."""


class Tee:
    """Passes each trace to a durable sink, then to others.

    Args:
        durable: Comes first, and its errors are the caller's.
        others: Their errors are logged once each and counted.
    """

    def __init__(self, durable: TraceSink, *others: TraceSink) -> None:
        self._durable = durable
        self._others = others
        self.failures: Counter[str] = Counter()
        """Traces that a sink didn't take, by the name of its class."""

    def write(self, trace: Trace) -> None:
        """Pass a trace on.

        Raises:
            TraceError: If the durable sink can't keep it; the others don't get it then.
        """
        self._durable.write(trace)
        for sink in self._others:
            try:
                sink.write(trace)
            except Exception as error:
                self._count(sink, error)

    def close(self) -> None:
        """Close all that can be closed, the durable sink last."""
        for sink in self._others:
            try:
                _close(sink)
            except Exception as error:
                self._count(sink, error)
        _close(self._durable)

    def _count(self, sink: TraceSink, error: Exception) -> None:
        name = type(sink).__name__
        self.failures[name] += 1
        if self.failures[name] == 1:
            logger.warning(
                "%s fails (%s: %s); the run goes on, and further failures are only counted",
                name,
                type(error).__name__,
                error,
            )

    def __enter__(self) -> Tee:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _close(sink: TraceSink) -> None:
    close = getattr(sink, "close", None)
    if callable(close):
        close()
