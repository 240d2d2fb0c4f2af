"""What `agentgym report` does: one page, or one after the other while a run goes on."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli._columns import columns
from agentgym.cli._diagnosis import diagnosis_text
from agentgym.cli._table import summary_table
from agentgym.durable import write_whole
from agentgym.errors import ConfigError, DataError
from agentgym.types import printable

if TYPE_CHECKING:
    from agentgym.report.run import Report

PAGE = "report.html"


class ReportCommand:
    """One invocation.

    Args:
        args: The command line.
        sleep: Waits so many seconds.
    """

    def __init__(
        self, args: argparse.Namespace, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._run: Path = args.run_path
        self._html: Path | None = args.html
        self._text: bool = args.text
        self._watch_s: int | None = args.watch
        self._sleep = sleep
        if self._watch_s is not None and self._watch_s < 1:
            raise ConfigError(f"--watch takes 1 second or more, got {self._watch_s}")
        if self._text and (self._watch_s is not None or self._html is not None):
            raise ConfigError("--text prints; leave it out, or --html and --watch")

    def run(self) -> int:
        """Report; 0 unless there is nothing to report on, which is an error."""
        if self._text:
            print(text_of(self._run))
            return 0
        if self._watch_s is None:
            self._write(self._made())
            print(self._page)
            return 0
        self._follow(self._watch_s)
        return 0

    @property
    def _page(self) -> Path:
        folder = self._run if self._run.is_dir() else self._run.parent
        name = PAGE if self._run.is_dir() else f"{self._run.stem}.html"
        return self._html or folder / name

    def _made(self) -> Report:
        from agentgym.report.run import report_page

        return report_page(self._run, refresh_s=self._watch_s)

    def _write(self, report: Report) -> None:
        from agentgym.report.single_file import why_no_page_may_replace

        if (why := why_no_page_may_replace(self._page)) is not None:
            raise ConfigError(why)
        write_whole(self._page, report.html)

    def _follow(self, every_s: int) -> None:
        """Write the page again and again; a run without a step yet is waited for."""
        from agentgym.report.run import is_waited_for

        if is_waited_for(self._run):
            print(f"{self._run}: waiting for a first step or episode", flush=True)
        while is_waited_for(self._run):
            self._sleep(every_s)
        self._write(report := self._made())
        print(f"{self._page}, anew every {every_s} s", flush=True)
        while not report.over:
            self._sleep(every_s)
            self._write(report := self._made())
        print("the run is over", flush=True)


def text_of(run: Path) -> str:
    """The figures of a run of any kind, for a terminal.

    Raises:
        AgentGymError: If there is no such run, or it can't be read.
    """
    from agentgym.report.run import kind_of

    kind = kind_of(run)
    if kind == "training":
        return _training(run)
    if kind == "rollouts":
        return _rollouts(run)
    return _evaluation(run)


def _training(run: Path) -> str:
    from agentgym.report.run.record import read_training
    from agentgym.report.run.training import header_facts, status_of

    record = read_training(run)
    facts = [(name, printable(value)) for name, value in header_facts(record) if value]
    width = max((len(name) for name, _ in facts), default=0)
    header = [" ".join(status_of(record)), *(f"{name:<{width}}  {value}" for name, value in facts)]
    notes = [printable(note) for note in record.notes]
    return "\n\n".join(["\n".join([*header, *notes]), diagnosis_text(record.diagnosis)])


def _rollouts(run: Path) -> str:
    from agentgym.report.run.rollouts import TRACES_FILE
    from agentgym.rollout.summary import summarize_file

    summary = summarize_file(run / TRACES_FILE)
    if not summary.n_total:
        raise DataError(f"{run / TRACES_FILE} has no episode yet")
    return printable_lines(summary_table(summary))


def _evaluation(run: Path) -> str:
    from agentgym.evaluate.figures import figures_of
    from agentgym.evaluate.result import read_result
    from agentgym.evaluate.tables import tables_of, warnings_of
    from agentgym.report.run.report import RESULT_FILE

    figures = figures_of(read_result(run / RESULT_FILE if run.is_dir() else run))
    parts = [f"! {printable(warning)}" for warning in warnings_of(figures)]
    for table in tables_of(figures):
        rows = [[printable(cell) for cell in row] for row in table.rows]
        header = [printable(cell) for cell in table.header]
        parts.append(f"{printable(table.title)}\n{columns(header, rows)}")
    return "\n\n".join(parts)


def printable_lines(text: str) -> str:
    """Text of several lines, each without control characters."""
    return "\n".join(printable(line) for line in text.split("\n"))
