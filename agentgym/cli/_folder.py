"""The folder of a run: what is in it, and whether a command line may go on with it.

`config.json` says what was run, `traces.jsonl` has an episode a line, `summary.json` the figures,
`unjudged.jsonl` the episodes that were rolled out and still lack a verdict, and `cancelled.jsonl`
what cancelled ones have cost. Which episodes are missing follows from the traces alone, never from
how a run ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.cli._inputs import make_folder, write_json
from agentgym.cli._table import summary_table
from agentgym.errors import ConfigError
from agentgym.metering import Meter
from agentgym.types import Usage

if TYPE_CHECKING:
    from agentgym.rollout import BudgetStatus, Summary
    from agentgym.traces.jsonl import Entry, EpisodeKey

_SAME_ON_RESUME = (
    *("env", "env_kwargs", "policy", "samples", "seed", "sampling"),
    *("tool_calls", "extra_body", "simulator", "judge"),
)
_SAME_LIMITS = ("max_turns", "max_episode_tokens")
_SAME_OF_MODELS = ("extra_body", "dialect")


class RunFolder:
    """One run on disk.

    Args:
        path: The folder, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces = path / "traces.jsonl"
        self.config = path / "config.json"
        self.summary = path / "summary.json"
        self.unjudged = path / "unjudged.jsonl"
        self.spending = path / "cancelled.jsonl"
        self._claim: int | None = None

    @property
    def spent_file(self) -> Path:
        """What is spent of the run's budget, where it has one."""
        from agentgym.rollout.spending import SPENT_FILE

        return self.path / SPENT_FILE

    @property
    def files(self) -> frozenset[Path]:
        """What a run writes here, as absolute paths."""
        files = (self.traces, self.config, self.summary, self.unjudged, self.spending)
        return frozenset(file.resolve() for file in (*files, self.spent_file))

    def claim(self) -> None:
        """Keep other processes out until `release`, or the end of this one.

        Two runs at once would play, and pay for, the same episodes.

        Raises:
            ConfigError: If another process is at work in it, or it can't be opened.
        """
        if self._claim is not None:
            return
        try:
            folder = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"can't use {self.path} as a folder: {error.strerror}") from error
        self._claim = folder
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise ConfigError(
                f"another process plays in {self.path}; wait for its end, or take another --out"
            ) from error
        except OSError:
            pass  # a file system without locks

    def release(self) -> None:
        """Let others in; may be called twice."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def begin(self, config_json: str, *, resumed: bool) -> None:
        """Note what is run; from here on it can be gone on with.

        Args:
            config_json: The run's parameters.
            resumed: Whether it is gone on with, so that something may be there.

        Raises:
            ConfigError: If it can't be written, or another process was faster.
        """
        make_folder(self.path)
        self.claim()
        if not resumed and self.config.exists():
            raise ConfigError(f"another run has begun in {self.path}; take another --out")
        write_json(self.config, config_json)

    def check_fresh(self) -> None:
        """See that nothing is there yet.

        Raises:
            ConfigError: If something is, or it can't be a folder.
        """
        try:
            in_use = any(self.path.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(
                f"can't use {self.path} as a folder: {error.strerror}; take another --out"
            ) from error
        if in_use:
            raise ConfigError(
                f"{self.path} is not empty; take another --out, or --resume to go on with it"
            )

    def check_same_run(self, config: Mapping[str, Any]) -> None:
        """See that there is a run to go on with, and that it asked for the same.

        Args:
            config: Of this command line, as it would be written.

        Raises:
            ConfigError: If there is none, or it differs in what its episodes depend on.
        """
        if not self.config.exists():
            raise ConfigError(
                f"{self.config} does not exist: there is no run to go on with; "
                "start one with another --out, without --resume"
            )
        try:
            before = json.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"can't read {self.config}: {error}; take another --out") from error
        if not isinstance(before, dict) or not isinstance(before.get("limits", {}), dict):
            raise ConfigError(f"{self.config} is no run's config; take another --out")
        then, now = _what_counts(before), _what_counts(config)
        for key, value in now.items():
            if then[key] != value:
                raise ConfigError(
                    f"{self.path} was run with {key}={then[key]!r}, this is {value!r}; "
                    "take another --out"
                )

    @cached_property
    def before(self) -> dict[EpisodeKey, Entry]:
        """The episodes that were there when this was first asked for, the last attempt at each.

        Raises:
            TraceError: If the file can't be read, has another schema version or is no trace file.
        """
        from agentgym.traces import TraceFile

        return TraceFile(self.traces).latest() if self.traces.exists() else {}

    def finished(self, *, retry_masked: bool) -> set[tuple[str, int]]:
        """The (task, sample) pairs that need not run again."""
        return {
            (entry.task_id, entry.sample)
            for entry in self.before.values()
            if entry.task_id is not None and (entry.scored or not retry_masked)
            if not entry.cut_by_budget
        }

    def spent(self) -> dict[str, Usage]:
        """What all attempts in the folder have cost by role, cancelled ones included."""
        from agentgym.rollout.summary import summarize_file
        from agentgym.traces import TraceFile

        total = Meter()
        known: set[str] = set()
        if self.traces.exists():
            known = {entry.trace_id for entry in TraceFile(self.traces).entries()}
            for role, usage in summarize_file(self.traces).usage.items():
                total.add(role, usage)
        if self.unjudged.exists():
            for trace in TraceFile(self.unjudged):
                for role, usage in trace.usage.items() if trace.trace_id not in known else ():
                    total.add(role, usage)
        for line in self._dropped_lines():
            for role, usage in line.items():
                total.add(role, Usage.model_validate(usage))
        return total.by_role

    def spent_usd(self) -> dict[str, float]:
        """The same in dollars, where that is known."""
        spent = self.spent()
        return {role: used.cost_usd for role, used in spent.items() if used.cost_usd is not None}

    def dropped(self, spent: Mapping[str, Usage]) -> None:
        """Note what cancelled episodes have cost, which no trace tells.

        Raises:
            TraceError: If it can't be written.
        """
        from agentgym.durable import LineFile

        if not any(not usage.is_nothing for usage in spent.values()):
            return
        values = {role: usage.model_dump(mode="json") for role, usage in spent.items()}
        file = LineFile(self.spending)
        try:
            file.append((json.dumps(values) + "\n").encode())
        finally:
            file.close()

    def _dropped_lines(self) -> list[dict[str, Any]]:
        try:
            text = self.spending.read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise ConfigError(f"can't read {self.spending}: {error}; take another --out") from error

    def forget_judged(self) -> None:
        """Remove the journal once each of its episodes has a score among the traces."""
        from agentgym.traces import TraceFile

        if not (self.traces.exists() and self.unjudged.exists()):
            return
        scored = {e.trace_id for e in TraceFile(self.traces).latest().values() if e.scored}
        if all(entry.trace_id in scored for entry in TraceFile(self.unjudged).entries()):
            self.unjudged.unlink()

    def report(self, *, quiet: bool, stop: BudgetStatus | None = None) -> Summary | None:
        """Write the figures of all traces there are, and print them; None if there are none.

        Args:
            quiet: Whether to print nothing.
            stop: How the run's budget ended it, if it did; then there are figures of no trace, too.
        """
        from agentgym.rollout.summary import summarize_file

        if not self.traces.exists():
            return None
        summary = summarize_file(self.traces).model_copy(update={"budget_stop": stop})
        if not summary.n_total and stop is None:
            return None
        write_json(self.summary, summary.model_dump_json(indent=2))
        if not quiet:
            print(summary_table(summary))
        return summary


def _what_counts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that a run's episodes depend on."""
    found = {key: config.get(key) for key in _SAME_ON_RESUME}
    limits, roles = config.get("limits") or {}, config.get("roles") or {}
    found |= {key: limits.get(key) for key in _SAME_LIMITS}
    for role in ("simulator", "judge"):
        facts = roles.get(role) if isinstance(roles, Mapping) else None
        for key in _SAME_OF_MODELS:
            found[f"{role}.{key}"] = (facts or {}).get(key, {})
    return found
