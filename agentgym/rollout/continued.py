"""Going on with a recording beside the traces: what is paid for is neither asked nor told twice.

Each trace notes how many calls of its episode were in the recording when it was written
(`metadata["recorded"]`). Those are in its usage. A resumed run gives their answers again without a
charge, and charges the others, which the episode that was cut has paid for and told nobody of. A
judgement on a group is paid for by all its traces, so what those that were written have of it is
what is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentgym.metering import Meter
from agentgym.trace import Trace

if TYPE_CHECKING:
    from agentgym.clients.known import KnownCalls
    from agentgym.clients.record import Recording
    from agentgym.rollout import EpisodeRequest

RECORDED = "recorded"
"""Key in `Trace.metadata`: by role, the calls of the episode in the recording so far."""


class Sink(Protocol):
    """Where traces go."""

    def write(self, trace: Trace) -> None:
        """Keep one trace."""


class RecordedSink:
    """Notes in each trace how far the recording has got with its episode.

    Args:
        sink: Where traces go then.
        recording: What its calls are appended to.
    """

    def __init__(self, sink: Sink, recording: Recording) -> None:
        self._sink = sink
        self._recording = recording

    def write(self, trace: Trace) -> None:
        """Note it and pass the trace on."""
        calls = self._recording.calls(_name(trace.task_id, trace.seed, trace.sample))
        metadata = {**trace.metadata, RECORDED: calls}
        self._sink.write(trace.model_copy(update={"metadata": metadata}))


def known_calls(recording: Path, traces: Path, requests: Iterable[EpisodeRequest]) -> KnownCalls:
    """What a recording holds of the episodes that a resumed run plays.

    Args:
        recording: The file, which may not exist.
        traces: The run's traces so far.
        requests: The episodes to play, with their seeds.

    Raises:
        DataError: If the file is no recording.
    """
    from agentgym.clients.known import KnownCalls
    from agentgym.traces import TraceFile

    # Replacements of failed siblings and the judgement of a group go by the same task and seed.
    asked = {_stem(request.name(request.seed or 0)) for request in requests}
    counted: dict[str, Any] = {}
    told: dict[str, Meter] = defaultdict(Meter)
    file = TraceFile(traces)
    for entry in file.entries() if traces.exists() else ():
        name = _name(entry.task_id, entry.seed, entry.sample)
        if _stem(name) not in asked:
            continue
        trace = file.at(entry.offset)
        counted[name] = trace.metadata.get(RECORDED, {})
        if entry.group is not None and RECORDED in trace.metadata:
            for role, usage in trace.verdict.spent.items():
                told[f"{_stem(name)}.group"].add(role, usage)
    return KnownCalls(
        recording,
        wanted=lambda name: _stem(name) in asked,
        counted=counted,
        told={group: meter.by_role for group, meter in told.items()},
    )


def _stem(name: str) -> str:
    """An episode's name without its sample."""
    return name.rpartition(".")[0]


def _name(task_id: str | None, seed: int | None, sample: int) -> str:
    from agentgym.rollout import EpisodeRequest

    return EpisodeRequest(task_id=task_id, sample=sample).name(seed or 0)
