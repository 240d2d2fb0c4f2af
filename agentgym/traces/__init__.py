"""Traces on disk: JSON lines, appended durably and read back tolerantly; and to a collector."""

from agentgym.traces.jsonl import TraceFile, TraceWriter, read_traces
from agentgym.traces.otel import OtelSink
from agentgym.traces.tee import Tee, TraceSink

__all__ = ["OtelSink", "Tee", "TraceFile", "TraceSink", "TraceWriter", "read_traces"]
