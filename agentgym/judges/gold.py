"""Gold sets: transcripts whose right verdict is known, to hold a judge against.

A judge is a measuring instrument, and a gold set is its reference weight. Each case is an episode,
the value every criterion should get, whether the task was solved, and where that knowledge comes
from. A file has one case a line; it holds the tasks' hidden references, which traces never do, so
it belongs beside the tests and not into a policy's reach.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from agentgym.errors import DataError
from agentgym.judge import Score
from agentgym.judges.episodes import turns_of
from agentgym.judges.rubric import Rubric
from agentgym.trace import Trace
from agentgym.types import Episode, Finite, Record, clean_json, in_one_line

_SHIPPED = "gold.jsonl"


class GoldCase(Record):
    """One transcript with its right verdict."""

    case_id: str
    """Unique within the set."""
    episode: Episode
    """What is to be judged; its task has the hidden reference."""
    expected: dict[str, Finite] = Field(default_factory=dict)
    """Criterion name to the value it should get; criteria that nobody labelled are left out."""
    correct: bool | None = None
    """Whether the task was solved; None where it isn't labelled."""
    source: str = ""
    """Who says so: a person, a verifier, a paper."""
    note: str = ""
    """Why the verdict is what it is."""

    @model_validator(mode="before")
    @classmethod
    def _in_file_form(cls, given: Any) -> Any:
        """Take a line's form: the reference beside the episode, turns left to follow."""
        if not isinstance(given, Mapping) or not isinstance(given.get("episode"), Mapping):
            return given
        fields, episode = dict(given), dict(given["episode"])
        reference = fields.pop("reference", None)
        if isinstance(episode.get("task"), Mapping):
            episode["task"] = {"reference": reference, **episode["task"]}
        if "turns" not in episode and isinstance(episode.get("messages"), list | tuple):
            messages = episode["messages"]
            if all(isinstance(message, Mapping) for message in messages):
                episode["turns"] = turns_of(messages)
        return {**fields, "episode": episode}

    @model_validator(mode="after")
    def _says_something(self) -> GoldCase:
        if not self.expected and self.correct is None:
            raise ValueError(f"case {self.case_id!r} has neither expected values nor correct")
        return self

    def to_json_line(self) -> str:
        """The case as one line of JSON, line feed included."""
        fields = self.model_dump(mode="json", exclude_defaults=True)
        if self.episode.turns == turns_of(self.episode.messages):
            fields["episode"].pop("turns", None)  # they follow from the messages
        if self.episode.task.reference is not None:
            fields["reference"] = self.episode.task.reference
        return json.dumps(clean_json(fields), ensure_ascii=False) + "\n"


class GoldSet(Record):
    """Cases with known verdicts."""

    cases: tuple[GoldCase, ...]

    @model_validator(mode="after")
    def _has_distinct_cases(self) -> GoldSet:
        if not self.cases:
            raise ValueError("a gold set needs at least one case")
        seen: set[str] = set()
        for case in self.cases:
            if case.case_id in seen:
                raise ValueError(f"two cases are called {case.case_id!r}; name each once")
            seen.add(case.case_id)
        return self

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What is to be judged, in order."""
        return tuple(case.episode for case in self.cases)

    @property
    def criteria(self) -> tuple[str, ...]:
        """Every criterion that some case labels, in order of appearance."""
        return tuple(dict.fromkeys(name for case in self.cases for name in case.expected))

    def known(self, rubric: Rubric) -> list[tuple[Episode, Score]]:
        """The fully labelled cases as scores by a rubric, such as a `Canary` asks about.

        Raises:
            DataError: If no case has a label for each criterion.
        """
        names = [criterion.name for criterion in rubric.criteria]
        found = [
            (
                case.episode,
                Score(
                    total=rubric.total(case.expected),
                    components=case.expected,
                    correct=case.correct,
                ),
            )
            for case in self.cases
            if set(names) <= set(case.expected)
        ]
        if not found:
            raise DataError(
                f"no case labels all of {', '.join(names)}; the set labels "
                f"{', '.join(self.criteria) or 'no criterion'}"
            )
        return found

    @classmethod
    def shipped(cls) -> GoldSet:
        """The set that comes with the package, for the default rubric."""
        text = files("agentgym.judges").joinpath("data", _SHIPPED).read_text(encoding="utf-8")
        return cls(cases=tuple(_cases(text.splitlines(), _SHIPPED)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GoldSet:
        """Read a file of cases, one JSON object a line.

        Raises:
            DataError: If it can't be read; the message names file, line and field.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"can't read the gold set {path}: {error}") from error
        try:
            return cls(cases=tuple(_cases(lines, str(path))))
        except ValidationError as error:
            raise DataError(f"{path}: {in_one_line(error)}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cases to a file, replacing it as a whole.

        Raises:
            DataError: If it can't be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text("".join(c.to_json_line() for c in self.cases), encoding="utf-8")
            partial.replace(target)
        except (OSError, TypeError, ValueError) as error:
            partial.unlink(missing_ok=True)
            raise DataError(f"can't write the gold set {path}: {error}") from error

    @classmethod
    def from_traces(
        cls,
        traces: Iterable[Trace],
        labels: Mapping[str, Mapping[str, float]],
        *,
        source: str,
        episode_of: Callable[[Trace], Episode],
    ) -> GoldSet:
        """Make a gold set from traces that somebody has labelled.

        Args:
            traces: Those without a label are left out.
            labels: Trace id to the right value of each criterion; `correct` (0 or 1) among them is
                whether the task was solved.
            source: Who labelled them.
            episode_of: Gives a trace's episode back; see `agentgym.judges.rescore.episode_of`.

        Raises:
            DataError: If a labelled trace isn't among them.
        """
        known = {trace.trace_id: trace for trace in traces}
        missing = [trace_id for trace_id in labels if trace_id not in known]
        if missing:
            raise DataError(f"labels for traces that aren't there: {', '.join(missing[:5])}")
        cases = []
        for trace_id, values in labels.items():
            expected = {name: value for name, value in values.items() if name != "correct"}
            solved = values.get("correct")
            cases.append(
                GoldCase(
                    case_id=trace_id,
                    episode=episode_of(known[trace_id]),
                    expected=expected,
                    correct=None if solved is None else bool(solved),
                    source=source,
                )
            )
        return cls(cases=tuple(cases))


def _cases(lines: Iterable[str], where: str) -> Iterator[GoldCase]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield GoldCase.model_validate(json.loads(line))
        except ValidationError as error:
            raise DataError(f"{where}, line {number}: {in_one_line(error)}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}, line {number}: not JSON ({error})") from error
