"""Going on with a recording beside the traces: what is paid for is neither asked nor told twice.

Each trace notes how many calls of its episode were in the recording when it was written
(`metadata["recorded"]`). Those are in its usage. A resumed run gives their answers again without a
charge, and charges the others, which the episode that was cut has paid for and told nobody of.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
    if traces.exists():
        file = TraceFile(traces)
        for entry in file.latest().values():
            name = _name(entry.task_id, entry.seed, entry.sample)
            if _stem(name) in asked:
                counted[name] = file.at(entry.offset).metadata.get(RECORDED, {})
    return KnownCalls(recording, wanted=lambda name: _stem(name) in asked, counted=counted)


def _stem(name: str) -> str:
    """An episode's name without its sample."""
    return name.rpartition(".")[0]


def _name(task_id: str | None, seed: int | None, sample: int) -> str:
    from agentgym.rollout import EpisodeRequest

    return EpisodeRequest(task_id=task_id, sample=sample).name(seed or 0)
