"""Episodes that are rolled out and not judged yet, on disk, so that nobody pays for them twice.

Rolling out is the dear part: a policy and a simulator, turn by turn, for minutes. The verdict comes
later, and the longer a judge's queue the more finished episodes wait for it. A run that is killed
then must not roll them out again. So each is appended here before its judgement begins, in the form
of a trace without a verdict; a resumed run finds it by task and sample and only has it judged.

The file is never rewritten. Which of its episodes still lack a verdict follows from what the run
asks for: whoever is asked for again has none that counts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from agentgym.errors import TraceError
from agentgym.rollout.request import EpisodeRequest
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile, TraceWriter
from agentgym.types import Verdict

logger = logging.getLogger(__name__)

UNJUDGED = "not judged yet"
"""The reason in the verdict of such a trace."""


class Journal:
    """A file of episodes that are rolled out and not judged.

    Args:
        path: The file; what it holds already can be recalled.
        secrets: Values that must not reach the disk, as for `TraceWriter`.

    Raises:
        TraceError: If it can't be read or opened for appending.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        self._file = TraceFile(self.path)
        self._places: dict[tuple[str | None, int], int] = {}
        self._known: set[str] = set()
        if self.path.exists():
            for entry in self._file.entries():
                self._places[entry.task_id, entry.sample] = entry.offset
                self._known.add(entry.trace_id)
        self._writer = TraceWriter(self.path, secrets=secrets)

    def rolled(self, trace: Trace) -> None:
        """Keep an episode that is about to be judged; when this returns, it is in the file.

        Args:
            trace: With the verdict of `unjudged`. One that was recalled is there already.

        Raises:
            TraceError: If it can't be written.
        """
        if trace.trace_id not in self._known:
            self._writer.write(trace)
            self._known.add(trace.trace_id)

    def recall(self, request: EpisodeRequest) -> Trace | None:
        """What an earlier run rolled out for a request; None if it must be played.

        Each is given once: whoever asks again wants another attempt.
        """
        if request.task_id is None or request.seed is None:
            return None
        offset = self._places.pop((request.task_id, request.sample), None)
        if offset is None:
            return None
        try:
            trace = self._file.at(offset)
        except TraceError as error:
            logger.warning("%s; the episode is played again", error)
            return None
        return trace if trace.seed == request.seed else None

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._writer.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def unjudged() -> Verdict:
    """The verdict of an episode whose judgement is still to come: masked, and no failure."""
    return Verdict(
        failure_class="judge", judge_failed=True, masked=True, reward=None, reason=UNJUDGED
    )
