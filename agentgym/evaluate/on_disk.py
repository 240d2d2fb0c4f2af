"""One column of an evaluation on disk: what is there, what is missing, and the rows it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.client import public_url
from agentgym.evaluate.attempts import attempt_of
from agentgym.evaluate.columns import ColumnSpec
from agentgym.evaluate.result import Attempt, Column
from agentgym.metering import Meter
from agentgym.rollout.plan import plan_requests
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.summary import summarize_file
from agentgym.trace import Trace
from agentgym.traces import TraceFile
from agentgym.types import Usage

if TYPE_CHECKING:
    from agentgym.evaluate.setting import EvaluationSetting

TRACES = "traces"
MARK = "evaluation"
"""Key in `Trace.metadata`: the column, the configuration's hash, and the code's version."""


@dataclass(frozen=True)
class ColumnOnDisk:
    """A column with the file that its traces are appended to.

    The file's name has the hash of all that an episode depends on. So traces of another
    configuration are in another file, which is left alone.
    """

    spec: ColumnSpec
    config: str
    """The hash."""
    folder: Path
    samples: int

    @property
    def traces(self) -> Path:
        """Its finished episodes."""
        return self.folder / f"{self.spec.file_stem}-{self.config}.jsonl"

    @property
    def unjudged(self) -> Path:
        """Where episodes wait that lack a verdict."""
        return self.traces.with_suffix(".unjudged")

    @property
    def others(self) -> list[Path]:
        """Traces of this column by other configurations."""
        found = self.folder.glob(f"{self.spec.file_stem}-{'?' * len(self.config)}.jsonl")
        return sorted(path for path in found if path != self.traces)

    def missing(self, setting: EvaluationSetting, *, retry_masked: bool) -> list[EpisodeRequest]:
        """The episodes that the file lacks.

        Args:
            setting: Which there should be.
            retry_masked: Whether those without a score count as missing.

        Raises:
            TraceError: If the file can't be read.
        """
        there = self.traces.exists()
        done = TraceFile(self.traces).finished(retry_masked=retry_masked) if there else set()
        return plan_requests(
            list(setting.tasks),
            samples=self.samples,
            seed=setting.seed,
            done=done,
            whole_groups=setting.judges_groups,
        )

    def usage(self) -> Mapping[str, Usage]:
        """What all attempts in the file have cost, by role."""
        return summarize_file(self.traces).usage if self.traces.exists() else {}

    def forget_judged(self) -> None:
        """Remove the journal once each of its episodes has a score."""
        if not (self.unjudged.exists() and self.traces.exists()):
            return
        scored = {e.trace_id for e in TraceFile(self.traces).latest().values() if e.scored}
        if all(entry.trace_id in scored for entry in TraceFile(self.unjudged).entries()):
            self.unjudged.unlink()

    def column(self, setting: EvaluationSetting) -> Column:
        """The column's rows, scored.

        Raises:
            ConfigError: If the external score breaks or gives no score.
            TraceError: If the file can't be read.
        """
        attempts: list[Attempt] = []
        weights: dict[str, None] = {}
        codes: dict[str, None] = {}
        for trace in self._counted(setting):
            score = setting.external(trace)
            external, correct = (None, None) if score is None else (score.total, score.correct)
            attempts.append(attempt_of(trace, external=external, correct=correct))
            weights.update(dict.fromkeys(t.weight_version for t in trace.turns if t.weight_version))
            codes[trace.metadata.get(MARK, {}).get("code", "unknown")] = None
        servers = self.spec.servers
        return Column(
            name=self.spec.name,
            kind=self.spec.kind,
            model=self.spec.model,
            endpoint=", ".join(public_url(server.base_url) for server in servers) or None,
            weight_version=", ".join(weights) or None,
            sampling=self.spec.sampling.model_dump(mode="json") if servers else {},
            hashes=setting.hashes(),
            code_version=", ".join(codes) or "unknown",
            trace_file=f"{TRACES}/{self.traces.name}",
            attempts=tuple(attempts),
        )

    def _counted(self, setting: EvaluationSetting) -> Iterator[Trace]:
        """The last trace of each episode that was asked for, in the order of tasks and samples."""
        if not self.traces.exists():
            return
        file = TraceFile(self.traces)
        latest = file.latest()
        for task in setting.tasks:
            for sample in range(self.samples):
                entry = latest.get((task, sample, ""))
                if entry is not None and not entry.cut_by_budget:
                    yield file.at(entry.offset)


def usage_in(folder: Path) -> Mapping[str, Usage]:
    """What all attempts in a folder of traces have cost by role, of whatever configuration."""
    total = Meter()
    for path in sorted(folder.glob("*.jsonl")):
        for role, usage in summarize_file(path).usage.items():
            total.add(role, usage)
    return total.by_role
