"""Several sinks: the durable one first and its errors raise, the others' are counted."""

from __future__ import annotations

import logging

import pytest

from agentgym.errors import TraceError
from agentgym.trace import Trace
from agentgym.traces import Tee, TraceWriter, read_traces
from agentgym.types import Verdict


def trace(name: str) -> Trace:
    return Trace(
        trace_id=name,
        env_spec="{}",
        verdict=Verdict(reward=1.0),
        started_at="2026-01-01T00:00:00+00:00",
    )


class Sink:
    def __init__(self, order: list[str], name: str, error: Exception | None = None) -> None:
        self.order, self.name, self.error = order, name, error

    def write(self, trace: Trace) -> None:
        self.order.append(f"{self.name} {trace.trace_id}")
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.order.append(f"{self.name} closed")
        if self.error is not None:
            raise self.error


def test_durable_sink_comes_first_and_closes_last():
    order: list[str] = []
    with Tee(Sink(order, "file"), Sink(order, "otel")) as tee:
        tee.write(trace("a"))
    assert order == ["file a", "otel a", "otel closed", "file closed"]


def test_telemetry_that_fails_costs_no_trace_is_warned_of_once_and_counted(tmp_path, caplog):
    path = tmp_path / "traces.jsonl"
    order: list[str] = []
    tee = Tee(TraceWriter(path), Sink(order, "otel", OSError("gone")), Sink(order, "other"))
    with caplog.at_level(logging.WARNING), tee:
        for name in ("a", "b", "c"):
            tee.write(trace(name))
    assert [t.trace_id for t in read_traces(path)] == ["a", "b", "c"]
    assert [line for line in order if line.startswith("other")][:3] == [
        "other a",
        "other b",
        "other c",
    ]
    assert tee.failures == {"Sink": 4}  # closing failed, too
    assert [r.getMessage() for r in caplog.records] == [
        "Sink fails (OSError: gone); the run goes on, and further failures are only counted"
    ]


def test_an_error_of_the_durable_sink_is_the_callers_and_nobody_else_gets_the_trace():
    order: list[str] = []
    tee = Tee(Sink(order, "file", TraceError("disk full")), Sink(order, "otel"))
    with pytest.raises(TraceError, match="disk full"):
        tee.write(trace("a"))
    assert order == ["file a"]


def test_a_sink_without_close_is_left_alone():
    class Plain:
        def write(self, trace: Trace) -> None:
            pass

    Tee(Plain(), Plain()).close()
