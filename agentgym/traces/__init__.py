"""Traces on disk: JSON lines, appended durably and read back tolerantly."""

from agentgym.traces.jsonl import TraceFile, TraceWriter, read_traces

__all__ = ["TraceFile", "TraceWriter", "read_traces"]
