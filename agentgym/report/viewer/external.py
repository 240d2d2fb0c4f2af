"""The external scores of an evaluation's episodes, from the result beside its traces.

A trace holds the verdict of the reward, which a policy is trained on; an evaluation counts success
by an external score, which is in its result file, by column, task and sample. Whoever looks at an
evaluation's traces wants both, and to know which is which.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agentgym.errors import DataError
from agentgym.evaluate.result import RESULT_FILE, read_result
from agentgym.trace import Trace
from agentgym.types import printable


class External(NamedTuple):
    """What the external score says of an episode."""

    name: str
    """The score's name, such as `webshop/purchase`."""
    score: float | None
    """None where it has none: something other than the policy broke."""
    correct: bool | None
    """Whether the task was solved by it; None exactly where `score` is None."""

    def disagrees_with(self, trace: Trace) -> bool:
        """Whether the reward's verdict says something else about success."""
        told = trace.verdict.correct
        return None not in (told, self.correct) and told != self.correct


class ExternalScores:
    """Scores by episode; result files are read once, when a trace file beside them is asked for."""

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}
        self._by_file: dict[Path, list[_Folder]] = {}

    def of(self, file: Path, trace: Trace) -> External | None:
        """The external score of an episode.

        Args:
            file: The trace file that it is in.
            trace: The episode.

        Returns:
            None where no result knows the episode: it is no evaluation's, a later attempt took its
            place, or the result wasn't written yet.
        """
        for folder in self._beside(file):
            if (found := folder.scores.get((file.name, trace.trace_id))) is not None:
                return found
        return None

    @property
    def stale(self) -> bool:
        """Whether a result was written or changed since it was read."""
        return any(folder.stale for folder in self._folders.values())

    @property
    def notes(self) -> list[str]:
        """Result files that could not be read, and why."""
        return [note for folder in self._folders.values() for note in folder.notes]

    def _beside(self, file: Path) -> list[_Folder]:
        """The folders that may have the result: the trace file's own, and the one above it."""
        if (known := self._by_file.get(file)) is None:
            real = file.resolve()
            above = [real.parent, real.parent.parent]
            known = self._by_file[file] = [
                self._folders.setdefault(folder, _Folder(folder)) for folder in above
            ]
        return known


class _Folder:
    """A folder that may be an evaluation's.

    A result that another one took the place of lies beside it, as `result-TIME.json`; it may have
    columns that the other one lacks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._look()
        self.scores: dict[tuple[str, str], External] = {}
        self.notes: list[str] = []
        for file, _, _ in self._state:  # the newest last: it wins
            self._read(file)

    @property
    def stale(self) -> bool:
        return self._look() != self._state

    def _look(self) -> list[tuple[Path, int, int]]:
        kept = sorted(self._path.glob(f"{Path(RESULT_FILE).stem}-*.json"))
        found = []
        for file in (*kept, self._path / RESULT_FILE):
            try:
                about = file.stat()
            except OSError:
                continue
            found.append((file, about.st_size, about.st_mtime_ns))
        return found

    def _read(self, file: Path) -> None:
        try:
            result = read_result(file)
        except DataError as error:
            self.notes.append(f"no external scores: {printable(str(error))}")
            return
        for column in result.columns:
            if column.trace_file is None:
                continue
            traces = Path(column.trace_file).name
            for attempt in column.attempts:
                if attempt.trace_id is not None:
                    found = External(result.external_score, attempt.external, attempt.correct)
                    self.scores[traces, attempt.trace_id] = found
