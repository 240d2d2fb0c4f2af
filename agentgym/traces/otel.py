"""Finished episodes to an OpenTelemetry collector, without a risk to the run.

    with Tee(TraceWriter(path), OtelSink()) as sink:
        Engine(…, writer=sink)

Where to is said by the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT (default:
http://localhost:4318), OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and so on. The event loop only
puts a trace on a queue; spans are made and sent in a thread. A collector that is down or too slow
costs its spans, which are counted; it is warned of once.

Messages, tool arguments and the judge's remarks are sent only if asked for with `content=True`, and
credentials never.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from secrets import randbits
from typing import TYPE_CHECKING

import agentgym
from agentgym.errors import ConfigError, MissingExtraError
from agentgym.redaction import Redactor
from agentgym.trace import Trace
from agentgym.traces.otel_spans import SpanWriter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

MOST_WAITING = 1024
"""Traces that may wait to be sent; further ones are lost."""

_MOST_AT_ONCE = 32  # traces per request


class OtelSink:
    """A sink that sends each trace to an OpenTelemetry collector.

    The trace's id is the OpenTelemetry trace id, so that a line of the trace file is found in the
    collector.

    Args:
        exporter: Where spans go; by default OTLP over HTTP, as the environment's variables say.
        content: Whether messages, arguments and the judge's remarks are sent, too.
        provider: `gen_ai.provider.name`: whose interface the policy's server has.
        secrets: Values that must not be sent, beside those that `agentgym.redaction` knows.

    Raises:
        MissingExtraError: If OpenTelemetry isn't installed.
        ConfigError: If the environment's variables ask for what isn't possible.
    """

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        content: bool = False,
        provider: str = "openai",
        secrets: Iterable[str] = (),
    ) -> None:
        self._exporter = _otlp() if exporter is None else exporter
        self._redact = Redactor(secrets)
        self._spans = _SpanMaker(self._redact, content=content, provider=provider)
        self._queue: queue.SimpleQueue[Trace | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._warned = False
        self.sent = 0
        """Traces delivered."""
        self.lost = 0
        """Traces that could not be delivered."""
        self._thread = threading.Thread(target=self._work, name="otel-sink", daemon=True)
        self._thread.start()

    def write(self, trace: Trace) -> None:
        """Have a trace sent; returns at once, and never raises."""
        with self._lock:
            reason = "the sink is closed" if self._closed else ""
            if self._waiting >= MOST_WAITING:
                reason = f"{MOST_WAITING} traces wait already, since the collector is too slow"
            if not reason:
                self._waiting += 1
                self._queue.put(trace)  # which never blocks
        if reason:
            self._lose(1, reason)

    def close(self, timeout_s: float = 15.0) -> None:
        """Send what waits, and stop; may be called twice.

        Args:
            timeout_s: Longest wait; what isn't sent by then is lost.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # which refuses what is left, so that the thread comes to its end
        self._thread.join(1.0)

    def __enter__(self) -> OtelSink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- in the thread ------------------------------------------------------------------------

    def _work(self) -> None:
        going_on = True
        while going_on:
            batch = self._next_batch()
            if batch[-1] is None:
                going_on = False
            traces = [trace for trace in batch if trace is not None]
            if traces:
                self._send(traces)

    def _next_batch(self) -> list[Trace | None]:
        """The traces that wait, at least one; the last one is None when no other will come."""
        batch = [self._queue.get()]
        while batch[-1] is not None and len(batch) < _MOST_AT_ONCE:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _send(self, traces: Sequence[Trace]) -> None:
        made, spans = 0, []
        for trace in traces:
            try:
                spans += self._spans.of(trace)
                made += 1
            except Exception as error:  # one that can't be told costs no other
                self._lose(1, f"{type(error).__name__}: {error}", waiting=1)
        reason = self._exported(spans) if spans else ""
        if reason:
            self._lose(made, reason, waiting=made)
        else:
            with self._lock:
                self.sent += made
                self._waiting -= made

    def _exported(self, spans: Sequence[ReadableSpan]) -> str:
        """Send spans; why that failed, if it did."""
        with _said_by_exporter() as said:
            try:
                result = self._exporter.export(spans)
            except Exception as error:  # whatever it is, it is no reason to lose an episode
                return f"{type(error).__name__}: {error}"
        return "" if result.name == "SUCCESS" else _reason(said)

    def _lose(self, count: int, reason: str, *, waiting: int = 0) -> None:
        """Count traces that are not delivered; the first time, say so."""
        with self._lock:
            self.lost += count
            self._waiting -= waiting
            first, self._warned = not self._warned, True
        if first:
            logger.warning(
                "spans are lost on the way to OpenTelemetry: %s; the run goes on, and further "
                "traces that are not delivered are only counted",
                self._redact.from_text(reason),
            )


class _SpanMaker:
    """Turns traces into ended spans.

    It has a provider of its own, so that neither the process's global one nor the global random
    numbers, from which the SDK would draw ids, are touched.
    """

    def __init__(self, redact: Redactor, *, content: bool, provider: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        ended: list[ReadableSpan] = []

        class Collect(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        class Ids(IdGenerator):
            trace_id = 0

            def generate_trace_id(self) -> int:
                return self.trace_id or randbits(128) or 1

            def generate_span_id(self) -> int:
                return randbits(64) or 1

        self._ended = ended
        self._ids = Ids()
        tracers = TracerProvider(
            id_generator=self._ids,
            resource=Resource.create({} if _has_service_name() else {"service.name": "agentgym"}),
            shutdown_on_exit=False,
        )
        tracers.add_span_processor(Collect())
        tracer = tracers.get_tracer("agentgym", agentgym.__version__)
        self._writer = SpanWriter(tracer, redact, content=content, provider=provider)

    def of(self, trace: Trace) -> list[ReadableSpan]:
        """The spans of a trace, under its own id where that can be an OpenTelemetry id."""
        is_id = re.fullmatch("[0-9a-f]{32}", trace.trace_id)
        self._ids.trace_id = int(trace.trace_id, 16) if is_id else 0
        self._ended.clear()
        self._writer.write(trace)
        return list(self._ended)


def _reason(said: Sequence[str]) -> str:
    """Why the exporter failed, from what it said: before it gave up it named the error."""
    for line in said:
        if match := re.fullmatch("Transient error (.*) encountered while exporting .*", line):
            return match[1]
    return said[-1] if said else "the exporter gives no reason"


def _has_service_name() -> bool:
    named = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in named


def _otlp() -> SpanExporter:
    """The exporter that the environment's variables describe."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise MissingExtraError(
            'spans need OpenTelemetry: pip install "agentgym-envs[otel]"'
        ) from error
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := os.environ.get(variable, "http/protobuf")) != "http/protobuf":
            raise ConfigError(
                f"{variable} is {protocol!r}; spans are sent as http/protobuf only (a collector "
                "takes that on port 4318)"
            )
    try:
        return OTLPSpanExporter()
    except ValueError as error:
        raise ConfigError(f"an OTEL_EXPORTER_OTLP_… variable is wrong: {error}") from error


@contextmanager
def _said_by_exporter() -> Iterator[list[str]]:
    """Keep what the exporter logs in this thread to ourselves: it has no other way to say why."""
    said: list[str] = []
    me = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if record.thread != me:
            return True
        said.append(record.getMessage())
        return False

    log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    log.addFilter(keep)
    try:
        yield said
    finally:
        log.removeFilter(keep)
